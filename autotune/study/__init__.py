"""Runs studies: the loop, its controller, and what they need.

loop.py         Loop: polls the runner, asks the controller, carries out its commands. The first file to read
controller/     Controller: what to do next, as a pure state machine
running.py      submit, run and act on studies: called by `autotune tune` and the service
assembly.py     space, predictions, baseline, searcher and runner of a spec
target_findings.py ranking of a target's configs from proxies
preflight.py    checks what the runner and this machine can run, before anything is started; runners passed as objects
check/          runs a few real steps of a program before its study, and for `autotune check`
lease.py        StudyLease: the right to write for a study, renewed by a thread     process_id.py   identity of its holder
quick_calibration.py  a short calibration of a cluster that was never measured, and the first profile of a model built by code
beginning.py    inputs of a controller, stored in the history
references.py   fp32 losses of earlier studies                                      progress.py     events for the live view, callbacks
"""
