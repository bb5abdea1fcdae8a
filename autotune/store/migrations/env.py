"""What Alembic runs: the missing steps, on the connection and in the transaction that
`autotune.store.schema` hands over."""

from __future__ import annotations

from alembic import context

from autotune.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table="autotune_version",
    transactional_ddl=True,
    transaction_per_migration=False,
)
context.run_migrations()
