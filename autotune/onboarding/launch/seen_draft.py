"""Corrects a draft by what the probe observed while the program ran a few steps.

    observed and read     the spec has the observed value; if the two differ, a note names both
    only observed         the value replaces a placeholder
    only read             the value stays, and a note says that it was not observed
    neither               the field is to be filled in

The probe counts micro-batches and sequences of one process. Processes and parallel degrees give the
number of data-parallel replicas. The degrees are those of the program's device meshes, or else
those that were read.

The model is the shape that was read if its weights agree with the counted ones, or else the shape
of the model's own config, or else that of its modules, or else only the number of weights. A shape
is used only if it has as many weights as were counted, because a shape derived from modules is a
guess.

The baseline is the launch. For an option that sets the batch, several meanings are tried, and the
one that gives the option's current value in the observed config is used. If none does, the option
keeps that value and the batch is not tuned. If the steps grow, they are a warm-up whose sizes are
not those of the training.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, final

from autotune.errors import AutotuneError, SpecError
from autotune.onboarding.draft import Draft, Entry, around, baseline_text
from autotune.onboarding.script.adapters import NEEDS_LESS, NEEDS_MORE, NOT_COUNTED, ON_HOST
from autotune.onboarding.script.argv import FILL_IN
from autotune.onboarding.script.draft import NOT_PRINTED
from autotune.ports import ProgramSeen
from autotune.ports.program_facts import NARROW, ProgramFacts
from autotune.schema import parse_study
from autotune.spec import FIELDS, KNOBS, ModelSpec
from autotune.spec.config import knobs_of
from autotune.spec.texts.as_text import number_of, value_word
from autotune.trainers.documents.placeholders import Values, parse

AGREES, IS_SAME = 0.05, 0.01
"""relative differences in the number of weights: of a shape that was read (vocabularies are padded,
biases may be missing), and of a shape derived from modules"""
_REQUIRED = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size")


def seen_model(
    facts: ProgramFacts, read: ModelSpec | None, *, seq_len: int | None
) -> tuple[Any, str] | None:
    """(value of `model`, its comment); None to keep the model that was read, or if no weights were
    counted. `read`: the model that was read, if any."""
    found, kind = facts.parameters, facts.values.get("model", "")
    if found is None:
        return None
    if reason := _no_decoder(facts):
        return {
            "parameters": found
        }, f"weight count of {kind}, which is not a decoder, because {reason}"
    if read is not None and _differs(read, found) <= AGREES:
        return None
    if (
        shape := _shape_of_config(facts, found) or _shape_of_modules(facts, found, seq_len)
    ) is not None:
        assumed = "; assumed to be a decoder, because no attention mask was seen"
        has_seen_mask = facts.values.get("is_causal") is not None
        return _written(
            shape
        ), f"{kind}, as observed: {found:,} weights{'' if has_seen_mask else assumed}"
    return (
        {"parameters": found},
        f"weight count of {kind}; if {kind} is a decoder, write its shape instead",
    )


def _no_decoder(facts: ProgramFacts) -> str:
    """Why the observed model cannot be a decoder; empty if nothing contradicts it."""
    shape = facts.values.get("shape") or {}
    if facts.values.get("is_causal") is False:
        return "its attention sees later tokens"
    return "no layer projects onto its vocabulary" if shape.get("has_head") is False else ""


def _differs(model: ModelSpec, parameters: int) -> float:
    """Relative difference between the model's weights and the counted ones."""
    return abs(model.num_parameters - parameters) / parameters


def _shape_of_config(facts: ProgramFacts, parameters: int) -> ModelSpec | None:
    """The shape of the model's own Hugging Face config; None without one, or if its weights do not
    agree with the counted ones."""
    config = facts.values.get("config")
    if not isinstance(config, Mapping):
        return None
    try:
        found = ModelSpec.from_hf(config, name="seen")
    except AutotuneError:
        return None
    return found if _differs(found, parameters) <= AGREES else None


def _shape_of_modules(
    facts: ProgramFacts, parameters: int, seq_len: int | None
) -> ModelSpec | None:
    """The shape derived from the model's modules: of the decoders with these sizes, the one whose
    number of weights is closest. None if none is within `IS_SAME`."""
    sizes = facts.values.get("shape")
    if not isinstance(sizes, Mapping) or not all(sizes.get(name) for name in _REQUIRED):
        return None
    best = min(
        _candidates(sizes, seq_len), key=lambda model: _differs(model, parameters), default=None
    )
    return best if best is not None and _differs(best, parameters) <= IS_SAME else None


