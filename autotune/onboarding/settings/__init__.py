"""Programs that take their settings from a file."""
