"""What programs print about their steps: lines of patterns, JSON objects, Hugging Face's loss
dictionaries, tqdm's progress bars, and known logs.

A time comes from the line itself: seconds of a step, or a rate. A program that logs neither is
timed by the arrival of its step lines (`StepMetrics.ends_step`); who reads the log knows when they
arrive. A printed time has a resolution: `0.41` stands for 0.405 to 0.415.

Logs of trainers that are known by their form, whoever starts them: the number of a step, its loss
and gradient norm, and what a number counts.

    Composer    [batch=12/100]:                     and rows below it: `Train loss/train/total: 5.1`
    OLMo        [step=12/1000,epoch=0]              and rows below it: `train/CE loss=5.1`, `train/Z loss=0.01`
    fairseq     train_inner | {"loss": "5.1", ..., "num_updates": "12", "gnorm": "1.2"}, or `epoch 001: 12 / 100 loss=5.1, num_updates=12`
    timm        Train: 0 [  12/1251 (  1%)]  Loss: 6.9 (6.9)  Time: 0.4s
    litgpt      Epoch 1 | iter 48 step 12 | loss train: 5.1, val: n/a | iter time: 80.1 ms: `iter` counts micro-batches, as its time does
    Lightning   bars that count batches, in a log that names its devices as Lightning does

Lines that number the batches of the data loader, of which accumulation takes several for a step:

    torchvision's ImageNet example, MoCo    Epoch: [0][  12/5005]  Time  0.1 ( 0.4)  Data ...  Loss 6.9e+00 (6.9e+00)
    MetricLogger (DeiT, DINO, MAE, LAVIS)   Epoch: [0]  [  12/5004]  eta: 1:12:15  lr: 0.1  loss: 6.9 (6.9)  time: 0.4
    mmengine, XTuner                        Iter(train) [  12/2000]  lr: 2.0e-05  eta: 1:10:00  time: 0.5  loss: 1.2
    Swin Transformer                        Train: [0/300][12/1251]  eta 0:12:15 lr 0.1  time 0.5 (0.9)  loss 6.9 (6.9)

Numbers that begin anew with each epoch go on where the last one ended.

Rows of another name are no losses (Z loss, auxiliary and validation losses), and their rates are of
one device or of the whole job: steps are timed by when the line that numbers them arrives. Forms
are those of composer 0.28, olmo 0.6, olmo-core 2, fairseq 0.12 and lightning 2.6.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

from autotune.errors import SpecError
from autotune.spec.checks import nearest
from autotune.trainers.logs.patterns import MAX_SEARCHED, compile_pattern, mark
from autotune.trainers.logs.step_metrics import (
    LineReader,
    LineTest,
    StepMetrics,
    clean,
    number,
    number_in,
)
from autotune.trainers.logs.steplines import MEASURED, parse_step_line

STEPS, MICRO_BATCHES = "steps", "micro-batches"
_NUMBER = r"([-+]?[0-9][0-9,.]*(?:[eE][-+]?[0-9]+)?|[-+]?nan|[-+]?inf)"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLog:
    """How one trainer writes its steps."""

    number: re.Pattern[str]
    """the line that numbers a step, by its last group; the group `epoch` where the number begins
    anew with each"""
    loss: re.Pattern[str]
    """in that line, or in a row below it"""
    norm: re.Pattern[str]
    has_rows: bool = False
    """whether rows below the line say more of the step"""
    counts: str = STEPS
    """what it numbers"""


_LOSS_THERE = re.compile(rf"(?<![\w-])loss(?: train)?:? *{_NUMBER}", re.IGNORECASE)
_NORM_THERE = re.compile(rf"(?<![\w-])grad_norm:? *{_NUMBER}")
_OF = r" *(\d{1,12})/\d{1,12}"


KNOWN = (
    KnownLog(
        number=re.compile(
            r"^\[(?:epoch=(?P<epoch>\d{1,9})(?:/\d{1,9})?\]\[)?batch=(\d{1,12})(?:/\d{1,12})?\]:"
        ),
        loss=re.compile(rf"^\s*(?:Train )?loss/train/total: {_NUMBER}"),
        norm=re.compile(rf"^\s*(?:Train )?l2_norm/grad/global: {_NUMBER}"),
        has_rows=True,
    ),
    KnownLog(
        number=re.compile(r"(?:^|\s)\[step=(\d{1,12})(?:/\d{1,12})?[,\]]"),
        loss=re.compile(rf"^\s*train/(?:CE loss|CrossEntropyLoss)[=:] ?{_NUMBER}"),
        norm=re.compile(rf"^\s*optim/total[ _]grad[ _]norm[=:] ?{_NUMBER}"),
        has_rows=True,
    ),
    KnownLog(
        number=re.compile(
            r"(?:train_inner|epoch \d{1,9}:\s{1,9}\d{1,12} ?/ ?\d{1,12}).{0,300}?(?<![a-z_])num_updates['\"]?[=:] ?['\"]?(\d{1,12})"
        ),
        loss=re.compile(rf"(?<![a-z_])loss['\"]?[=:] ?['\"]?{_NUMBER}"),
        norm=re.compile(rf"(?<![a-z_])gnorm['\"]?[=:] ?['\"]?{_NUMBER}"),
    ),
    KnownLog(
        number=re.compile(rf"\bTrain: (?P<epoch>\d{{1,9}}) \[{_OF} \( *\d+%\)\]"),
        loss=_LOSS_THERE,
        norm=_NORM_THERE,
    ),
    KnownLog(
        number=re.compile(r"\biter \d{1,12} step (\d{1,12})(?= \||:)"),
        loss=_LOSS_THERE,
        norm=_NORM_THERE,
    ),
    *(
        KnownLog(number=re.compile(form), loss=_LOSS_THERE, norm=_NORM_THERE, counts=MICRO_BATCHES)
        for form in (
            rf"^Epoch: \[(?P<epoch>\d{{1,9}})\]\[{_OF}\]\s+Time\b",
            rf"\b[Ee]poch: \[(?P<epoch>\d{{1,9}})(?:/\d{{1,9}})?\]\s+\[{_OF}\]\s+eta:",
            rf"\bEpoch\(train\)\s+\[(?P<epoch>\d{{1,9}})\]\[{_OF}\]",
            rf"\bIter\(train\)\s+\[{_OF}\]",
            rf"\bTrain: \[(?P<epoch>\d{{1,9}})/\d{{1,9}}\]\[{_OF}\]\s+eta\b",
        )
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
    return any(
        log.number.search(text) or (log.has_rows and (log.loss.match(text) or log.norm.match(text)))
        for log in KNOWN
    )


def is_plain_form(line: str) -> bool:
    """Whether it numbers a step in a form that says all in one line."""
    text = clean(line)[:MAX_SEARCHED]
    return any(log.number.search(text) for log in KNOWN if not log.has_rows)


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
    "Train: ",
    "poch: [",
    "(train)",
    " step ",
)
"""each line that tells has one of these"""


@final
class KnownLogs:
    """Reads one program's log: the number of a step ends it; losses and norms of the rows below
    belong to it."""

    def __init__(self) -> None:
        self._log: KnownLog | None = None
        self._epoch = self._before = self._last = 0

    def read(self, line: str) -> StepMetrics | None:
        """What the line says; None where it is of none of these."""
        text = clean(line)[:MAX_SEARCHED]
        for log in KNOWN if self._log is None else (self._log,):
            if found := log.number.search(text):
                self._log = log
                loss, norm = number_in(text, log.loss), number_in(text, log.norm)
                step = self._numbered(int(found[log.number.groups]), found.groupdict().get("epoch"))
                return StepMetrics(
                    step=step, loss=loss, grad_norm=norm, ends_step=True, counts=log.counts
                )
        if self._log is None or not self._log.has_rows:
            return None
        loss, norm = number_in(text, self._log.loss), number_in(text, self._log.norm)
        return (
            None
            if loss is None and norm is None
            else StepMetrics(loss=loss, grad_norm=norm, counts=STEPS)
        )

    def _numbered(self, number: int, epoch: str | None) -> int:
        """The number, counted on over the epochs before."""
        if epoch is not None and int(epoch) > self._epoch:
            if self._last:
                self._before = self._last + 1 - number
            self._epoch = int(epoch)
        if epoch is None or int(epoch) == self._epoch:
            self._last = max(self._last, self._before + number)
            return self._before + number
        return self._last  # another rank's, late


SCALES: Mapping[str, tuple[str, float]] = {
    **{name: (name, 1.0) for name in MEASURED},
    "step": ("step", 1.0),
    "step_time_ms": ("step_time_s", 1e-3),
    "step_time_us": ("step_time_s", 1e-6),
    "peak_memory_gib": ("peak_memory_bytes", float(1 << 30)),
    "peak_memory_mib": ("peak_memory_bytes", float(1 << 20)),
}
"""names that `metrics` may use, each with its metric and the factor that converts it to the
metric's unit"""
_TIMES = frozenset(
    {"step_time_s", "steps_per_s", "tokens_per_s", "tokens_per_s_per_gpu", "samples_per_s"}
)
_LOSS = re.compile(r"\{'loss': '?([-+0-9.eEnaif]+)'?")
_NORM = re.compile(r"'grad_norm': '?([-+0-9.eEnaif]+)'?")
_STEP_TIME = re.compile(r"'step_time': '?([0-9]{1,9}(?:\.[0-9]{1,9})?)")
_SPEED = re.compile(r"'train_samples_per_second': '?([0-9.eE+]+)'?")
_BAR = re.compile(
    r"^([^|%]{0,60}?)[ :]*\d{1,3}%\|[^|]{0,300}\| *(\d{1,12})/(\d{1,12}) \[[^\]]{0,80}?(?:it/s|s/it)"
)
_ANY_BAR = re.compile(
    r"^([^|%]{0,60}?)[ :]*\d{1,3}%\|[^|]{0,300}\| *\d{1,12}/\d{1,12} \[([^\]]{0,80})"
)
_BAR_LOSS = re.compile(r"[ ,](?:train[_/]|step_)?loss(?:_step)?=([-+0-9.eEnaif]+)")
_PER_STEP = re.compile(
    r"(?<![a-z])(?:it|iter\w*|step|batch|update)(?:e?s)?/s|s/(?:it|step|batch|update)|\?|^[\d:]+<,"
)
"""the last without any rate, as NeMo draws its bars"""
_TRAINING = re.compile(r"(train|step|iter|epoch)|$", re.IGNORECASE)


