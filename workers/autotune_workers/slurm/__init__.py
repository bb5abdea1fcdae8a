"""Runs programs on the nodes of a Slurm allocation without Ray, also in containers: a keeper per
node.

places.py         the nodes of the allocation as program places: free and lost nodes, connections of keepers
keeper_step.py    a step of srun that runs a keeper on each node of an attempt, and a test whether a node answers
node_start.py     program of such a step: fetches the keeper's code and becomes the keeper. Its source is sent, so it needs only Python
"""
