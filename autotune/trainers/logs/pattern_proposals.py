"""Pattern proposals: `metrics` for the command trainer, guessed from the lines of a log that
nothing else could read.

    clue        how programs write a metric: what stands before its number (`loss: `) and after it (` s/step`)
    candidate   a clue as these lines write it: its text taken literally, with a group in place of the number

A candidate must repeat, and its numbers must behave as the metric does: steps are whole numbers
that never fall, and a time that only grows is a clock. Its pattern must find exactly these numbers
in all lines: the whole word that names a number tells it from others that end alike
(`throughput/batches_per_sec`, `throughput/device/batches_per_sec`). Among the candidates of a
metric the one in most lines counts; a step number of far fewer lines than the rest is that of an
evaluation. The proposal is returned only if the reader that it makes reads steps from the lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product

from autotune.errors import SpecError
from autotune.trainers.logs.formats import is_other_bar, is_plain_form, pattern_reader
from autotune.trainers.logs.patterns import MAX_SEARCHED, compile_pattern
from autotune.trainers.logs.step_metrics import StepMetrics, clean, number

LEAST_LINES = 2
"""lines that must repeat a candidate, and that a proposal must read"""
LEAST_STEPS = 3
"""lines that a step number alone, without a loss or a time, must be in"""
MOST_LINES = 200
"""lines of a log that are looked at: its last ones"""
CONTEXT = 2
"""characters before a clue that a pattern may need to tell it from another one"""
CLOCK_LINES = 4
"""lines in which a time that only grows, to twice its value and more, is taken for a clock"""
_NUMBER = r"([-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?|nan|inf)"
_IS = r"['\"\])]{0,2}\s{0,8}[:=#|]?\s{0,12}['\"]?"
"""what stands between a name and its value"""
_ENDS = r"(?![\w.%])"
_STEP = r"(?:it|iter|iteration|step|batch|update)"
_PER_S = r" ?(?:/|per) ?s(?:ec(?:ond)?)?\b"
_GPU = r" ?(?:/|per) ?(?:gpu|device|rank)\b"
_SECONDS = r"s(?:ec(?:ond)?s?)?"
_END_OF_EPOCH = re.compile(
    r"\bend of (?:the )?epoch|\bepoch(?:\W{0,3}\d+)?[\s_:|,-]{0,3}(?:time|took|duration|done|finished|completed|ended)"
)
"""what stands before the time of a whole epoch"""
_OTHER_FIGURE = re.compile(
    rf"(?:loss|norm|ppl|perplexity|lr|learning[ _]rate|epoch){_IS}$", re.IGNORECASE
)
"""what stands before a number that is none of a unit's that follows it: `loss 2.31 ms/step 38`"""
_IS_LABEL = re.compile(r"['\"\])]{0,2}\s{0,8}[:=]")
"""what stands after a unit that names the number behind it: `ms/step: 38`"""
_NOT_TRAINING = re.compile(
    r"(?:(?<![a-z])z|val|valid|validation|eval|evaluation|test|aux|auxiliary|balanc(?:e|ing)|router|best|target|kl|reward|critic|value|entropy)[\s_/.:-]*$"
)
_OTHER_TIME = re.compile(
    r"(?:data|load(?:ing|er)?|dataloader|batch[ _]?gen\w*|tokeniz\w*|eval\w*|valid\w*|val|test|ckpt|checkpoint\w*|sav(?:e|ing)|compil\w*|init\w*|start(?:up)?|"
    r"setup|download\w*|build\w*|writ(?:e|ing)|read(?:ing)?|(?:fetch|copy|transfer|upload|wait|encod|decod|process|pack|gather|sync)\w*|comm\w*|all[_ ]?reduce|"
    r"forward|backward|fwd|bwd|optimizer|rollout|generat\w*|infer\w*|sampl\w*|eta|remaining|left|total|elapsed|since|wall|cumulative|so far)[\s_/.:(-]*(?:\w{1,8}[ _])?$"
)
"""what stands before a time that is none of a step: of loading, evaluating, saving, or of the whole
run"""
_TIME_OF_PASS = re.compile(
    r"\b(?:forward|backward|fwd|bwd)[ _](?:pass[ _])?(?:time|latency|duration)\W{1,3}(\d+(?:\.\d+)?)"
)
"""the time of a part of a step, which the step's is not below"""
_TIME_WORD = re.compile(r"time|dt|took|duration|latency")
_OF_RANK = re.compile(r"(?:device|gpu|rank|local|worker)[\s_/.:-]*$")
"""what stands before a rate of one rank"""
_OF_OTHERS = {
    "loss": _NOT_TRAINING,
    **dict.fromkeys(("steps_per_s", "samples_per_s", "tokens_per_s"), _OF_RANK),
}
_PER_STEP = re.compile(rf"per[ _]{_STEP}|{_STEP}[ _]?time")
_FEW = 0.6
"""a step number in fewer lines than this part of the rest's is that of something else"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clue:
    """How programs write a metric."""

    metric: str
    """its name in `metrics`"""
    before: str = ""
    """regular expression of what stands before the number"""
    after: str = _ENDS
    """regular expression of what stands after the number"""
    is_loose: bool = False
    """whether it says no unit: exact clues go first"""

    def found_in(self, line: str) -> Iterator[re.Match[str]]:
        """Where the line writes the metric so."""
        return re.finditer(f"{self.before}{_NUMBER}{self.after}", line, re.IGNORECASE)


def _times(unit: str, metric: str) -> tuple[Clue, ...]:
    """A step's time in one unit: `12 ms/step`, `ms/batch 12`, `iter time (ms): 12`, `time_ms=12`,
    `dt: 12ms`."""
    name = rf"\b(?:[a-z]{{1,16}}[ _]){{0,2}}(?:time|timing|dt|took|duration|latency)(?:[ _]per[ _]{_STEP})?"
    return (
        Clue(metric=metric, before=r"(?<![\w.])", after=rf" ?{unit} ?(?:/|per) ?{_STEP}\b"),
        Clue(metric=metric, before=rf"\b{unit} ?(?:/|per) ?{_STEP}{_IS}"),
        Clue(metric=metric, before=rf"{name}(?: ?\({unit}\)|_{unit}| in {unit}){_IS}"),
        Clue(metric=metric, before=rf"{name}{_IS}", after=rf" ?{unit}(?![\w/])"),
    )


CLUES = (
    Clue(metric="step", before=rf"\b(?:\w{{1,16}}_)?{_STEP}s?{_IS}"),
    Clue(metric="step", before=r"\| *", after=r"/\d+ \["),
    Clue(metric="step", before="^", after=r" *\| *loss\b"),
    Clue(metric="step", before=r"(?<![\w./])", after=rf" ?/ *\d+ {_STEP}e?s\b"),
    *_times("ms", "step_time_ms"),
    *_times("[uµ]s", "step_time_us"),
    *_times(_SECONDS, "step_time_s"),
    Clue(
        metric="step_time_s",
        before=rf"\b(?:{_STEP}|per)(?:[ _](?:time|duration)| \(t\)){_IS}",
        is_loose=True,
    ),
    Clue(metric="step_time_s", before=rf"\b(?:time|dt){_IS}", is_loose=True),
    Clue(metric="step_time_ms", before=r"\| *", after=r" ?ms *(?:\||$)", is_loose=True),
    Clue(metric="steps_per_s", before=r"(?<![\w.])", after=rf" ?(?:{_STEP}s?|batches|its){_PER_S}"),
    Clue(
        metric="steps_per_s",
        before=rf"\b(?:{_STEP}s?|batches|its)(?:/|_per_| per )s(?:ec(?:ond)?)?{_IS}",
    ),
    Clue(
        metric="tokens_per_s_per_gpu", before=r"(?<![\w.])", after=rf" ?tok(?:en)?s?{_PER_S}{_GPU}"
    ),
    Clue(
        metric="tokens_per_s_per_gpu",
        before=rf"\b(?:tps|tgs(?: \(tokens/gpu/second\))?|tok(?:en)?s?(?:/|_per_)s(?:ec(?:ond)?)?(?:/|_per_)(?:gpu|device)){_IS}",
    ),
    Clue(
        metric="tokens_per_s_per_gpu",
        before=rf"\b(?:device|gpu|rank)[/_]tok(?:en)?s?(?:/|_per_| per )s(?:ec(?:ond)?)?{_IS}",
    ),
    Clue(metric="tokens_per_s", before=r"(?<![\w.])", after=rf" ?tok(?:en)?s?{_PER_S}(?!{_GPU})"),
    Clue(metric="tokens_per_s", before=rf"\btok(?:en)?s?(?:/|_per_| per )s(?:ec(?:ond)?)?{_IS}"),
    Clue(
        metric="samples_per_s",
        before=r"(?<![\w.])",
        after=rf" ?(?:samples?|seqs?|sequences|examples?){_PER_S}",
    ),
    Clue(
        metric="samples_per_s",
        before=rf"\b(?:samples?|seqs?|sequences)(?:/|_per_| per )s(?:ec(?:ond)?)?{_IS}",
    ),
    Clue(
        metric="loss",
        before=rf"(?<!\w)(?:(?:reduced[ _])?(?:train|training|lm|total|global|mean|avg|running|ce|nll)[ _/-])?(?:cross[ _]?entropy[ _]?)?loss(?:/train/total| train)?{_IS}",
    ),
    Clue(metric="grad_norm", before=rf"\b(?:grad(?:ient)?s?[ _-]?norm|gnorm){_IS}"),
    Clue(
        metric="peak_memory_gib",
        before=r"\b(?:\w{0,16}mem\w{0,16}|peak|vram|alloc\w{0,8})[a-z ]{0,12}" + _IS,
        after=r" ?Gi?B?\b",
    ),
    Clue(
        metric="peak_memory_mib",
        before=r"\b(?:\w{0,16}mem\w{0,16}|peak|vram|alloc\w{0,8})[a-z ]{0,12}" + _IS,
        after=r" ?Mi?B?\b",
    ),
)
"""in the order of trust; of several times and rates in a log the first is proposed"""
METRICS = tuple(dict.fromkeys(clue.metric for clue in CLUES))
TIMES = tuple(metric for metric in METRICS if "_per_s" in metric or "_time_" in metric)


@dataclass(slots=True)
class Candidate:
    """A clue as the lines write it."""

    clue: Clue
    """the clue that it was found by"""
    numbers: dict[int, str] = field(default_factory=dict)
    """the number that it finds, by line"""
    word: str = ""
    """the rest of the word that its text ends: `throughput/device/` before `batches_per_sec`"""
    texts: list[tuple[str, str]] = field(default_factory=list)
    """what stands before each number (with a little of what stands before that) and after it"""

    def patterns(self) -> Iterator[str]:
        """Regular expressions with one group: the clue alone, and with what stands before it in all
        lines."""
        is_wide = any(
            "  " in text or "\t" in text
            for before, after in self.texts
            for text in (before[CONTEXT:], after)
        )
        before, after = (
            [_literal(text, is_wide) for text in side] for side in zip(*self.texts, strict=True)
        )
        bare = [_literal(text[CONTEXT:], is_wide) for text, _ in self.texts]
        boundary = r"\b" if bare[0][:1].isalnum() else ""
        yield f"{boundary}{bare[0]}{_group(self)}{after[0]}"
        if len(set(before)) == 1:
            yield f"{before[0]}{_group(self)}{after[0]}"
        if self.word:
            yield f"{_literal(self.word, is_wide)}{bare[0]}{_group(self)}{after[0]}"

    def behaves(self) -> bool:
        """Whether the numbers are such as the metric has."""
        values = [value for text in self.numbers.values() if (value := number(text)) is not None]
        if len(values) < LEAST_LINES:
            return False
        if self.clue.metric == "step":
            is_whole = all(text.isdigit() for text in self.numbers.values())
            return is_whole and values[0] < values[-1] and all(a <= b for a, b in pairwise(values))
        if "_time_" in self.clue.metric and len(values) >= CLOCK_LINES:
            return not (all(a < b for a, b in pairwise(values)) and values[-1] >= 2 * values[0])
        return True

    def pattern_in(self, lines: Sequence[str]) -> str:
        """The first of its patterns that finds these numbers and no others; empty when none
        does."""
        return next(
            (pattern for pattern in self.patterns() if _finds(pattern, lines) == self.numbers), ""
        )


def propose_patterns(lines: Sequence[str]) -> dict[str, str]:
    """A regular expression for each metric that the lines seem to hold; empty when nothing in them
    looks like optimizer steps, and for a log of a known form, whose numbers may count something
    else."""
    if is_known_log(lines):
        return {}
    cleaned = (clean(line)[:MAX_SEARCHED] for line in lines)
    texts = [text for text in cleaned if not is_other_bar(text)][-MOST_LINES:]
    lines_of: dict[str, int] = {}
    best: dict[str, str] = {}
    for candidate in _candidates(texts):
        metric, count = candidate.clue.metric, len(candidate.numbers)
        if (
            count > lines_of.get(metric, 0)
            and candidate.behaves()
            and (pattern := candidate.pattern_in(texts))
        ):
            best[metric], lines_of[metric] = pattern, count
    if lines_of.get("step", 0) < _FEW * max(
        (n for metric, n in lines_of.items() if metric in best), default=0
    ):
        best.pop("step", None)
    times = [metric for metric in TIMES if metric in best]
    for metric in times[1:]:
        del best[metric]
    if not times and "loss" not in best and lines_of.get("step", 0) < LEAST_STEPS:
        return {}
    proposal = {metric: best[metric] for metric in METRICS if metric in best}
    return proposal if steps_read(proposal, texts) >= LEAST_LINES else {}


def is_known_log(lines: Sequence[str]) -> bool:
    """Whether its steps are read without patterns, by the form of their lines."""
    return sum(map(is_plain_form, lines)) >= LEAST_LINES


def steps_read(metrics: Mapping[str, str], lines: Sequence[str]) -> int:
    """How many lines end a step for a reader with these patterns; 0 for patterns that are not
    allowed."""
    try:
        read = pattern_reader(metrics)
    except SpecError:
        return 0
    return sum(found is not None and ends_step(found) for found in map(read, lines))


def ends_step(metrics: StepMetrics) -> bool:
    """Whether a line that says this ends a step: it has a time or a rate, or says so."""
    return (
        metrics.ends_step
        or metrics.time_of(tokens_per_step=1, sequences_per_step=1, num_ranks=1) is not None
    )


def _candidates(lines: Sequence[str]) -> list[Candidate]:
    """All of them, those without a unit last."""
    found: dict[tuple[int, str, str, str], Candidate] = {}
    for (order, clue), (index, line) in product(enumerate(CLUES), enumerate(lines)):
        for match in clue.found_in(line):
            if _is_another_figure(clue.metric, line, match):
                continue
            begin, (start, end) = match.start(), match.span(1)
            before, after = line[begin:start], line[end : match.end()]
            word = _rest_of_word(line, begin) if before[:1].isalpha() else ""
            key = (order, _literal(before, is_wide=True), _literal(after, is_wide=True), word)
            candidate = found.setdefault(key, Candidate(clue=clue, word=word))
            if index not in candidate.numbers:
                wider = line[max(0, begin - CONTEXT) : start].rjust(CONTEXT + len(before))
                candidate.numbers[index] = match[1]
                candidate.texts.append((wider, after))
    return sorted(found.values(), key=lambda candidate: candidate.clue.is_loose)


def _is_another_figure(metric: str, line: str, match: re.Match[str]) -> bool:
    """Whether what is around the number says that it is another figure than the clue's."""
    head, is_time = line[: match.start()], "_time_" in metric
    is_unit_behind = match.start() == match.start(1)
    if is_time and _END_OF_EPOCH.search(line[: match.end()].lower()):
        return True
    if is_time and not _PER_STEP.search(match[0].lower()) and _is_other_time(line, match):
        return True
    if is_time and (own := number(match[1])) is not None:
        passes = map(number, _TIME_OF_PASS.findall(line.lower()))
        if any(seconds is not None and seconds > own for seconds in passes):
            return True
    if is_unit_behind and (_OTHER_FIGURE.search(head) or _IS_LABEL.match(line, match.end())):
        return True
    others = _OF_OTHERS.get(metric)
    return others is not None and others.search(head.lower()) is not None


