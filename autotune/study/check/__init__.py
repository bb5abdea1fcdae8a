"""Checks of a program: a few real steps of it, before a study spends its budget on it.

program_check.py   runs five steps of one or two configs on the study's runner, and reads the log
verdict.py         ready, or what is wrong and what to do
prepared.py        `autotune check`: shows what will be run, then runs the steps
unseen_program.py  the check that `tune` and the service make of a program that is new to the store
"""
