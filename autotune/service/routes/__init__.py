"""The routes under /api/v1, one module per subject.

studies.py         submit, list, status, record, trials, best, explain, export, pause, resume, stop, cancel
events.py          a study's history: one page, or a live stream
study_figures.py   a study's figures, their data and drawings
across_studies.py  best configs across all studies, plan
health.py          health, metrics
"""
