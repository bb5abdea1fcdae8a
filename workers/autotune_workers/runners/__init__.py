"""The registered runners. Each is a `TrialRunner` of `autotune.ports`.

local.py            rank processes and programs on this machine
ray.py              rank actors and programs on a Ray cluster
any_trainer.py      base class of these two
slurm.py            programs on the nodes of a Slurm job, without Ray
machine_limits.py   checks whether this machine can run a study
ray_train.py        a Ray Train trainer passed by Python code
simulated.py        no processes: outcomes from the cost model, with noise and faults
"""
