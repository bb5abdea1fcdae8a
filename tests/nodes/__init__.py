"""Machines of a cluster, played by namespaces of this one, so that addresses, ports, shared memory
and failures are real. Linux, root.

network.py       a bridge and the nodes at it; what can happen to a node: power, link, speed, standstill
slurm_cluster.py a real Slurm on them: controller and login node on this machine, jobs on the nodes
ray_nodes.py     a Ray cluster on them: the head and the driver on this machine, the processors on the nodes

A node has its own network, processes, hostname, hosts file, /dev/shm and temporary folder. The file
system is shared.
"""
