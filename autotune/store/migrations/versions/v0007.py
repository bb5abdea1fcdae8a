"""Checksums of events, trials and attempts (`autotune.store.upkeep.checksums`); rows that are there
have none.

Releases before this version write no checksums, and what they wrote is not checked.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Adds the columns."""
    for table in ("events", "trials", "attempts"):
        op.add_column(table, sa.Column("checksum", sa.LargeBinary()))
