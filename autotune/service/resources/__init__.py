"""The addresses under /api/v1, one module for each subject.

studies.py   submit, list, status, trials, best, export, pause, resume, stop, cancel
events.py    a study's history: a page of it, or a live stream
answers.py   best across history, plan
state.py     health, metrics
"""
