"""Observes training runs that users start themselves, without changing them: a review before the
run, measurements after it, and a record in the results database.

rank.py      detects the first rank of a job         in_place.py   runs the command, with an adviser process that reads its output
adviser.py   the adviser process                     words.py      formats what the adviser prints
launch.py    reads the command as a launch           versions.py   finds versions of the libraries that the command uses
advice.py    `autotune.advise(object)`               callback.py   `AutotuneCallback` for transformers and Lightning
objects.py   reads trainers and modules              watched.py    environment variables that inject the probe
"""