def parse_loss_dictionary(line: str) -> StepMetrics | None:
    """The dictionaries of Hugging Face's Trainer: `{'loss': 2.31, 'grad_norm': 0.8, ...}` (quoted
    numbers from release 5 on) and, at the end, the speed of the whole run. TRL's trainers that
    generate print the seconds of the step, generation included, beside what they completed."""
    text = clean(line)
    if loss := _LOSS.search(text):
        seconds = number_in(text, _STEP_TIME) if "'completions/" in text else None
        return StepMetrics(
            loss=number(loss[1]), grad_norm=number_in(text, _NORM), step_time_s=seconds
        )
    if speed := _SPEED.search(text):
        return StepMetrics(samples_per_s=number(speed[1]))
    return None


def is_other_bar(text: str) -> bool:
    """Whether the line is tqdm's bar over something else than steps, as loading and preparing the
    data draw it:
    `Tokenizing:  15%|█▍ | 326/2232 [00:00<00:01, 3234.65 examples/s]`."""
    found = _ANY_BAR.match(text)
    return found is not None and not (
        _TRAINING.match(found[1].strip()) and _PER_STEP.search(found[2])
    )


def _first_word(said: str) -> str:
    """The word by which a bar is named, whatever numbers follow it."""
    found = re.match(r"[A-Za-z]+", said)
    return found[0].lower() if found else ""


