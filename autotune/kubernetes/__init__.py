"""Kubernetes: studies as its jobs.

deadline.py      the time that is left of the job that this process runs in
submission.py    a study as a RayJob: NAME/study.yaml and NAME/job.yaml
"""
