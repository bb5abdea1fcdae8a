"""Why a training is slower than it could be: evidence of every rank in, findings with their cost
out. Pure: it runs and reads nothing.

evidence.py    what was seen of ranks, nodes and links         laws.py            all laws together: when a cause may be claimed
collect.py     evidence of the probe's reports                 own_time.py        laws of what ranks do with their own time
critical.py    what a step would take without a part of it     between_ranks.py   laws of what ranks wait for in others
finding.py     a finding, and all of them as an answer         shared_machine.py  the law of processors that others use
words.py       an answer as lines of text                      readings.py        laws of readings without phases
log_words.py   lines of a log that speak of a cause            profiled.py        what torch's profiler says of a step
out_of_line.py a GPU, node or link that differs from others    seen_at.py         which rank and place a finding is about
"""

from autotune.diagnosis.collect import evidence_of
from autotune.diagnosis.evidence import Evidence, Link, Node, Place, Rank
from autotune.diagnosis.finding import CLASSES, Diagnosis, Finding
from autotune.diagnosis.laws import diagnose
from autotune.diagnosis.words import lines_of

__all__ = [
    "CLASSES",
    "Diagnosis",
    "Evidence",
    "Finding",
    "Link",
    "Node",
    "Place",
    "Rank",
    "diagnose",
    "evidence_of",
    "lines_of",
]
