"""Keepers on the nodes of an allocation of Slurm: programs run there without Ray, in containers
too.

places.py         the nodes of the allocation as program places: which are free, which are lost, who has connected
keeper_step.py    one step of srun that holds a keeper on each node of an attempt, and a look whether a node answers
node_start.py     what such a step starts on a node: fetches the keeper and becomes it. Its text is sent, so it needs nothing but Python
"""
