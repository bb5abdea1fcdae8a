"""Checks of a program: a few real steps of it, before a study spends its budget on it.

program_check.py   five steps of one config on the study's own runner, and what was understood of the log
verdict.py         what the steps came to, in words: ready, or what is wrong and what to do
prepared.py        `autotune check`: what will be run, then the steps
unseen_program.py  the check that `tune` and the service make of a program which their store has never seen
"""
