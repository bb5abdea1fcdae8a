"""Notes and tags that people write on studies."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Adds the tables."""
    op.create_table(
        "notes",
        sa.Column(
            "study",
            sa.Integer(),
            sa.ForeignKey("studies.key", name="fk_notes_study"),
            nullable=False,
        ),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("study", "number", name="pk_notes"),
    )
    op.create_table(
        "tags",
        sa.Column(
            "study",
            sa.Integer(),
            sa.ForeignKey("studies.key", name="fk_tags_study"),
            nullable=False,
        ),
        sa.Column("tag", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("study", "tag", name="pk_tags"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_tags_tag", "tags", ["tag"])
