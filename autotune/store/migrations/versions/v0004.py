"""Profiles: what dry runs said of a model's training, by the fingerprint of its code, its arguments
and the versions of the packages."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Adds the table."""
    op.create_table(
        "profiles",
        sa.Column("fingerprint", sa.Text(), primary_key=True),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("values", sa.Text(), nullable=False),
    )