def _candidates(observed: Mapping[str, Any], seq_len: int | None) -> Iterator[ModelSpec]:
    """Decoders with these sizes, with and without a gated MLP, tied embeddings and learned
    positions."""
    known = {f.name for f in fields(ModelSpec)}
    sizes: dict[str, Any] = {
        name: value for name, value in observed.items() if name in known and isinstance(value, int)
    }
    positions = {0, *(observed.get("positions") or ()), *([seq_len] if seq_len else [])}
    for gated, tied, max_positions in product((False, True), (False, True), sorted(positions)):
        try:
            yield ModelSpec(
                name="seen",
                gated_mlp=gated,
                tied_embeddings=tied,
                max_positions=max_positions,
                **sizes,
            )
        except SpecError:
            return


def _written(model: ModelSpec) -> dict[str, Any]:
    """The model as the spec has it: the required sizes, and the others if they differ from the
    default."""
    usual = ModelSpec(name="usual", **{name: getattr(model, name) for name in _REQUIRED})
    found = {
        f.name: getattr(model, f.name)
        for f in fields(ModelSpec)
        if f.name not in ("name", "source", "code")
    }
    return {
        name: value
        for name, value in found.items()
        if name in _REQUIRED or value != getattr(usual, name)
    }


_DEGREES = ("tp", "pp", "cp")
_PHASE = "if this is a warm-up, set the warm-up steps to 0 and observe again"
_SAME_LENGTH = 0.02
"""relative difference of sequence lengths that count as equal: inputs are often one token short"""
_MUCH_LARGER = 1.25
"""ratio of the largest to the smallest batch above which batches count as different"""
_OF_GPUS = ("fp16", "tf32", *NARROW)
"""number formats that only GPUs support"""
_LENGTH = "workload.seq_len"
SEEN = "seen"
"""comment of values that the probe observed"""


