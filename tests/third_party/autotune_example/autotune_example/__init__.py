"""Extends autotune with a searcher, a trainer and a runner; `pyproject.toml` registers them.

hill_climbing.py      a searcher: near the best config so far
ddp_script.py         a trainer: a data-parallel script of one's own
recorded_runner.py    a runner: step times from a table, for clusters that are far away
"""
