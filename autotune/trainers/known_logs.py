"""Logs of trainers that are known by their form, whoever starts them: the number of a step, its loss and gradient norm, and what a number counts.

    Composer    [batch=12/100]:                     and rows below it: `Train loss/train/total: 5.1`
    OLMo        [step=12/1000,epoch=0]              and rows below it: `train/CE loss=5.1`, `train/Z loss=0.01`
    fairseq     train_inner | {"loss": "5.1", ..., "num_updates": "12", "gnorm": "1.2"}, or `epoch 001: 12 / 100 loss=5.1, num_updates=12`
    Lightning   bars that count batches, in a log that names its devices as Lightning does

Rows of another name are no losses (Z loss, auxiliary and validation losses), and their rates are of one device or of the whole job: steps are timed by when the line that
numbers them arrives. Forms are those of composer 0.28, olmo 0.6, olmo-core 2, fairseq 0.12 and lightning 2.6.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import final

from autotune.trainers.patterns import MAX_SEARCHED
from autotune.trainers.step_metrics import StepMetrics, clean, number

STEPS, MICRO_BATCHES = "steps", "micro-batches"
_NUMBER = r"([-+]?[0-9][0-9,.]*(?:[eE][-+]?[0-9]+)?|[-+]?nan|[-+]?inf)"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLog:
    """How one trainer writes its steps."""

    number: re.Pattern[str]
    """the line that numbers a step"""
    loss: re.Pattern[str]
    """in that line, or in a row below it"""
    norm: re.Pattern[str]


KNOWN = (
    KnownLog(
        number=re.compile(r"^\[(?:epoch=\d{1,9}(?:/\d{1,9})?\]\[)?batch=(\d{1,12})(?:/\d{1,12})?\]:"),
        loss=re.compile(rf"^\s*(?:Train )?loss/train/total: {_NUMBER}"),
        norm=re.compile(rf"^\s*(?:Train )?l2_norm/grad/global: {_NUMBER}"),
    ),
    KnownLog(
        number=re.compile(r"(?:^|\s)\[step=(\d{1,12})(?:/\d{1,12})?[,\]]"),
        loss=re.compile(rf"^\s*train/(?:CE loss|CrossEntropyLoss)[=:] ?{_NUMBER}"),
        norm=re.compile(rf"^\s*optim/total[ _]grad[ _]norm[=:] ?{_NUMBER}"),
    ),
    KnownLog(
        number=re.compile(
            r"(?:train_inner|epoch \d{1,9}:\s{1,9}\d{1,12} ?/ ?\d{1,12}).{0,300}?(?<![a-z_])num_updates['\"]?[=:] ?['\"]?(\d{1,12})"
        ),
        loss=re.compile(rf"(?<![a-z_])loss['\"]?[=:] ?['\"]?{_NUMBER}"),
        norm=re.compile(rf"(?<![a-z_])gnorm['\"]?[=:] ?['\"]?{_NUMBER}"),
    ),
)
_LIGHTNING = re.compile(
    r"^(?:INFO: ?)?(?:GPU available: (?:True|False)|TPU available: (?:True|False)|\W{0,3} ?Tip: .{0,80}litlogger|`Trainer\.fit` )"
)
"""how Lightning begins and ends"""


def is_lightnings(line: str) -> bool:
    """Whether a line shows that Lightning trains: its bars count batches."""
    return _LIGHTNING.match(clean(line)[:MAX_SEARCHED]) is not None


def is_known_line(line: str) -> bool:
    """Whether it numbers a step, or is a row of one."""
    text = clean(line)[:MAX_SEARCHED]
    return any(log.number.search(text) or log.loss.match(text) or log.norm.match(text) for log in KNOWN)


MARKS = (
    "batch=",
    "[step=",
    "num_updates",
    "loss/train/total",
    "l2_norm/grad",
    "train/CE loss",
    "CrossEntropyLoss",
    "grad norm",
    "grad_norm",
)
"""each line that tells has one of these"""


@final
class KnownLogs:
    """Reads one program's log: the number of a step ends it; losses and norms of the rows below belong to it."""

    def __init__(self) -> None:
        self._log: KnownLog | None = None

    def read(self, line: str) -> StepMetrics | None:
        """What the line says; None where it is of none of these."""
        text = clean(line)[:MAX_SEARCHED]
        for log in KNOWN if self._log is None else (self._log,):
            if found := log.number.search(text):
                self._log = log
                return StepMetrics(
                    step=int(found[1]),
                    loss=_first(log.loss, text),
                    grad_norm=_first(log.norm, text),
                    ends_step=True,
                    counts=STEPS,
                )
        if self._log is None:
            return None
        loss, norm = _first(self._log.loss, text), _first(self._log.norm, text)
        return None if loss is None and norm is None else StepMetrics(loss=loss, grad_norm=norm, counts=STEPS)


def _first(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.search(text)
    return number(found[1]) if found else None