@final
@dataclass(frozen=True)
class SeenLaunch:
    """The figures of the launch as the probe observed them. None: not observed."""

    seen: ProgramSeen
    read: Mapping[str, Any]
    """knobs of the baseline that was read from the source"""

    @cached_property
    def facts(self) -> ProgramFacts:
        """The facts that the probe reported about the program."""
        return ProgramFacts(self.seen.facts)

    @cached_property
    def degrees(self) -> dict[str, int]:
        """tp, pp and cp above 1: observed, or else as read."""
        read = {name: int(self.read.get(name, 1)) for name in _DEGREES}
        return {
            name: value
            for name, value in {**read, **self.facts.degrees}.items()
            if value > 1 and name in _DEGREES
        }

    @property
    def replicas(self) -> int:
        """Data-parallel replicas: ranks that read different data."""
        return max(1, self.facts.world // math.prod(self.degrees.values()))

    @property
    def micro_batch_size(self) -> int | None:
        """Sequences per micro-batch; None if micro-batches differ in size."""
        steps, count = self.seen.micro_batches, self.seen.sequences
        return count // steps if steps and count and count % steps == 0 else None

    @property
    def batch(self) -> int | None:
        """Sequences per optimizer step, over all replicas."""
        return self.seen.sequences * self.replicas if self.seen.sequences else None

    @property
    def seq_len(self) -> int | None:
        """Tokens per sequence, averaged over the observed steps."""
        return (
            round(self.seen.tokens / self.seen.sequences)
            if self.seen.tokens and self.seen.sequences
            else None
        )

    @property
    def grows_in_batch(self) -> bool:
        """Whether no step trained fewer sequences and tokens than the one before, and the last one
        more than the first."""
        steps = self.seen.first_steps
        tokens = [each.tokens for each in steps if each.tokens]
        return _grows([each.sequences for each in steps]) and (not tokens or _grows(tokens))

    @property
    def batches(self) -> list[int]:
        """Sequences per rank of each observed step, if they differ by more than `_MUCH_LARGER` and
        at most half of the steps have the same number; or else empty. A single smaller batch may be
        the last one of an epoch."""
        found = [each.sequences or 0 for each in self.seen.first_steps]
        commonest = max(Counter(found).values(), default=0)
        is_uneven = bool(found) and max(found) > _MUCH_LARGER * min(found) > 0
        return found if is_uneven and len(found) >= 2 * commonest else []

    @property
    def lengths(self) -> list[int]:
        """Tokens per sequence of each observed step, if they differ; or else empty."""
        steps = [each for each in self.seen.first_steps if each.tokens and each.sequences]
        found = [round((each.tokens or 0) / (each.sequences or 1)) for each in steps]
        return found if found and max(found) > (1 + _SAME_LENGTH) * min(found) else []

    @property
    def grows_in_length(self) -> bool:
        """Whether no step has shorter sequences than the one before, and the last one longer than
        the first."""
        return _grows(self.lengths)

    @property
    def is_batch_open(self) -> bool:
        """Whether the observed steps do not give one batch size."""
        return self.grows_in_batch or bool(self.batches)

    @property
    def is_length_open(self) -> bool:
        """Whether the observed steps do not give one sequence length."""
        return self.grows_in_length or bool(self.lengths and self.batches)

    @cached_property
    def knobs(self) -> dict[str, Any]:
        """The observed config; knobs that were not observed are left out."""
        facts, found = self.facts, dict[str, Any](self.degrees)
        found["dp"] = self.replicas
        if self.micro_batch_size:
            found |= {
                "micro_batch_size": self.micro_batch_size,
                "accumulation_steps": self.seen.micro_batches,
            }
        if (
            facts.precision in KNOBS["precision"].values
            and self.read.get("precision") not in NARROW
        ):
            found["precision"] = facts.precision
        if self.replicas > 1 and facts.zero_stage is not None:
            found["zero_stage"] = facts.zero_stage
        if facts.recompute is not None:
            read = self.read.get("recompute", "none")
            is_same_kind = (read != "none") == (facts.recompute != "none")
            found["recompute"] = read if is_same_kind else facts.recompute
        found["compile"] = facts.is_compiled
        return found


def _grows(values: Sequence[int | None]) -> bool:
    """Whether no value is below the one before, and the last is above the first; False if a value
    is unknown."""
    known = [value for value in values if value]
    if len(known) < max(2, len(values)):
        return False
    return known == sorted(known) and known[-1] > (1 + _SAME_LENGTH) * known[0]


def seen_draft(
    draft: Draft, seen: ProgramSeen, *, launched: str, steps: int, folder: Path
) -> Draft:
    """The draft corrected by what the probe observed. `launched`: the command in words; `steps`:
    the optimizer steps that ran; `folder`: the folder of the spec."""
    read, before = _knobs_of(draft), draft.value("workload")
    run = SeenLaunch(seen, read)
    argv = draft.at("trainer.argv")
    command = " ".join(item.value for item in argv.items) if argv else ""
    has_placeholders = "{" in command and not any(part in command for part in ("$", "`", FILL_IN))
    settled, dropped = ["baseline"], ["no baseline", NOT_PRINTED]
    if has_placeholders:
        settled.append("trainer.argv")
        dropped.append("only the shell can compute")
    fill_in = [name for name in draft.fill_in if name not in settled]
    notes = [note for note in draft.notes if not note.startswith(tuple(dropped))]
    workload = _workload(before, run)
    notes += _differences(draft, run, workload)
    notes += [*_unseen(run, read, fill_in, workload), *filter(None, [seen.unevenness])]
    if seen.facts.get("offloads") and not any(ON_HOST in note for note in notes):
        notes.append(
            f"{NOT_COUNTED}{ON_HOST}; planned on the GPU, so {NEEDS_LESS}, but takes more time"
        )
    comment = _comment(run, fill_in)
    fill_in = [name for name in fill_in if name not in _filled(run)]
    fill_in += [_LENGTH] if run.is_length_open else []
    notes += _lengths(run, draft)
    model = seen_model(run.facts, _model_of(draft, folder), seq_len=workload.get("seq_len"))
    spec = draft
    if model is not None:
        spec = spec.put("model", Entry(key="model", value=model[0], comment=model[1]))
        fill_in = [name for name in fill_in if name != "model"]
    if reason := _no_baseline(run):
        fill_in += ["baseline", *(["workload.global_batch_size"] if run.is_batch_open else [])]
        notes.append(f"no baseline: {reason} add the program's current settings as `baseline:`")
        spec = spec.put("baseline", None)
    else:
        meant = dict(_meant(draft.today, run))
        spec = _as_seen(spec, run, meant, batch=workload.get("global_batch_size"))
        if kept_values := _kept(meant):
            notes.append(
                "it is unclear what the batch options mean, because "
                f"{' and '.join(kept_values)} gave {run.seen.micro_batches} x "
                f"{run.micro_batch_size} sequences per step on each rank; the options keep "
                "these values, so the batch is not tuned"
            )
            workload["global_batch_size"] = run.batch
    spec = spec.edited("workload", value=workload, comment=comment)
    length, trainer = before.get("seq_len"), spec.at("trainer")
    is_known = run.seq_len and _LENGTH not in (*draft.fill_in, *fill_in)
    if trainer and is_known and not _is_same_length(length, run.seq_len or 0):
        with_fixed_length = trainer.with_texts(
            lambda text: _filled_in(text, {"{seq_len}": str(length)})
        )
        if with_fixed_length != trainer:
            notes.append(
                f"the length option stays {length}, because it seems to be a maximum, which trials must not change"
            )
        spec = spec.put("trainer", with_fixed_length)
    heading = (
        f"A first spec from `autotune init --run`: {launched} ran for {number_of(steps, 'optimizer step')}, and was stopped.",
        "Values are what the probe observed. Values that come only from the source code are shown with their line number. Next, run `autotune check`, then `autotune tune`.",
    )
    asked = tuple(dict.fromkeys(fill_in))
    return replace(spec, heading=heading, fill_in=asked, notes=tuple(notes))


def _lengths(run: SeenLaunch, draft: Draft) -> Iterator[str]:
    """Notes on the tokens per sequence."""
    counts = f"({', '.join(map(str, run.lengths))} tokens)"
    if run.grows_in_length:
        yield (
            f"the sequence length is unknown, because it grew from step to step {counts}; {_PHASE}; "
            "if sequences are padded, set seq_len to their average length"
        )
    elif run.lengths:
        yield (
            f"sequences differ in length from step to step {counts}, but tokens/s counts seq_len tokens for each sequence; "
            "set seq_len to the average length in your data"
        )
    if run.seq_len is None and _LENGTH in draft.fill_in:
        yield "no tokens were observed; for a model without sequences, set seq_len to 1, and tokens/s then means samples/s"


def _no_baseline(run: SeenLaunch) -> str:
    """Why the observed launch is no baseline; empty if it is one."""
    counts = ", ".join(str(each.sequences) for each in run.seen.first_steps)
    if run.grows_in_batch:
        return f"the batch grew from step to step ({counts} sequences per rank); {_PHASE}, or"
    if run.batches:
        return f"the batch differs from step to step ({counts} sequences per rank), as when batches are filled up to a token limit; set global_batch_size to the average batch, and"
    return (
        "" if run.micro_batch_size else "the number of sequences per micro-batch was not observed;"
    )


def seen_document(seen: ProgramSeen, steps: int) -> dict[str, Any]:
    """What the probe observed, as plain JSON values."""
    return {
        "steps": steps,
        "facts": dict(seen.facts),
        "options": [dict(option) for option in seen.options],
        "micro_batches": seen.micro_batches,
        "sequences": seen.sequences,
        "tokens": seen.tokens,
        "wait_share": seen.wait_share,
        "files": {path: dict(file) for path, file in seen.files.items()},
    }


def _knobs_of(draft: Draft) -> dict[str, Any]:
    """The baseline that was read, over the knobs for which the space has one value."""
    document = draft.document
    space = document.get("space")
    single_values = (
        {k: v[0] for k, v in space.items() if k in FIELDS and isinstance(v, list) and len(v) == 1}
        if isinstance(space, dict)
        else {}
    )
    baseline = document.get("baseline")
    return {
        **single_values,
        **(knobs_of(baseline, {}) if isinstance(baseline, str) else dict(baseline or {})),
    }


def _model_of(draft: Draft, folder: Path) -> ModelSpec | None:
    """The model that was read; None if it is to be filled in."""
    if "model" in draft.fill_in:
        return None
    sections = {k: v for k, v in draft.document.items() if k in ("model", "workload", "cluster")}
    with suppress(AutotuneError):
        study = parse_study(
            {**sections, "cluster": "cpu-1x1", "space": {"world_sizes": [1]}, "trainer": "native"},
            base=folder.resolve(),
            inspect=None,
        )
        return study.workload.model
    return None


def _filled(run: SeenLaunch) -> set[str]:
    """Names of the draft's fields that were observed, so they need not be filled in."""
    found = {"space.precision"} if "precision" in run.knobs else set()
    found |= {_LENGTH} if run.seq_len and not run.is_length_open else set()
    return found | ({"workload.global_batch_size"} if run.batch else set())


def _workload(read: Mapping[str, Any], run: SeenLaunch) -> dict[str, Any]:
    """The workload that was read, corrected by the observed values."""
    workload = dict(read)
    has_other_length = run.seq_len and not _is_same_length(workload.get("seq_len"), run.seq_len)
    if has_other_length and not run.is_length_open:
        workload["seq_len"] = run.seq_len
    if run.batch and not run.is_batch_open:
        batches = workload.get("global_batch_size")
        if not isinstance(batches, list):
            workload["global_batch_size"] = run.batch
        elif run.batch not in batches:
            workload["global_batch_size"] = _scaled(run.batch, run)
    if run.facts.optimizer not in (None, workload.get("optimizer", "adamw")):
        workload["optimizer"] = run.facts.optimizer
    if run.facts.is_pure_bf16:
        workload["pure_bf16"] = True
    elif run.facts.weights == "fp32":
        workload.pop("pure_bf16", None)
        workload.pop("shards_in_fp32", None)
    return workload


def _scaled(batch: int, run: SeenLaunch) -> list[int]:
    """Batch sizes around the observed one, for a program that cannot accumulate: each micro-batch
    is a batch."""
    each = run.replicas * (run.seen.micro_batches or 1)
    return sorted({each * size for size in around(max(1, batch // each))})


def _is_same_length(read: Any, found: int) -> bool:
    """Whether a length that was read equals the observed one within `_SAME_LENGTH`, or one
    token."""
    return isinstance(read, int) and abs(read - found) <= max(1, _SAME_LENGTH * read)


def _as_seen(draft: Draft, run: SeenLaunch, meant: Mapping[str, str], *, batch: Any) -> Draft:
    """The draft with the observed config as its baseline, among the values of its space, and in the
    fixed values of its command."""
    words, fixed = draft.value("trainer.values"), draft.value("trainer.fixed")
    # values that were read, but run as another value without a word: tf32, which is fp32 on a CPU
    misread = {
        knob: run.read[knob]
        for knob, known in words.items()
        if knob in run.knobs and run.knobs[knob] not in known and run.read.get(knob) in known
    }
    is_local = draft.value("cluster") == "local"
    if isinstance(read := draft.value("space"), dict):  # a name is a bundled space, which stays
        space = _space(read, run, misread, batch=batch, is_local=is_local)
        draft = draft.edited("space", value=_space_of(space, run, meant))
    baseline = Entry(
        key="baseline", value=_config(run), comment=f"{SEEN}: {number_of(run.facts.world, 'rank')}"
    )
    draft = draft.put("baseline", baseline, after="space")
    fixed = {knob: run.knobs.get(knob, value) for knob, value in fixed.items()}
    draft = draft.edited("trainer.fixed", value=fixed)
    for knob, value in misread.items():
        corrected_words = {
            run.knobs[knob] if known == value else known: word
            for known, word in words[knob].items()
        }
        words = {**words, knob: corrected_words}
    draft = draft.edited("trainer.values", value=words)
    trainer = draft.at("trainer")
    return (
        draft
        if trainer is None
        else draft.put("trainer", trainer.with_texts(lambda text: _filled_in(text, meant)))
    )


def _space(
    read: Mapping[str, Any],
    run: SeenLaunch,
    misread: Mapping[str, Any],
    *,
    batch: Any,
    is_local: bool,
) -> dict[str, Any]:
    """The space with the observed values added. A knob with one value gets the observed one.
    `misread`: values that were read by knob, which the observed ones replace; `is_local`: the
    cluster is this machine, and the launch may use only part of it."""
    space = dict(read)
    for knob, value in run.knobs.items():
        listed, is_micro = space.get(knob, []), knob == "micro_batch_size"
        if knob == "dp" or isinstance(listed, dict):
            continue
        if knob in misread:
            listed = [value if each == misread[knob] else each for each in listed]
        is_usual = value == KNOBS[knob].default or knob == "accumulation_steps"
        if knob not in space and is_usual and not is_micro:
            continue
        if is_micro and len(listed) > 1:
            space[knob] = listed if value in listed else around(value)
        else:
            others = [each for each in listed if each != value] if len(listed) > 1 else []
            space[knob] = [value, *others]
    # CPUs do not support these formats
    if run.facts.values.get("device") == "cpu" and "precision" in space:
        observed = run.knobs.get("precision")
        formats = (each for each in space["precision"] if each not in _OF_GPUS or each == observed)
        space["precision"] = list(formats)
    sizes = space.get("micro_batch_size")
    # other sizes do not divide the batch
    if isinstance(sizes, list) and isinstance(batch, int):
        fitting = [size for size in sizes if batch % (size * run.replicas) == 0]
        space["micro_batch_size"] = fitting or sizes
    if run.facts.world not in space.get("world_sizes", ()) and (is_local or "world_sizes" in space):
        space["world_sizes"] = [run.facts.world]
    return space


def _filled_in(value: str, placeholders: Mapping[str, str]) -> str | int:
    """The text with placeholders replaced; a text that is only a placeholder becomes an int."""
    for placeholder, text in placeholders.items():
        if value == placeholder and text.isdecimal():
            return int(text)
        value = value.replace(placeholder, text)
    return value


def _meant(today: Mapping[str, Any], run: SeenLaunch) -> Iterator[tuple[str, str]]:
    """(placeholder of the batch, its replacement), if the placeholder does not give the option's
    current value in the observed config. The replacement is another placeholder that does, or else
    the value itself."""
    for source, value in today.items():
        if _result(source, run) in (None, value) or type(value) is not int or value < 1:
            continue
        candidates = _ACCUMULATIONS if source in _ACCUMULATIONS else _BATCHES
        rows = run.knobs["micro_batch_size"] / value
        per_sample = (
            [f"micro_batch_size // {rows:g}"] if candidates is _BATCHES and rows % 1 == 0 else []
        )
        matching = [each for each in (*candidates, *per_sample) if _result(each, run) == value]
        yield f"{{{source}}}", f"{{{matching[0]}}}" if matching else str(value)


_BATCHES = tuple(
    " * ".join(("micro_batch_size", *more))
    for more in ((), ("dp",), ("accumulation_steps",), ("accumulation_steps", "dp"))
)
"""possible meanings of an option for the batch"""
_ACCUMULATIONS = ("accumulation_steps", "accumulation_steps * dp")
"""possible meanings of an option for the accumulation"""


def _result(source: str, run: SeenLaunch) -> int | None:
    """The value of a placeholder in the observed config; None if it needs other knobs than those of
    the batch."""
    names = ("micro_batch_size", "accumulation_steps", "dp")
    sizes = {name: int(run.knobs[name]) for name in names}
    sizes["global_batch_size"] = math.prod(sizes.values())
    (expression,) = parse(f"{{{source}}}").expressions
    return int(Values(known=sizes).of(expression)) if expression.names <= sizes.keys() else None


def _kept(meant: Mapping[str, str]) -> list[str]:
    """The replacements that are plain values."""
    return [text for text in meant.values() if text.isdecimal()]


def _space_of(space: dict[str, Any], run: SeenLaunch, meant: Mapping[str, str]) -> dict[str, Any]:
    """The space without values that the replaced placeholders cannot express: batches other than
    the observed one, and micro-batches that are not whole samples of several rows."""
    if _kept(meant):
        space |= {name: [run.knobs[name]] for name in ("micro_batch_size", "accumulation_steps")}
    rows = [int(text.strip("{}").split()[-1]) for text in meant.values() if "//" in text]
    if rows and isinstance(sizes := space.get("micro_batch_size"), list):
        space["micro_batch_size"] = [size for size in sizes if size % rows[0] == 0]
    return space


def _config(run: SeenLaunch) -> str:
    """The observed config, with values that were read for knobs that were not observed."""
    read = {k: v for k, v in run.read.items() if k in FIELDS and k not in _DEGREES}
    values = {**read, **run.knobs}
    return baseline_text({name: values[name] for name in KNOBS if name in values})


def _comment(run: SeenLaunch, fill_in: list[str]) -> str:
    """The comment of `workload`: where the sequence length and the batch come from."""
    length = f"seq_len: {SEEN}" if run.seq_len else "seq_len: not observed"
    if run.lengths:
        length = "seq_len: the average of the observed steps"
    if run.is_length_open or (not run.seq_len and _LENGTH in fill_in):
        length = "fill in: seq_len, tokens per sequence"
    if not run.batch or run.is_batch_open:
        return f"{length}; fill in: global_batch_size, sequences per optimizer step"
    per_rank = (
        f"{run.seen.micro_batches} x {run.micro_batch_size}"
        if run.micro_batch_size
        else f"{run.seen.sequences}"
    )
    return f"{length}; batch: {SEEN}, {per_rank} on {run.replicas} of {run.facts.world} ranks"


def _differences(draft: Draft, run: SeenLaunch, workload: Mapping[str, Any]) -> Iterator[str]:
    """Notes on values that were observed to differ from those that were read. `workload`: the
    corrected one."""
    read_workload, read = draft.document["workload"], _knobs_of(draft)
    compared: list[tuple[str, Any, Any]] = []
    for name in ("seq_len", "global_batch_size", "optimizer"):
        before = read_workload.get(name, "adamw" if name == "optimizer" else None)
        if f"workload.{name}" not in draft.fill_in:
            compared.append((name, before, workload.get(name, before)))
    ranks = (
        math.prod(int(read.get(degree, 1)) for degree in (*_DEGREES, "dp"))
        if "dp" in read
        else None
    )
    compared.append(("ranks", ranks, run.facts.world))
    compared += [
        (knob, read.get(knob), value)
        for knob, value in run.knobs.items()
        if knob != "dp" and f"space.{knob}" not in draft.fill_in
    ]
    differing = {name for name, before, after in compared if before is not None and before != after}
    if {"micro_batch_size", "seq_len"} <= differing:
        yield "the first steps train other sizes than the options say; if these steps are only a first phase, such as a warm-up, start the program after that phase (or set the phase's length to 0) and observe again"
    for name, before, after in compared:
        if name in differing:
            yield f"{name}: the source says {value_word(before)}, but the run used {value_word(after)}; the spec has the observed value"


def _unseen(
    run: SeenLaunch, read: Mapping[str, Any], fill_in: list[str], workload: Mapping[str, Any]
) -> Iterator[str]:
    """Notes on values that were read and could not be observed, and on weights outside the trained
    model. `workload`: the corrected one."""
    names = [
        knob
        for knob in ("precision", "recompute", "zero_stage")
        if knob not in run.knobs and read.get(knob) not in (None, 0)
    ]
    names += ["seq_len"] if run.seq_len is None and _LENGTH not in fill_in else []
    names += (
        ["global_batch_size"]
        if run.batch is None and "workload.global_batch_size" not in fill_in
        else []
    )
    if names:
        yield f"not observed, so taken from the source: {', '.join(names)}"
    if run.facts.optimizers and run.facts.optimizer is None:
        yield f"the optimizer {run.facts.optimizers} is counted as AdamW, because the memory for its states is unknown"
    if others := run.seen.other_sequences:
        counts = " or ".join(map(str, (run.seen.sequences, *others)))
        yield (
            f"it is unclear how many sequences a step trains on each rank: {counts}, because the model is called several times for one backward pass or optimizer; "
            f"the spec has the first number; if another number is right, correct global_batch_size, seq_len and `baseline:`"
        )
    if frozen := run.seen.facts.get("frozen"):
        yield f"{NOT_COUNTED}other models, which the program calls but does not train ({frozen:,} weights), so {NEEDS_MORE}"
    trained, parameters = run.seen.facts.get("trainable"), run.facts.parameters
    if trained and parameters and trained < parameters / 2 and "peft" not in workload:
        yield f"{trained:,} of {parameters:,} weights are trained; if these are adapters, write `peft: {{method: lora, rank: ...}}` under `workload`"
