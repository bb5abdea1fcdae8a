"""Finds why a training is slower than it could be: takes evidence from all ranks, and returns
findings with their cost as a share of the step. Pure functions: no I/O, no processes.

evidence.py     observations of ranks, nodes and links       rules.py           applies all rules and builds the diagnosis
collect.py      evidence from the probe's reports            own_time.py        rules on time that a rank spends by itself
critical.py     step time without one of its parts           between_ranks.py   rules on ranks that wait for each other
finding.py      `Finding` and `Diagnosis`                    shared_machine.py  the rule on CPUs that other processes use
words.py        formats a diagnosis as text                  readings.py        rules on clocks, allocator, log times and knobs
log_hints.py    recognizes causes in log lines               profiled.py        findings from torch's profiler
out_of_line.py  outlier GPUs, nodes and links                seen_at.py         the rank and source line of a finding
"""

from autotune.diagnosis.collect import evidence_of
from autotune.diagnosis.evidence import Evidence, Link, Node, Place, Rank
from autotune.diagnosis.finding import CLASSES, Diagnosis, Finding
from autotune.diagnosis.rules import diagnose
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
