"""Runs one attempt on a gang of ranks, independent of how ranks are started.

attempt_runner.py  base class of runners, for gangs and programs: polling, queueing, waiting for placement
gang_runner.py     runner over pools of warm ranks (base of the local and the ray runner), and the protocols of pools and ranks
gang.py            one attempt as a state machine: messages and time in, orders and events out
ladder.py          how an attempt is ended: stop, abort, SIGTERM, SIGKILL
deadlines.py       deadlines of an attempt
members.py         state of each rank, and which one blocks the others
step_series.py     reported steps, and the measurement computed from them
exception_kinds.py name and text of an exception -> kind of failure
failure_kind.py    evidence of all ranks -> one failure
wire.py            messages between runner and ranks, one JSON object per line
"""
