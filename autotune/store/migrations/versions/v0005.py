"""What people want of a study apart from its status, and a count of the decisions of its
controllers.

Until now a pause was written as the status PAUSED and a stop as STOPPING, by whoever asked for it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Adds the columns, and fills in what was asked for."""
    op.add_column("studies", sa.Column("wanted", sa.Text(), nullable=False, server_default="run"))
    op.add_column("studies", sa.Column("wanted_us", sa.BigInteger()))
    op.add_column(
        "studies", sa.Column("num_decisions", sa.BigInteger(), nullable=False, server_default="0")
    )
    op.execute("UPDATE studies SET wanted = 'stop' WHERE status = 'STOPPING'")
    op.execute(
        "UPDATE studies SET wanted = 'pause' WHERE status = 'PAUSED' AND message IN ('pause asked for', 'paused on request')"
    )
    op.execute(
        "UPDATE studies SET wanted = 'cancel' WHERE status = 'CANCELLED' AND message = 'cancelled on request'"
    )
