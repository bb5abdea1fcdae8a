"""Check, backup, restore and export of a store, and study folders."""
