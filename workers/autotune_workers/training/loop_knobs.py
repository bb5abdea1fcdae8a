"""What the native training loop does with each knob: it reads those that its trainer says it reads (`autotune.trainers.catalog.native`)."""

from __future__ import annotations

from autotune.spec import KnobUse
from autotune.trainers.catalog.native import NativeTrainer

NATIVE_LOOP = KnobUse(
    part="native training loop",
    reads=NativeTrainer.reads,
    neutral=NativeTrainer.neutral,
    cannot=NativeTrainer.cannot,
)
"""A config with a knob that it does not know fails as invalid before anything is built."""
