"""Gangs of ranks and nodes for programs on a Ray cluster.

connection.py     joins a cluster, or starts one on this machine or in an allocation
slurm_step.py     Ray on the nodes of an allocation of Slurm, as one step       node_start.py  Ray on one of them
capacity.py       how many ranks fit, and whether others wait for a placement
actor_groups.py   the placement groups with actors that a runner holds, warm ones among them
owned_actor.py    what all actors share: one owner at a time, messages kept for it, the end when it is silent
actor_handle.py   the runner's side of an actor
silence.py        when an actor that gives no sign of life counts as lost
names.py          of groups and actors
rank_pools.py     one placement group per gang, with an actor per rank
rank_host.py      the actor of a rank: holds its resources and its process
rank_handle.py    the runner's side of that actor
placement.py      asks for a placement group of whole nodes
node_places.py    one placement group per program, with an actor per node
node_host.py      the actor of a node: holds its resources, and starts a keeper for each attempt
node_handle.py    the runner's side of that actor
node_environment.py  the variables that the runner adds on each node
sent_folders.py   the folders that a runner sends along              program_folder.py  how one is packed and unpacked
message_log.py    an actor's messages, kept until they are confirmed
adoption.py       gangs that the study's last runner left behind
train_loop.py     a Ray Train loop under measurement
janitor.py        an actor that removes placement groups which a killed driver left without actors
watchdog.py       a process that ends Ray's daemons when the starter of a cluster was killed
"""
