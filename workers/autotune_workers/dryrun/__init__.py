"""Dry runs: executes one rank of a job of any size in one process, on fake tensors that take no
memory.

local.py           the dry runner: starts a process with time and memory limits for each run
process.py         main program of that process: substitutes what cannot be run dry, explains errors
memory_guard.py    memory limit of the process
played_rank.py     builds the training of one rank and runs two steps of it
fake_answers.py    results of operations that need values of fake tensors
carried_values.py  known integer values of fake tensors
rank_watch.py      dispatch mode that observes every operation of the rank
position.py        current phase, micro-batch and module
memory_ledger.py   live storages and memory peaks
work_log.py        FLOPs, matrix products and collectives
torch_private.py   private names of torch that dry runs use
torch_patches.py   functions of torch that are replaced during a dry run
"""
