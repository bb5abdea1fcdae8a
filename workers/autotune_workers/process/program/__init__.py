"""A user's program under measurement: its launch, log, probe and end."""
