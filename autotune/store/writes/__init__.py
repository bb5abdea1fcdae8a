"""The writes, one subject each."""
