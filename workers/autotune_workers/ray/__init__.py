"""Gangs of ranks and nodes for programs on a Ray cluster.

cluster/          connection.py    joins a cluster, or starts one on this machine or in an allocation
                  slurm_step.py    runs Ray on the nodes of a Slurm allocation, as one step      node_start.py  runs Ray on one of them
                  capacity.py      number of ranks that fit, and whether others wait for a placement
                  watchdog.py      process that ends Ray's daemons if a cluster's starter is killed
ranks/            pools.py         one placement group per gang, with an actor per rank
                  host.py          the actor of a rank: holds its resources and its process
                  handle.py        the runner's side of that actor
                  adoption.py      takes over gangs of the study's last runner
nodes/            places.py        one placement group per program, with an actor per node
                  host.py          the actor of a node: holds its resources, and starts a keeper for each attempt
                  handle.py        the runner's side of that actor
                  environment.py   variables that the runner adds on each node
                  program_folder.py  packs and unpacks folders that are sent to nodes

actor_groups.py   a runner's placement groups with their actors, busy or warm
owned_actor.py    base class of actors: one owner at a time, messages kept until confirmed, end without heartbeats
actor_handle.py   the runner's handle of an actor, and when a silent one counts as lost
placement.py      creates placement groups of whole nodes
sent_folders.py   folders that a runner sends to nodes
train_loop.py     measures a Ray Train loop
janitor.py        an actor that removes placement groups left by a killed driver; names of groups and actors
"""
