"""Studies as jobs of Slurm: what is written and read without one, and stories on a real one
(`tests.nodes.slurm_cluster`)."""
