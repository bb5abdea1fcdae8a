"""Migrations of the database, one module for each version; `autotune.store.schema` runs the missing
ones."""
