"""A draft with what the probe saw of its launch in place of what was read of it.

    seen and read     the spec has what was seen; where the two differ, a note says both
    seen alone        what was to be filled in is filled in
    read alone        it stays, and a note names it as not seen
    neither           it is to be filled in, by its name

A step of one process gives micro-batches and sequences; the processes and the degrees give how many
have data of their own. Degrees are those that were read, or that the program's own meshes tell.

The model of a draft, by what the probe saw: the shape that was read where the weights agree with
it, that of the model's own config, that of its modules, else the number of weights.

A shape is taken only where it has as many weights as were counted: what the modules look like is a
guess until then.

The baseline is the launch: an option that sets the batch means whatever gives its value of today by
what was seen. Where nothing does, it keeps that value. Steps that grow are a first phase, whose
sizes are not those of the training.
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
from autotune.onboarding.draft import Draft, Entry, Item, around, baseline_text
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
"""relative differences of weights: of a shape that was read (padded vocabularies, biases), and of
one that is put together from what was seen"""
_REQUIRED = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size")


def seen_model(
    facts: ProgramFacts, read: ModelSpec | None, *, seq_len: int | None
) -> tuple[Any, str] | None:
    """(what the spec says, where it is from); None where what was read stands, or nothing was seen.
    `read`: the model that was read, if any."""
    found, kind = facts.parameters, facts.values.get("model", "")
    if found is None:
        return None
    if why := _no_decoder(facts):
        return {
            "parameters": found
        }, f"weights counted in {kind}, which is not a decoder, because {why}"
    if read is not None and _differs(read, found) <= AGREES:
        return None
    if (shape := _of_config(facts, found) or _of_modules(facts, found, seq_len)) is not None:
        assumed = "; assumed to be a decoder, because no attention mask was seen"
        is_seen = facts.values.get("is_causal") is not None
        return _written(
            shape
        ), f"{kind}, as observed: {found:,} weights{'' if is_seen else assumed}"
    return (
        {"parameters": found},
        f"weights counted in {kind}; if {kind} is a decoder, write its shape instead",
    )


def _no_decoder(facts: ProgramFacts) -> str:
    """Why it cannot be one; empty where nothing speaks against it."""
    shape = facts.values.get("shape") or {}
    if facts.values.get("is_causal") is False:
        return "its attention sees later tokens"
    return "no layer projects onto its vocabulary" if shape.get("has_head") is False else ""


def _differs(model: ModelSpec, parameters: int) -> float:
    return abs(model.num_parameters - parameters) / parameters


def _of_config(facts: ProgramFacts, parameters: int) -> ModelSpec | None:
    """By the model's own config, where it is one of Hugging Face's."""
    config = facts.values.get("config")
    if not isinstance(config, Mapping):
        return None
    try:
        found = ModelSpec.from_hf(config, name="seen")
    except AutotuneError:
        return None
    return found if _differs(found, parameters) <= AGREES else None


def _of_modules(facts: ProgramFacts, parameters: int, seq_len: int | None) -> ModelSpec | None:
    """By its modules: of the decoders that have these sizes, the one with as many weights."""
    told = facts.values.get("shape")
    if not isinstance(told, Mapping) or not all(told.get(name) for name in _REQUIRED):
        return None
    best = min(
        _candidates(told, seq_len), key=lambda model: _differs(model, parameters), default=None
    )
    return best if best is not None and _differs(best, parameters) <= IS_SAME else None


def _candidates(told: Mapping[str, Any], seq_len: int | None) -> Iterator[ModelSpec]:
    known = {f.name for f in fields(ModelSpec)}
    sizes: dict[str, Any] = {
        name: value for name, value in told.items() if name in known and isinstance(value, int)
    }
    positions = {0, *(told.get("positions") or ()), *([seq_len] if seq_len else [])}
    for gated, tied, learnt in product((False, True), (False, True), sorted(positions)):
        try:
            yield ModelSpec(
                name="seen", gated_mlp=gated, tied_embeddings=tied, max_positions=learnt, **sizes
            )
        except SpecError:
            return


def _written(model: ModelSpec) -> dict[str, Any]:
    """The sizes that are not the usual ones."""
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
"""relative difference of sequences that are the same: inputs are often a token short"""
_MUCH_LARGER = 1.25
"""ratio of batches that are not alike"""
_OF_GPUS = ("fp16", "tf32", *NARROW)
_LENGTH = "workload.seq_len"
SEEN = "seen"
"""comment of what the probe saw"""


@final
@dataclass(frozen=True)
class SeenLaunch:
    """The figures of the launch, as they were seen. None: not seen."""

    seen: ProgramSeen
    read: Mapping[str, Any]
    """knobs of the baseline that was read"""

    @cached_property
    def facts(self) -> ProgramFacts:
        """What the program trains."""
        return ProgramFacts(self.seen.facts)

    @cached_property
    def degrees(self) -> dict[str, int]:
        """tp, pp and cp, above 1."""
        read = {name: int(self.read.get(name, 1)) for name in _DEGREES}
        return {
            name: value
            for name, value in {**read, **self.facts.degrees}.items()
            if value > 1 and name in _DEGREES
        }

    @property
    def replicas(self) -> int:
        """Ranks with data of their own."""
        return max(1, self.facts.world // math.prod(self.degrees.values()))

    @property
    def micro_batch_size(self) -> int | None:
        """Sequences of a micro-batch, where all have as many."""
        steps, count = self.seen.micro_batches, self.seen.sequences
        return count // steps if steps and count and count % steps == 0 else None

    @property
    def batch(self) -> int | None:
        """Sequences per optimizer step."""
        return self.seen.sequences * self.replicas if self.seen.sequences else None

    @property
    def seq_len(self) -> int | None:
        """Tokens per sequence."""
        return (
            round(self.seen.tokens / self.seen.sequences)
            if self.seen.tokens and self.seen.sequences
            else None
        )

    @property
    def grows_in_batch(self) -> bool:
        """Whether no step trained less than the one before, and the last one more."""
        steps = self.seen.first_steps
        tokens = [each.tokens for each in steps if each.tokens]
        return _grows([each.sequences for each in steps]) and (not tokens or _grows(tokens))

    @property
    def batches(self) -> list[int]:
        """Sequences of the first steps, where they differ much and no more than half of the steps
        have as many; else none: the last batch of an epoch may be smaller."""
        found = [each.sequences or 0 for each in self.seen.first_steps]
        commonest = max(Counter(found).values(), default=0)
        differ = bool(found) and max(found) > _MUCH_LARGER * min(found) > 0
        return found if differ and len(found) >= 2 * commonest else []

    @property
    def lengths(self) -> list[int]:
        """Tokens per sequence of the first steps, where they are not the same; else none."""
        steps = [each for each in self.seen.first_steps if each.tokens and each.sequences]
        found = [round((each.tokens or 0) / (each.sequences or 1)) for each in steps]
        return found if found and max(found) > (1 + _SAME_LENGTH) * min(found) else []

    @property
    def grows_in_length(self) -> bool:
        """Whether no sequences are shorter than those before, and the last ones are longer."""
        return _grows(self.lengths)

    @property
    def is_batch_open(self) -> bool:
        """Whether no one number of sequences is the batch."""
        return self.grows_in_batch or bool(self.batches)

    @property
    def is_length_open(self) -> bool:
        """Whether no one number of tokens is the length."""
        return self.grows_in_length or bool(self.lengths and self.batches)

    @cached_property
    def knobs(self) -> dict[str, Any]:
        """The config that it trains with, as far as it was seen."""
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
            is_alike = (read != "none") == (facts.recompute != "none")
            found["recompute"] = read if is_alike else facts.recompute
        found["compile"] = facts.is_compiled
        return found


def _grows(values: Sequence[int | None]) -> bool:
    """Whether none is below the one before, and the last is more than the first; False where one is
    not known."""
    known = [value for value in values if value]
    if len(known) < max(2, len(values)):
        return False
    return known == sorted(known) and known[-1] > (1 + _SAME_LENGTH) * known[0]


def seen_draft(
    draft: Draft, seen: ProgramSeen, *, launched: str, steps: int, folder: Path
) -> Draft:
    """The draft; `launched`: what was started, in words, `folder`: of the spec."""
    read, before = _knobs_of(draft), draft.value("workload")
    run = SeenLaunch(seen, read)
    argv = draft.at("trainer.argv")
    command = " ".join(item.value for item in argv.items) if argv else ""
    is_told = "{" in command and not any(part in command for part in ("$", "`", FILL_IN))
    settled, dropped = ["baseline"], ["no baseline", NOT_PRINTED]
    if is_told:
        settled.append("trainer.argv")
        dropped.append("only the shell can compute")
    fill_in = [name for name in draft.fill_in if name not in settled]
    notes = [note for note in draft.notes if not note.startswith(tuple(dropped))]
    told = _workload(before, run)
    notes += _differences(draft, run, told)
    notes += [*_unseen(run, read, fill_in, told), *filter(None, [seen.unevenness])]
    if seen.facts.get("offloads") and not any(ON_HOST in note for note in notes):
        notes.append(
            f"{NOT_COUNTED}{ON_HOST}, planned on the GPU, which is faster, so {NEEDS_LESS}"
        )
    comment = _comment(run, fill_in)
    fill_in = [name for name in fill_in if name not in _filled(run)]
    fill_in += [_LENGTH] if run.is_length_open else []
    notes += _lengths(run, draft)
    model = seen_model(run.facts, _model_of(draft, folder), seq_len=told.get("seq_len"))
    spec = draft
    if model is not None:
        spec = spec.put("model", Entry(key="model", value=model[0], comment=model[1]))
        fill_in = [name for name in fill_in if name != "model"]
    if why := _no_baseline(run):
        fill_in += ["baseline", *(["workload.global_batch_size"] if run.is_batch_open else [])]
        notes.append(f"no baseline: {why} add the program's current settings as `baseline:`")
        spec = spec.put("baseline", None)
    else:
        meant = dict(_meant(draft.today, run))
        spec = _as_seen(spec, run, meant, batch=told.get("global_batch_size"))
        if kept := _kept(meant):
            notes.append(
                f"it is unclear what the batch options mean, because {' and '.join(kept)} gave {run.seen.micro_batches} x {run.micro_batch_size} "
                "sequences per step and rank; the options keep these values, so the batch is not tuned"
            )
            told["global_batch_size"] = run.batch
    spec = spec.edited("workload", value=told, comment=comment)
    length, trainer = before.get("seq_len"), spec.at("trainer")
    is_known = run.seq_len and _LENGTH not in (*draft.fill_in, *fill_in)
    if trainer and is_known and not _is_same_length(length, run.seq_len or 0):
        kept_length = _rewritten(trainer, {"{seq_len}": str(length)})
        if kept_length != trainer:
            notes.append(
                f"the length option stays {length}, because it seems to be a maximum, which trials must not change"
            )
        spec = spec.put("trainer", kept_length)
    heading = (
        f"A first spec from `autotune init --run`: {launched} ran for {number_of(steps, 'optimizer step')}, and was stopped.",
        "Values are what the probe observed. Values that come only from the source code are shown with their line number. Next, run `autotune check`, then `autotune tune`.",
    )
    asked = tuple(dict.fromkeys(fill_in))
    return replace(spec, heading=heading, fill_in=asked, notes=tuple(notes))


def _lengths(run: SeenLaunch, draft: Draft) -> Iterator[str]:
    """What is said of the tokens per sequence."""
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
    """Why what was seen is none; empty where it is."""
    counts = ", ".join(str(each.sequences) for each in run.seen.first_steps)
    if run.grows_in_batch:
        return f"the batch grew from step to step ({counts} sequences per rank); {_PHASE}, or"
    if run.batches:
        return f"the batch differs from step to step ({counts} sequences per rank), as when batches are filled up to a token limit; set global_batch_size to the average batch, and"
    return (
        "" if run.micro_batch_size else "the number of sequences per micro-batch was not observed;"
    )


def seen_document(seen: ProgramSeen, steps: int) -> dict[str, Any]:
    """What was seen, as plain JSON values."""
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
    """The baseline that was read; without one, what the space has one value for."""
    document = draft.document
    space = document.get("space")
    alone = (
        {k: v[0] for k, v in space.items() if k in FIELDS and isinstance(v, list) and len(v) == 1}
        if isinstance(space, dict)
        else {}
    )
    asked = document.get("baseline")
    return {**alone, **(knobs_of(asked, {}) if isinstance(asked, str) else dict(asked or {}))}


def _model_of(draft: Draft, folder: Path) -> ModelSpec | None:
    """The model that was read; None where it is to be filled in."""
    if "model" in draft.fill_in:
        return None
    plain = {k: v for k, v in draft.document.items() if k in ("model", "workload", "cluster")}
    with suppress(AutotuneError):
        study = parse_study(
            {**plain, "cluster": "cpu-1x1", "space": {"world_sizes": [1]}, "trainer": "native"},
            base=folder.resolve(),
            inspect=None,
        )
        return study.workload.model
    return None


def _filled(run: SeenLaunch) -> set[str]:
    found = {"space.precision"} if "precision" in run.knobs else set()
    found |= {_LENGTH} if run.seq_len and not run.is_length_open else set()
    return found | ({"workload.global_batch_size"} if run.batch else set())


def _workload(read: Mapping[str, Any], run: SeenLaunch) -> dict[str, Any]:
    """The workload with what was seen."""
    told = dict(read)
    is_other = run.seq_len and not _is_same_length(told.get("seq_len"), run.seq_len)
    if is_other and not run.is_length_open:
        told["seq_len"] = run.seq_len
    if run.batch and not run.is_batch_open:
        batches = told.get("global_batch_size")
        if not isinstance(batches, list):
            told["global_batch_size"] = run.batch
        elif run.batch not in batches:
            told["global_batch_size"] = _scaled(run.batch, run)
    if run.facts.optimizer not in (None, told.get("optimizer", "adamw")):
        told["optimizer"] = run.facts.optimizer
    if run.facts.is_pure_bf16:
        told["pure_bf16"] = True
    elif run.facts.weights == "fp32":
        told.pop("pure_bf16", None)
        told.pop("shards_in_fp32", None)
    return told


def _scaled(batch: int, run: SeenLaunch) -> list[int]:
    """Batches around the one that was seen, of a program that cannot accumulate: each micro-batch
    is a batch."""
    each = run.replicas * (run.seen.micro_batches or 1)
    return sorted({each * size for size in around(max(1, batch // each))})


def _is_same_length(read: Any, found: int) -> bool:
    return isinstance(read, int) and abs(read - found) <= max(1, _SAME_LENGTH * read)


def _as_seen(draft: Draft, run: SeenLaunch, meant: Mapping[str, str], *, batch: Any) -> Draft:
    """The draft with the config that was seen: as its baseline, among the values of its space, and
    in what its command is given anyway."""
    words, fixed = draft.value("trainer.values"), draft.value("trainer.fixed")
    # read, and meaning what was seen, for which there is no word: tf32, which is fp32 on a CPU
    misread = {
        knob: run.read[knob]
        for knob, known in words.items()
        if knob in run.knobs and run.knobs[knob] not in known and run.read.get(knob) in known
    }
    is_local = draft.value("cluster") == "local"
    if isinstance(read := draft.value("space"), dict):  # and none that ships
        space = _space(read, run, misread, batch=batch, is_local=is_local)
        draft = draft.edited("space", value=_space_of(space, run, meant))
    baseline = Entry(
        key="baseline", value=_config(run), comment=f"{SEEN}: {number_of(run.facts.world, 'rank')}"
    )
    draft = draft.put("baseline", baseline, after="space")
    fixed = {knob: run.knobs.get(knob, value) for knob, value in fixed.items()}
    draft = draft.edited("trainer.fixed", value=fixed)
    for knob, value in misread.items():
        own = {
            run.knobs[knob] if known == value else known: word
            for known, word in words[knob].items()
        }
        words = {**words, knob: own}
    draft = draft.edited("trainer.values", value=words)
    trainer = draft.at("trainer")
    return draft if trainer is None else draft.put("trainer", _rewritten(trainer, meant))


def _space(
    read: Mapping[str, Any],
    run: SeenLaunch,
    misread: Mapping[str, Any],
    *,
    batch: Any,
    is_local: bool,
) -> dict[str, Any]:
    """The space, with what was seen among its values; a knob that has one value has the one that
    was seen. `is_local`: the cluster is this machine, of which the launch may use a part."""
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
    # which has no units for these
    if run.facts.values.get("device") == "cpu" and "precision" in space:
        own = run.knobs.get("precision")
        formats = (each for each in space["precision"] if each not in _OF_GPUS or each == own)
        space["precision"] = list(formats)
    sizes = space.get("micro_batch_size")
    # the others are in no step of that batch
    if isinstance(sizes, list) and isinstance(batch, int):
        fitting = [size for size in sizes if batch % (size * run.replicas) == 0]
        space["micro_batch_size"] = fitting or sizes
    if run.facts.world not in space.get("world_sizes", ()) and (is_local or "world_sizes" in space):
        space["world_sizes"] = [run.facts.world]
    return space


def _rewritten(entry: Entry, placeholders: Mapping[str, str]) -> Entry:
    """The trainer with other texts in the place of these placeholders."""
    if not placeholders:
        return entry
    items = tuple(_rewritten_item(item, placeholders) for item in entry.items)
    parts = tuple(_rewritten(part, placeholders) for part in entry.parts)
    return replace(entry, value=_filled_in(entry.value, placeholders), items=items, parts=parts)


def _rewritten_item(item: Item, placeholders: Mapping[str, str]) -> Item:
    value = _filled_in(item.value, placeholders)
    if value == item.value:
        return item
    return replace(item, value=value, comment=item.comment.partition(", taken as")[0])


def _filled_in(value: Any, placeholders: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _filled_in(each, placeholders) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled_in(each, placeholders) for each in value]
    if not isinstance(value, str):
        return value
    for placeholder, text in placeholders.items():
        if value == placeholder and text.isdecimal():
            return int(text)
        value = value.replace(placeholder, text)
    return value


def _meant(today: Mapping[str, Any], run: SeenLaunch) -> Iterator[tuple[str, str]]:
    """(placeholder of the batch, what stands for it): where it does not give its option's value of
    today by what was seen, one that does, else that value."""
    for source, value in today.items():
        if _result(source, run) in (None, value) or type(value) is not int or value < 1:
            continue
        known = _ACCUMULATIONS if source in _ACCUMULATIONS else _BATCHES
        rows = run.knobs["micro_batch_size"] / value
        of_rows = [f"micro_batch_size // {rows:g}"] if known is _BATCHES and rows % 1 == 0 else []
        meant = [each for each in (*known, *of_rows) if _result(each, run) == value]
        yield f"{{{source}}}", f"{{{meant[0]}}}" if meant else str(value)


_BATCHES = tuple(
    " * ".join(("micro_batch_size", *more))
    for more in ((), ("dp",), ("accumulation_steps",), ("accumulation_steps", "dp"))
)
_ACCUMULATIONS = ("accumulation_steps", "accumulation_steps * dp")


def _result(source: str, run: SeenLaunch) -> int | None:
    """What a placeholder of the batch stands for in the config that was seen; None for others."""
    names = ("micro_batch_size", "accumulation_steps", "dp")
    sizes = {name: int(run.knobs[name]) for name in names}
    sizes["global_batch_size"] = math.prod(sizes.values())
    (expression,) = parse(f"{{{source}}}").expressions
    return int(Values(known=sizes).of(expression)) if expression.names <= sizes.keys() else None


def _kept(meant: Mapping[str, str]) -> list[str]:
    """The values of options that keep them."""
    return [text for text in meant.values() if text.isdecimal()]


def _space_of(space: dict[str, Any], run: SeenLaunch, meant: Mapping[str, str]) -> dict[str, Any]:
    """The space without what these placeholders cannot tell: other batches than the one that was
    seen, and parts of a sample of several rows."""
    if _kept(meant):
        space |= {name: [run.knobs[name]] for name in ("micro_batch_size", "accumulation_steps")}
    rows = [int(text.strip("{}").split()[-1]) for text in meant.values() if "//" in text]
    if rows and isinstance(sizes := space.get("micro_batch_size"), list):
        space["micro_batch_size"] = [size for size in sizes if size % rows[0] == 0]
    return space


def _config(run: SeenLaunch) -> str:
    """The config that it trains with: what was seen, and of the rest what was read."""
    read = {k: v for k, v in run.read.items() if k in FIELDS and k not in _DEGREES}
    values = {**read, **run.knobs}
    return baseline_text({name: values[name] for name in KNOBS if name in values})


def _comment(run: SeenLaunch, fill_in: list[str]) -> str:
    length = f"seq_len: {SEEN}" if run.seq_len else "seq_len: not observed"
    if run.lengths:
        length = "seq_len: the average of the observed steps"
    if run.is_length_open or (not run.seq_len and _LENGTH in fill_in):
        length = "fill in: seq_len, tokens per sequence"
    if not run.batch or run.is_batch_open:
        return f"{length}; fill in: global_batch_size, sequences per optimizer step"
    each = (
        f"{run.seen.micro_batches} x {run.micro_batch_size}"
        if run.micro_batch_size
        else f"{run.seen.sequences}"
    )
    return f"{length}; batch: {SEEN}, {each} on {run.replicas} of {run.facts.world} ranks"


def _differences(draft: Draft, run: SeenLaunch, told: Mapping[str, Any]) -> Iterator[str]:
    """Where reading and seeing differ."""
    workload, read = draft.document["workload"], _knobs_of(draft)
    said: list[tuple[str, Any, Any]] = []
    for name in ("seq_len", "global_batch_size", "optimizer"):
        before = workload.get(name, "adamw" if name == "optimizer" else None)
        if f"workload.{name}" not in draft.fill_in:
            said.append((name, before, told.get(name, before)))
    ranks = (
        math.prod(int(read.get(degree, 1)) for degree in (*_DEGREES, "dp"))
        if "dp" in read
        else None
    )
    said.append(("ranks", ranks, run.facts.world))
    said += [
        (knob, read.get(knob), value)
        for knob, value in run.knobs.items()
        if knob != "dp" and f"space.{knob}" not in draft.fill_in
    ]
    differing = {name for name, before, after in said if before is not None and before != after}
    if {"micro_batch_size", "seq_len"} <= differing:
        yield "the first steps train other sizes than the options say; if these steps are only a first phase, such as a warm-up, start the program after that phase (or set the phase's length to 0) and observe again"
    for name, before, after in said:
        if name in differing:
            yield f"{name}: the source says {value_word(before)}, but the run used {value_word(after)}; the spec has the observed value"


def _unseen(
    run: SeenLaunch, read: Mapping[str, Any], fill_in: list[str], told: Mapping[str, Any]
) -> Iterator[str]:
    """What was read and could not be seen."""
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
    trained, all_of_it = run.seen.facts.get("trainable"), run.facts.parameters
    if trained and all_of_it and trained < all_of_it / 2 and "peft" not in told:
        yield f"{trained:,} of {all_of_it:,} weights are trained; if these are adapters, write `peft: {{method: lora, rank: ...}}` under `workload`"
