"""The kinds of parallelism, and how they are applied to a stage."""
