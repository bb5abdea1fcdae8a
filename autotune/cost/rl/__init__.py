"""Time and memory of a post-training step by phase; the time of generation is stated by the
workload.

packing.py    simulated distribution of sequences over ranks, mini-batches and micro-batches
update.py     the update: the cost model of a plain step on the simulated micro-batches; transfer of weights from the trainer's shards to the engine
step.py       time and memory of the phases, sequential or concurrent; the post-training knobs as columns
"""

from __future__ import annotations
