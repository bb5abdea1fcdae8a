"""Dry runs: one rank of a job of any size, played in one process without memory for its tensors.

local.py           the dry runner: a process for each run, within limits
process.py         that process: what is trained in place of what cannot be run dry, what went wrong there
memory_guard.py    its limit of memory
played_rank.py     builds the training of one rank and runs two steps of it, as on a GPU and by ordinary code of libraries
fake_answers.py    values that nobody computed
carried_values.py  whole numbers that decide control flow
rank_watch.py      sees every operation of a rank
position.py        phase, micro-batch and module of the moment
memory_ledger.py   every storage that lives
work_log.py        FLOPs, matrix products, and every collective
torch_private.py   what is named of torch that it does not promise to keep
torch_patches.py   what is replaced in torch while a dry run lasts
"""
