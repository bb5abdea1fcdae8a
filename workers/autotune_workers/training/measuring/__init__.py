"""Measurements of a rank: time, memory, its GPU, and its progress."""
