"""The finals: which configs are re-measured, which rounds count, and which config wins."""
