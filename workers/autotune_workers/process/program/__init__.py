"""Somebody's own program under measurement: its launch, log, probe and end."""
