"""Processes on this machine. Linux.

rank.py              a rank process: takes orders, trains, reports
rank_processes.py    the owner's side of rank processes: start, messages, log, end
children.py          child processes that become ranks: forked from the fork server, or started separately
fork_server.py       process that imports torch once and then forks ranks in milliseconds
message_channel.py   the owner's end of the channel to a rank or a keeper
attempt_logs.py      stores the logs of a failed attempt's nodes
machine.py           processes, memory (also on GPUs), CPUs near a GPU, network interfaces
machine_turn.py      lock for measuring on this machine

program/             places.py       protocols of an attempt's nodes and of what provides them
                     local_places.py nodes on this machine
                     launch.py       a trainer's launch -> the order for each node
                     environment.py  variables that a program inherits           account.py  the user that runs it
                     attempt.py      one attempt on its nodes: keepers' messages -> orders and events; the base of its runners
                     state.py        state machine of one attempt: log lines and the probe's reports -> steps and verdict
                     log.py          one node's log: lines -> steps; timing by arrival if lines have no times
                     probe.py        the probe's reports                         second_witness.py compares the log with the probe
                     evidence.py     how the nodes ended -> the one failure
                     observed.py     a program that the user started, by its output
keeper/              keeper.py       process that starts a program on its node and ends all its processes
                     owner.py        the owner's side of it                      log.py  forwards the log with arrival times, bounded in rate and memory
failure/             cause.py        one node's log -> the cause of its failure  traceback_reader.py  tracebacks in a log
                     launcher_words.py   how a rank ended, from launchers' messages
                     flight_recorder.py  collectives that each rank had begun, from NCCL's flight recorder
"""
