"""Why a training is slower than it could be: evidence of every rank in, findings with their cost out. Pure: it runs and reads nothing.

evidence.py    what was seen of ranks, nodes and links         laws.py       each class of cause, and when it may be claimed
collect.py     evidence of the probe's reports                 log_words.py   lines of a log that speak of a cause
critical.py    what a step would take without a part of it     profiled.py   what torch's profiler says of a step
finding.py     a finding, and all of them as an answer         words.py      an answer as lines of text
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
