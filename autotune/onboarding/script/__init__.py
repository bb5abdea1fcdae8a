"""Parses a training script without running it: its options, their meaning, and its first spec."""
