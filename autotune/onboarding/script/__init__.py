"""A training script, read without running it: its options, what they stand for, and its first
spec."""
