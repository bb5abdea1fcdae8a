"""What a step of post-training costs: generation as it is told, and everything else of the step by
its phases.

packing.py    how sequences fall to ranks, mini-batches and micro-batches, simulated from their lengths
update.py     the update: the cost model of a plain step, on the micro-batches that the simulation found; weights from the trainer's shards to the engine
step.py       the phases, one after the other or side by side, with the memory of each; the knobs of post-training as columns
"""

from __future__ import annotations
