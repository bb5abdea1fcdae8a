"""One trainer per file; the stem is its name and `TRAINER` its instance."""
