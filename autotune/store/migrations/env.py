"""The script that Alembic runs: missing migrations, in the transaction of
`autotune.store.schema`."""

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
