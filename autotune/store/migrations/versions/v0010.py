"""Runs that people started themselves and that were observed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Adds the table."""
    op.create_table(
        "observed",
        sa.Column("key", sa.Integer(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("workload", sa.Integer(), nullable=True),
        sa.Column("program", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("throughput", sa.Float(), nullable=True),
        sa.Column("ended_us", sa.BigInteger(), nullable=False),
        sa.Column("kept_us", sa.BigInteger(), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["workload"], ["workloads.key"], name="fk_observed_workload"),
        sa.PrimaryKeyConstraint("key", name="pk_observed"),
        sa.UniqueConstraint("id", name="uq_observed_id"),
    )
    op.create_index("ix_observed_workload", "observed", ["workload"])
