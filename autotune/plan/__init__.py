"""Plans: every valid config with its predicted time and memory, clusters compared, dry runs,
predictions against measurements, and whether a model fits."""
