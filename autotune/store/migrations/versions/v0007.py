"""Checksums of events, trials and attempts, filled in for the rows that are there; and triggers that refuse rows without them.

Releases before this version write no checksums. A process of theirs that still has the store open is refused by the triggers, whatever it writes of a study's
history: the database says so itself, because those releases look at the version only when they open a store.
"""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from alembic import op

from autotune.store.checksums import FILLED, KINDS, SEALED, seal

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

PAGE = 5000
"""rows that are filled in at once"""
REFUSAL = (
    "written without a checksum, as releases before version 0007 of the store do: "
    "end this process and start it again with the newer release"
)


def upgrade() -> None:
    """Adds the columns, fills them in, and then refuses rows without them."""
    for table in SEALED:
        op.add_column(table.name, sa.Column("checksum", sa.LargeBinary()))
        _fill(table)
    statements = _on_sqlite() if op.get_bind().dialect.name == "sqlite" else _on_postgresql()
    for statement in statements:
        op.execute(sa.text(statement))


def _fill(table: sa.Table) -> None:
    connection = op.get_bind()
    keys = list(table.primary_key.columns)
    columns = [table.c[name] for names in KINDS[table.name].values() for name in names]
    query = sa.select(*dict.fromkeys([*keys, *columns])).order_by(*keys).limit(PAGE)
    write = (
        sa.update(table)
        .where(*(key == sa.bindparam(f"of_{key.name}") for key in keys))
        .values(checksum=sa.bindparam("seal"))
    )
    later = query
    while rows := connection.execute(later).all():
        found = [row._mapping for row in rows]
        connection.execute(
            write,
            [
                {"seal": seal(table, row, origin=FILLED), **{f"of_{key.name}": row[key] for key in keys}}
                for row in found
            ],
        )
        later = query.where(sa.tuple_(*keys) > sa.tuple_(*(found[-1][key] for key in keys)))


def _on_sqlite() -> Iterator[str]:
    for table in SEALED:
        columns = [name for names in KINDS[table.name].values() for name in names]
        changed = " OR ".join(f"NEW.{name} IS NOT OLD.{name}" for name in columns)
        for event, when in (
            ("INSERT", "NEW.checksum IS NULL"),
            ("UPDATE", f"NEW.checksum IS OLD.checksum AND ({changed})"),
        ):
            yield (
                f"CREATE TRIGGER {table.name}_{event.lower()}_with_checksum BEFORE {event} ON {table.name} WHEN {when} "
                f"BEGIN SELECT RAISE(ABORT, '{table.name} {REFUSAL}'); END"
            )


def _on_postgresql() -> Iterator[str]:
    yield (
        "CREATE FUNCTION autotune_with_checksum() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF TG_OP = 'INSERT' THEN IF NEW.checksum IS NOT NULL THEN RETURN NEW; END IF; "
        "ELSIF NEW.checksum IS DISTINCT FROM OLD.checksum OR NEW IS NOT DISTINCT FROM OLD THEN RETURN NEW; END IF; "
        f"RAISE EXCEPTION '% {REFUSAL}', TG_TABLE_NAME; END $$"
    )
    for table in SEALED:
        yield (
            f"CREATE TRIGGER {table.name}_with_checksum BEFORE INSERT OR UPDATE ON {table.name} "
            "FOR EACH ROW EXECUTE FUNCTION autotune_with_checksum()"
        )
