"""The first tables: studies with their leases and history, trials, attempts, calibrations."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Makes the tables."""
    op.create_table(
        "calibrations",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("trainer", sa.Text(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("values", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "trainer", name="pk_calibrations"),
    )
    op.create_table(
        "workloads",
        sa.Column("key", sa.Integer(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("gpu", sa.Text(), nullable=False),
        sa.Column("num_gpus", sa.BigInteger(), nullable=False),
        sa.Column("trainer", sa.Text(), nullable=False),
        sa.Column("seq_len", sa.BigInteger(), nullable=False),
        sa.Column("workload", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_workloads"),
        sa.UniqueConstraint("fingerprint", name="uq_workloads_fingerprint"),
    )
    op.create_index("ix_workloads_model_cluster", "workloads", ["model", "cluster"], unique=False)
    op.create_table(
        "studies",
        sa.Column("key", sa.Integer(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("workload", sa.Integer(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
        sa.Column("started_us", sa.BigInteger(), nullable=True),
        sa.Column("ended_us", sa.BigInteger(), nullable=True),
        sa.Column("elapsed_s", sa.Float(), nullable=False),
        sa.Column("baseline", sa.Integer(), nullable=True),
        sa.Column("best", sa.Integer(), nullable=True),
        sa.Column("speedup", sa.Float(), nullable=True),
        sa.Column("lease_owner", sa.Text(), nullable=False),
        sa.Column("lease_expires_us", sa.BigInteger(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("num_trials", sa.Integer(), nullable=False),
        sa.Column("num_events", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["workload"], ["workloads.key"], name="fk_studies_workload"),
        sa.PrimaryKeyConstraint("key", name="pk_studies"),
        sa.UniqueConstraint("id", name="uq_studies_id"),
    )
    op.create_index("ix_studies_created_us", "studies", ["created_us"], unique=False)
    op.create_index("ix_studies_name", "studies", ["name"], unique=False)
    op.create_index(
        "ix_studies_status_created_us", "studies", ["status", "created_us"], unique=False
    )
    op.create_table(
        "attempts",
        sa.Column("key", sa.Integer(), nullable=False),
        sa.Column("study", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("started_us", sa.BigInteger(), nullable=False),
        sa.Column("ended_us", sa.BigInteger(), nullable=True),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("steps", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["study"], ["studies.key"], name="fk_attempts_study"),
        sa.PrimaryKeyConstraint("key", name="pk_attempts"),
    )
    op.create_index(
        "uq_attempts_study_number_attempt", "attempts", ["study", "number", "attempt"], unique=True
    )
    op.create_table(
        "events",
        sa.Column("study", sa.Integer(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["study"], ["studies.key"], name="fk_events_study"),
        sa.PrimaryKeyConstraint("study", "sequence", name="pk_events"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "specs",
        sa.Column("study", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("values", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("result", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["study"], ["studies.key"], name="fk_specs_study"),
        sa.PrimaryKeyConstraint("study", name="pk_specs"),
    )
    op.create_table(
        "submissions",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("study", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["study"], ["studies.key"], name="fk_submissions_study"),
        sa.PrimaryKeyConstraint("owner", "idempotency_key", name="pk_submissions"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "trials",
        sa.Column("key", sa.Integer(), nullable=False),
        sa.Column("study", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("workload", sa.Integer(), nullable=False),
        sa.Column("config_key", sa.BigInteger(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("throughput", sa.Float(), nullable=True),
        sa.Column("reward", sa.Float(), nullable=True),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("started_us", sa.BigInteger(), nullable=True),
        sa.Column("ended_us", sa.BigInteger(), nullable=True),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["study"], ["studies.key"], name="fk_trials_study"),
        sa.ForeignKeyConstraint(["workload"], ["workloads.key"], name="fk_trials_workload"),
        sa.PrimaryKeyConstraint("key", name="pk_trials"),
    )
    op.create_index(
        "ix_trials_measured",
        "trials",
        ["workload", "config_key", "throughput"],
        unique=False,
        sqlite_where=sa.text("throughput IS NOT NULL"),
        postgresql_where=sa.text("throughput IS NOT NULL"),
    )
    op.create_index("ix_trials_status_failure", "trials", ["status", "failure"], unique=False)
    op.create_index("ix_trials_study_status", "trials", ["study", "status"], unique=False)
    op.create_index("uq_trials_study_number", "trials", ["study", "number"], unique=True)
