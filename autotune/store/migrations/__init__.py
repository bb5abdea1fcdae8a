"""Migrations of the database, one module per version; `autotune.store.schema` applies those that
are missing."""