def _rest_of_word(line: str, at: int) -> str:
    """What stands before this place in a word that is a path: `throughput/device/`."""
    found = re.search(r"[A-Za-z_][\w/.-]{0,40}[/.]$", line[:at])
    return found[0] if found else ""


def _is_other_time(line: str, match: re.Match[str]) -> bool:
    """Whether the words before a time, or its own, say that it is of something else than a step."""
    said = line[max(0, match.start() - 24) : match.start(1)].lower()
    before = _TIME_WORD.split(said)[:-1]  # of an earlier time in the line, too
    return _OTHER_TIME.search(before[-1] if before else said) is not None


def _finds(pattern: str, lines: Sequence[str]) -> dict[int, str]:
    """What the pattern finds, by line; nothing when it is not allowed."""
    try:
        find = compile_pattern(pattern, field="trainer.metrics")
    except SpecError:
        return {}
    return {index: word for index, line in enumerate(lines) if (word := find(line))}


def _group(candidate: Candidate) -> str:
    """The group for such numbers, as plain as they allow. A loss may become nan."""
    metric = candidate.clue.metric
    text = "".join(text for text in candidate.numbers.values() if text not in ("nan", "inf"))
    if metric == "step":
        return "([0-9]+)"
    signs = "[0-9.,]+" if "," in text else "[0-9.]+"
    if re.search("[-+eE]", text):
        signs = "[-+0-9.,eE]+"
    return f"({signs}|nan|inf)" if metric in ("loss", "grad_norm") else f"({signs})"


def _literal(text: str, is_wide: bool) -> str:
    """A pattern of this text, whatever its numbers and, if `is_wide`, the width of its gaps. The
    gap before a number varies with its digits."""
    text = re.sub(r"(?<=\S)\s+(?=\d)", "\0", text)
    parts = re.split(r"(\0|\s+|\d+)", text)
    return "".join(_part(part, " +" if is_wide else " ") for part in parts)


def _part(text: str, gap: str) -> str:
    """The pattern of a number, of a gap, or of text between them; `gap`: that of a gap not before a
    number."""
    if text == "\0":
        return " *"
    if text.isspace():
        return gap
    return "[0-9]+" if text.isdigit() else _escaped(text)


def _escaped(text: str) -> str:
    """Like `re.escape`, without the signs that mean nothing outside brackets."""
    return re.sub(r"([][\\.^$*+?{}|()])", r"\\\1", text)
