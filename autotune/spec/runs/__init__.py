"""What was run: trials, measurements, observed runs and dry runs."""
