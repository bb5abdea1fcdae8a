"""Lightning's progress bar as optimizer steps.

    Epoch 0:  67%|██████▋   | 4/6 [00:00<00:00, 44.31it/s]                              drawn when batch 4 is done,
    Epoch 0:  67%|██████▋   | 4/6 [00:00<00:00, 44.14it/s, v_num=0, train_loss=0.482]   and again with its metrics

The bar counts batches. A launch has it drawn once per optimizer step, so the first count that is not 0 is the batches of a step. With `max_steps` the
total is a number of optimizer steps, which the count passes: the bar is drawn at that count too, and has no total from then on.
"""

from __future__ import annotations

import re

from autotune.trainers.logs.patterns import MAX_SEARCHED
from autotune.trainers.logs.step_metrics import LineReader, StepMetrics, clean, number_in
from autotune.trainers.logs.steplines import parse_step_line

_BAR = re.compile(r"^Epoch (\d{1,9}):[^|]{0,20}\|[^|]{0,300}\| *(\d{1,12})/(\d{1,12}|\?) \[")
_LOSS = re.compile(r"[ ,](?:train[_/])?loss(?:_step)?=([-+0-9.eEnaif]+)")


def is_bar_line(line: str) -> bool:
    """Whether `bar_reader` reads the line as a bar."""
    return _BAR.match(clean(line)[:MAX_SEARCHED]) is not None


def bar_reader() -> LineReader:
    """Reads one program's log: bars, and JSON objects of a program that prints them."""
    per_step, before, last = 0, 0, (0, 0)

    def read(line: str) -> StepMetrics | None:
        nonlocal per_step, before, last
        text = clean(line)[:MAX_SEARCHED]
        found = _BAR.match(text)
        if found is None:
            return parse_step_line(line)
        epoch, batches = here = (int(found[1]), int(found[2]))
        if epoch != last[0] and per_step:
            before += -(-last[1] // per_step)  # the last step of an epoch may have fewer batches
        is_drawn_again, last = here == last, here
        if not batches or (not per_step and found[2] == found[3]):
            return None
        per_step = per_step or batches
        if not is_drawn_again or batches % per_step:
            return None
        return StepMetrics(step=before + batches // per_step, loss=number_in(text, _LOSS), ends_step=True)

    return read
