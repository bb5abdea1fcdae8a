"""How a study is run: the loop and what it works with.

loop.py         Loop: polls the runner, asks the controller, carries out its commands. The first file to read
controller/     Controller: what to do next, as a pure state machine
running.py      submit, run and act on studies: what `autotune tune` and the service call
assembly.py     a spec worked out: space, predictions, baseline, searcher, runner
first_profile.py the profile of a model that code builds, before its first study
target_findings.py how the configs of a target rank, from proxies
preflight.py    what the runner or this machine cannot run, found before anything is started
check/          a few real steps of a program before its study begins, and `autotune check`
lease.py        StudyLease: the right to write for a study, renewed by a thread     process_id.py   who holds it
quick_calibration.py  a short calibration before a study whose cluster was never measured
beginning.py    what a controller begins with, kept in the history              environment.py  release, libraries, processor
replay/         whether the decisions in a history follow: for `autotune store check`
references.py   fp32 losses of earlier studies                                      progress.py     events for the live view
passed_runner.py  a runner that Python code passes as an object
"""
