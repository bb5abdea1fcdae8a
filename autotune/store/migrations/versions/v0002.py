"""What the service needs: the best trial of each config, tokens, audit, reference losses.

Records are derived from the trials that are already there: the median measured trial of each config
of each workload.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

RECORDS = """
INSERT INTO records (workload, config_key, trial, throughput, model, cluster, trainer)
SELECT ranked.workload, ranked.config_key, ranked.key, ranked.throughput, w.model, w.cluster, w.trainer
FROM (
    SELECT workload, config_key, key, throughput,
           row_number() OVER (PARTITION BY workload, config_key ORDER BY throughput, key) AS place,
           count(*) OVER (PARTITION BY workload, config_key) AS places
    FROM trials WHERE throughput IS NOT NULL
) AS ranked JOIN workloads AS w ON w.key = ranked.workload
WHERE ranked.place = (ranked.places - 1) / 2 + 1
"""


def upgrade() -> None:
    """Makes the tables."""
    op.create_table(
        "audit",
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("sequence", name="pk_audit"),
    )
    op.create_table(
        "reference_losses",
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("losses", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("model", "data", "seed", name="pk_reference_losses"),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("salt", sa.LargeBinary(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=True),
        sa.Column("revoked_us", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
    )
    op.create_table(
        "records",
        sa.Column("workload", sa.Integer(), nullable=False),
        sa.Column("config_key", sa.BigInteger(), nullable=False),
        sa.Column("trial", sa.Integer(), nullable=False),
        sa.Column("throughput", sa.Float(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("trainer", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["trial"], ["trials.key"], name="fk_records_trial"),
        sa.ForeignKeyConstraint(["workload"], ["workloads.key"], name="fk_records_workload"),
        sa.PrimaryKeyConstraint("workload", "config_key", name="pk_records"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_records_cluster", "records", ["cluster", "throughput"], unique=False)
    op.create_index("ix_records_model", "records", ["model", "throughput"], unique=False)
    op.create_index(
        "ix_records_model_cluster", "records", ["model", "cluster", "throughput"], unique=False
    )
    op.create_index("ix_records_throughput", "records", ["throughput"], unique=False)
    op.execute(RECORDS)
