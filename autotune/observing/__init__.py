"""Runs that people start themselves: advice before, what was measured after, and the run kept in
the results database. The run itself is left as it is.

rank.py       which process of a job speaks           in_place.py   the command in this process's place, and the adviser beside it
adviser.py    the adviser                             words.py      what it says
launch.py     the command as a launch on this machine               versions.py   of the libraries that a program imports
"""
