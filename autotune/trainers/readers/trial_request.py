"""The native trainer's request (`request.json`): all of a workload and a config as plain values."""

from __future__ import annotations

import math

from autotune.errors import SpecError
from autotune.spec.config import FIELDS
from autotune.trainers.present_configuration import KeyReader, PresentConfiguration, Reading, parse_document


def read(present: PresentConfiguration) -> Reading:
    """What the request says. Raises `SpecError` for JSON that is none."""
    name, text = present.named(".json")
    document = parse_document(name, text)
    config, workload = document.get("config"), document.get("workload")
    if not isinstance(config, dict) or not isinstance(workload, dict):
        raise SpecError(
            f"{name} is not a request for the native trainer: it has no config and workload",
            remedy="give the request.json of an exported folder",
            field="FILE",
        )
    keys = KeyReader(document, name)
    batch = [keys.count(f"config.{name}") or 1 for name in ("micro_batch_size", "accumulation_steps", "dp")]
    options = {name: keys.number(f"trainer_options.{name}") for name in ("learning_rate", "loss_scale")}
    return Reading(
        knobs={knob: config[knob] for knob in FIELDS if knob in config},
        model=dict(workload.get("model") or {}),
        seq_len=keys.count("workload.seq_len"),
        global_batch_size=math.prod(batch),  # a workload may allow several
        optimizer=keys.text("workload.optimizer") or "",
        cluster=keys.text("workload.cluster.name") or "",
        options=options,
        remarks=tuple(keys.remarks),
    )
