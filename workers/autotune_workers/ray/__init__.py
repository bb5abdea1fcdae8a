"""Gangs of ranks and nodes for programs on a Ray cluster.

cluster/          connection.py    joins a cluster, or starts one on this machine or in an allocation
                  slurm_step.py    Ray on the nodes of an allocation of Slurm, as one step       node_start.py  Ray on one of them
                  capacity.py      how many ranks fit, and whether others wait for a placement
                  watchdog.py      a process that ends Ray's daemons when the starter of a cluster was killed
ranks/            pools.py         one placement group per gang, with an actor per rank
                  host.py          the actor of a rank: holds its resources and its process
                  handle.py        the runner's side of that actor
                  adoption.py      gangs that the study's last runner left behind
nodes/            places.py        one placement group per program, with an actor per node
                  host.py          the actor of a node: holds its resources, and starts a keeper for each attempt
                  handle.py        the runner's side of that actor
                  environment.py   the variables that the runner adds on each node
                  program_folder.py  how a folder that is sent along is packed and unpacked

actor_groups.py   the placement groups with actors that a runner holds, warm ones among them
owned_actor.py    what all actors share: one owner at a time, messages kept until they are confirmed, the end when it is silent
actor_handle.py   the runner's side of an actor, and when one that gives no sign of life counts as lost
placement.py      asks for a placement group of whole nodes
sent_folders.py   the folders that a runner sends along
train_loop.py     a Ray Train loop under measurement
janitor.py        an actor that removes placement groups which a killed driver left without actors; the names of groups and actors
"""
