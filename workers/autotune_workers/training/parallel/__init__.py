"""Implements each kind of parallelism, and applies them to the stages of a rank."""