def _counted(said: str) -> str:
    """The first number of a description: which epoch it is."""
    found = re.search(r"\d+", said)
    return found[0] if found else ""


@final
class ProgressBars:
    """tqdm's bars as step numbers that rise: a bar that starts anew, as for the next epoch, goes on
    where the last one was.

    Bars with a description count only when it begins with train, step, iter or epoch: others load
    or prepare something. A bar is known by its total and by the words of its description: the
    numbers in it (`epoch 1 iter 3: train loss 5.21`) change from step to step. A bar inside an
    unfinished one, as of an evaluation, counts nothing.
    """

    def __init__(self) -> None:
        self._bar: tuple[str, int] | None = None
        self._said = ""
        self._before = self._last = 0

    def step_of(self, line: str) -> int | None:
        """How many steps are done; None for a line that is no bar of a training."""
        found = _BAR.match(clean(line)[:MAX_SEARCHED])
        if found is None or not _TRAINING.match(found[1].strip()):
            return None
        said, total, done = found[1].strip(), int(found[3]), int(found[2])
        bar = (_first_word(said), total)
        if self._bar is not None and total == self._bar[1]:
            is_next = (
                done <= 1
                and done < self._last
                and (self._last >= total or _counted(said) != _counted(self._said))
            )
            if done < self._last and not is_next:
                return None  # another rank's, late
        elif self._bar is not None:
            is_named = bool(bar[0]) and not self._bar[0]
            if 0 < self._last < self._bar[1] and not is_named:
                return None  # a bar inside it
            is_next = True
        else:
            is_next = False
        if is_next:
            self._before += self._last
        self._bar, self._said, self._last = bar, said, done
        return self._before + done


