"""Slurm: studies as its jobs.

allocation.py    the job that this process belongs to: nodes, time left, steps on its nodes (environment, srun, squeue, scontrol)
hardware.py      the cluster `slurm`: what the nodes of the allocation have, by one step that looks
submission.py    a study as a job: NAME/study.yaml and NAME/job.sbatch, validated on the login node
"""
