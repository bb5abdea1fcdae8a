"""An index from trials to the records that name them: the deletion of a trial asks which do, and
without an index it reads all records for each trial."""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Adds the index."""
    op.create_index("ix_records_trial", "records", ["trial"])
