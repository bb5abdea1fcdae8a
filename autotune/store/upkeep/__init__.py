"""Upkeep of a store: laws of every history, check, backup, restore, tables and folders of files."""
