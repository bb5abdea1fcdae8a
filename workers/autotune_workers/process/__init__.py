"""Processes on this machine. Linux.

rank.py              a rank: takes orders, trains, reports
rank_processes.py    the owner's side of a rank: start, messages, log, end
children.py          child processes that become ranks: forked, or started on their own
fork_server.py       has imported torch once and forks a rank in milliseconds
program_runner.py    runs programs of other trainers
program.py           one attempt of a program as a state machine: log lines in, steps and verdict out
subreaper.py         starts a program and ends all that it leaves behind
machine.py           what the system says of processes and memory
"""
