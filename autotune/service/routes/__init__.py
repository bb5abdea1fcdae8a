"""The routes under /api/v1, one module per subject.

studies.py            submit, list, status, record, trials, best, explain, export, pause, resume,
stop, cancel study_annotations.py  notes, tags, deleting a study events.py             a study's
history: one page, or a live stream study_figures.py      a study's figures, their data and drawings
across_studies.py     best configs across all studies, observed runs, plan, review health.py
health, metrics
"""
