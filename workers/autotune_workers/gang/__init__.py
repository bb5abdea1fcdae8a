"""One attempt on a gang of ranks, whatever starts the ranks.

attempt_runner.py  runs attempts of either kind: the turn that gangs and programs share, and the wait for a place
gang_runner.py     runs attempts on rank pools: what the local and the ray runner share; a rank pool is the ranks of an attempt as it sees them (protocols)
gang.py            one attempt as a state machine: messages and time in, orders and events out
ladder.py          how an attempt is ended: stop, abort, SIGTERM, SIGKILL
deadlines.py       when an attempt is late
members.py         what is known of each rank, and which one holds up the others
step_series.py     reported steps, and the measurement made of them
failure_kind.py    evidence of all ranks -> the one failure
wire.py            the messages between runner and ranks, one JSON object per line
"""
