"""How a study is run: the loop and what it works with.

loop.py         Loop: polls the runner, asks the controller, carries out its commands. The first file to read
controller/     Controller: what to do next, as a pure state machine
running.py      submit, run and act on studies: what `autotune tune` and the service call
assembly.py     a spec worked out: space, predictions, baseline, searcher, runner
target_findings.py how the configs of a target rank, from proxies
preflight.py    what the runner or this machine cannot run, found before anything is started; a runner that is passed as an object
check/          a few real steps of a program before its study begins, and `autotune check`
lease.py        StudyLease: the right to write for a study, renewed by a thread     process_id.py   who holds it
quick_calibration.py  a short calibration of a cluster that was never measured, and the first profile of a model that code builds
beginning.py    what a controller begins with, kept in the history
references.py   fp32 losses of earlier studies                                      progress.py     events for the live view, callbacks
"""
