"""Records of runs: trials, measurements, observed runs and dry runs."""
