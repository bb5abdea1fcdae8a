"""Processes on this machine. Linux.

rank.py              a rank: takes orders, trains, reports
rank_processes.py    the owner's side of a rank: start, messages, log, end
children.py          child processes that become ranks: forked, or started on their own
fork_server.py       has imported torch once and forks a rank in milliseconds
message_channel.py   the owner's end of the channel to a rank or a keeper
attempt_logs.py      the logs of a failed attempt's nodes, kept on disk
machine.py           what the system says of processes, memory (a program's on a GPU, too), CPUs near a GPU, network interfaces
machine_turn.py      the turn to measure on this machine

program/             places.py       the nodes of an attempt as the runner sees them, and where they come from (protocols)
                     local_places.py nodes on this machine
                     launch.py       a trainer's launch as what each node is told to start
                     environment.py  what the program sees of our environment    account.py  the user as whom it runs
                     attempt.py      one attempt on its nodes: messages of the keepers in, orders and events out; the runner of such attempts
                     state.py        one attempt of a program as a state machine: log lines in, steps and verdict out
                     log.py          one node's log: lines in, steps out; times of steps whose lines tell none
                     probe.py        what the probe says                         second_witness.py the log beside the probe
                     evidence.py     how the nodes ended -> the one failure
                     observed.py     a program that somebody started, as its log shows it
keeper/              keeper.py       starts a program on its node and ends all that it leaves behind
                     owner.py        the owner's side of it                      log.py  the log on its way: stamped and bounded
failure/             cause.py        one node's log -> the cause of its failure  traceback_reader.py  the tracebacks in it
                     launcher_words.py   what launchers say of how a rank ended
                     flight_recorder.py  asks NCCL's flight recorder which collectives the ranks of a program had begun
"""
