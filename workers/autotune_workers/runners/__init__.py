"""The registered runners. Each is a `TrialRunner` of `autotune.ports`.

local.py        rank processes on this machine, and the programs of other trainers
ray.py          rank actors on a Ray cluster
simulated.py    no processes: the outcome comes from the cost model, with noise and faults
"""
