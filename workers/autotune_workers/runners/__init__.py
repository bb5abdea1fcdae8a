"""The registered runners. Each is a `TrialRunner` of `autotune.ports`.

local.py            rank processes on this machine, and the programs of other trainers
ray.py              rank actors on a Ray cluster
any_trainer.py      what these two share
slurm.py            programs on the nodes of a Slurm job, without Ray
machine_limits.py   what this machine cannot run
ray_train.py        a Ray Train trainer that Python code passes
simulated.py        no processes: the outcome comes from the cost model, with noise and faults
"""