def _is_stock_line(line: str) -> bool:
    text = clean(line)[:MAX_SEARCHED]
    is_known = is_known_line(line) or is_lightnings(line)
    return bool(
        is_known or _BAR.match(text) or parse_step_line(line) or parse_loss_dictionary(line)
    )


STOCK_LINES = LineTest(
    may_tell=_is_stock_line, marks=("{", "%|", "'train_samples", "available: ", *MARKS)
)
"""lines of which `stock_reader` may read something, whatever was before them"""


def stock_reader() -> LineReader:
    """Reads one program's log without any patterns: JSON objects, loss dictionaries, progress bars,
    and the logs of trainers that are known by their form.

    A bar's loss (`set_postfix(loss=...)`) is that of the step before where tqdm draws the new count
    first; all configs have it so. What a bar counts is known of Lightning's alone.
    """
    bars, known, of_bars = ProgressBars(), KnownLogs(), ""

    def read(line: str) -> StepMetrics | None:
        nonlocal of_bars
        if (told := known.read(line)) is not None:
            return told
        if not of_bars and is_lightnings(line):
            of_bars = MICRO_BATCHES
        if (step := bars.step_of(line)) is not None:
            loss = number_in(clean(line)[:MAX_SEARCHED], _BAR_LOSS)
            return StepMetrics(step=step, loss=loss, ends_step=True, counts=of_bars)
        found = parse_step_line(line) or parse_loss_dictionary(line)
        if found is None:
            return None
        is_dictionary = "'loss'" in line
        counts = STEPS if is_dictionary or found.step is not None else ""
        is_timed = any(getattr(found, name) is not None for name in _TIMES)
        return replace(
            found,
            ends_step=not is_timed and (found.step is not None or is_dictionary),
            counts=counts,
        )

    return read


def pattern_reader(asked: Mapping[str, object]) -> LineReader:
    """Reads a log by regular expressions, one with one group for each metric. Raises `SpecError`
    for names and patterns that are not allowed.

    Where none of them is a time, a line with a step number ends a step, or with a loss if steps
    have no numbers.
    """
    patterns = {}
    for name, pattern in asked.items():
        if name not in SCALES:
            raise SpecError(
                f"there is no metric {name!r}",
                remedy=nearest(name, SCALES) or f"metrics: {', '.join(SCALES)}",
                field=f"trainer.metrics.{name}",
            )
        patterns[name] = compile_pattern(pattern, field=f"trainer.metrics.{name}")
    is_timed = any(SCALES[name][0] in _TIMES for name in patterns)
    step_or_loss = "step" if "step" in patterns else "loss"
    ends_step = "" if is_timed else step_or_loss
    if not is_timed and ends_step not in patterns:
        raise SpecError(
            "metrics must identify steps, but have no time, rate, step number or loss",
            remedy="add one of step_time_s, steps_per_s, tokens_per_s, samples_per_s, step and loss",
            field="trainer.metrics",
        )

    def read(line: str) -> StepMetrics | None:
        text = clean(line)[:MAX_SEARCHED]
        values: dict[str, Any] = {}
        for name, find in patterns.items():
            word = find(text)
            value = number(word)
            if word is None or value is None:
                continue
            metric, factor = SCALES[name]
            values[metric] = (
                int(value) if metric == "step" and abs(value) < 1e15 else value * factor
            )
            if metric == "step_time_s":
                values["resolution_s"] = _last_digit(word) * factor
        if ends_step in values:
            return StepMetrics(**values, ends_step=True)
        # a number alone tells which step the next lines are of
        return StepMetrics(**values) if values else None

    return read


def pattern_marks(asked: Mapping[str, object]) -> tuple[str, ...]:
    """Texts of which each line that `pattern_reader` reads has one; empty where a pattern has
    none."""
    marks = tuple(mark(str(pattern)) for pattern in asked.values())
    return marks if all(marks) else ()


def _last_digit(word: str) -> float:
    """What the last digit of a printed number stands for; 0 where it has an exponent."""
    _, point, decimals = word.partition(".")
    if not word.replace(".", "").replace(",", "").isdigit():
        return 0.0
    return 10.0 ** -len(decimals) if point else 1.0
