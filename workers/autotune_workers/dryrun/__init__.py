"""Dry runs: one rank of a job of any size, played in one process without memory for its tensors.

local.py           the dry runner: a process for each run, within limits
process.py         that process
memory_guard.py    its limit of memory
failures.py        what went wrong there, and what to do
stand_ins.py       what is trained in place of what cannot be run dry
taken_for_real.py  libraries run their ordinary code on fake tensors
gpu_kernels.py     what kernels of a GPU keep, where a CPU runs others
played_rank.py     builds the training of one rank and runs two steps of it
fake_answers.py    values that nobody computed
carried_values.py  whole numbers that decide control flow
rank_watch.py      sees every operation of a rank
position.py        phase, micro-batch and module of the moment
memory_ledger.py   every storage that lives
collective_log.py  every collective
work_log.py        FLOPs and matrix products
timeline.py        thins the curve of memory
torch_private.py   what is named of torch that it does not promise to keep
torch_patches.py   what is replaced in torch while a dry run lasts
"""
