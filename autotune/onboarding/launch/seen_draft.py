"""A draft with what the probe saw of its launch in place of what was read of it.

    seen and read     the spec has what was seen; where the two differ, a note says both
    seen alone        what was to be filled in is filled in
    read alone        it stays, and a note names it as not seen
    neither           it is to be filled in, by its name

A step of one process gives micro-batches and sequences; the processes and the degrees give how many have data of their own. Degrees are those that were read, or that the
program's own meshes tell.

The model of a draft, by what the probe saw: the shape that was read where the weights agree with it, that of the model's own config, that of its modules, else the number of weights.

A shape is taken only where it has as many weights as were counted: what the modules look like is a guess until then.

The baseline is the launch: an option that sets the batch means whatever gives its value of today by what was seen. Where nothing does, it keeps that value.
Steps that grow are a first phase, whose sizes are not those of the training.
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
from autotune.spec.texts.as_text import value_word
from autotune.trainers.documents.placeholders import Values, parse

AGREES, IS_SAME = 0.05, 0.01
"""relative differences of weights: of a shape that was read (padded vocabularies, biases), and of one that is put together from what was seen"""
_REQUIRED = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size")


def seen_model(
    facts: ProgramFacts, read: ModelSpec | None, *, seq_len: int | None
) -> tuple[Any, str] | None:
    """(what the spec says, where it is from); None where what was read stands, or nothing was seen. `read`: the model that was read, if any."""
    found, kind = facts.parameters, facts.values.get("model", "")
    if found is None:
        return None
    if why := _no_decoder(facts):
        return {"parameters": found}, f"weights counted in {kind}: no decoder, because {why}"
    if read is not None and _differs(read, found) <= AGREES:
        return None
    if (shape := _of_config(facts, found) or _of_modules(facts, found, seq_len)) is not None:
        assumed = "; taken as a decoder: no mask of its attention was seen"
        is_seen = facts.values.get("is_causal") is not None
        return _written(
            shape
        ), f"{kind}, as observed: {found:,} weights{'' if is_seen else assumed}"
    return (
        {"parameters": found},
        f"weights counted in {kind}; give its shape instead if it is a decoder",
    )


def _no_decoder(facts: ProgramFacts) -> str:
    """Why it cannot be one; empty where nothing speaks against it."""
    shape = facts.values.get("shape") or {}
    if facts.values.get("is_causal") is False:
        return "its attention sees later tokens"
    return "nothing projects onto its vocabulary" if shape.get("has_head") is False else ""


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
_PHASE = "if this is a warm-up, turn it off (0 warm-up steps) and observe again"
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
        """Sequences of the first steps, where they differ much and no more than half of the steps have as many; else none: the last batch of an epoch may be smaller."""
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
    """Whether none is below the one before, and the last is more than the first; False where one is not known."""
    known = [value for value in values if value]
    if len(known) < max(2, len(values)):
        return False
    return known == sorted(known) and known[-1] > (1 + _SAME_LENGTH) * known[0]


def seen_draft(
    draft: Draft, seen: ProgramSeen, *, launched: str, steps: int, folder: Path
) -> Draft:
    """The draft; `launched`: what was started, in words, `folder`: of the spec."""
    read = _knobs_of(draft)
    run = SeenLaunch(seen, read)
    parts = [part for entry in draft.entries for part in entry.parts]
    commands = [part.items for part in parts if part.key == "argv"]
    words = [item.value for items in commands for item in items]
    is_open = any("$" in word or "`" in word or FILL_IN in word for word in words)
    entries = {entry.key: entry for entry in draft.entries}
    told_by_words = [
        name
        for name in ("trainer.argv",)
        if words and any("{" in word for word in words) and not is_open
    ]
    fill_in = [name for name in draft.fill_in if name not in ("baseline", *told_by_words)]
    dropped = (
        "no baseline",
        NOT_PRINTED,
        *(["only the shell can compute"] if told_by_words else []),
    )
    notes = [note for note in draft.notes if not note.startswith(dropped)]
    told = dict(_workload(entries["workload"].value, run))
    notes += _differences(draft, run, told)
    notes += [*_unseen(run, read, fill_in, told), *filter(None, [seen.unevenness])]
    if seen.facts.get("offloads") and not any(ON_HOST in note for note in notes):
        notes.append(f"{NOT_COUNTED}{ON_HOST}, planned on the GPU: {NEEDS_LESS}")
    entries["workload"] = replace(entries["workload"], value=told, comment=_comment(run, fill_in))
    fill_in = [name for name in fill_in if name not in _filled(run)]
    if run.is_length_open:
        fill_in.append(_LENGTH)
    if run.grows_in_length:
        notes.append(
            f"the sequence length is unknown, because it grew from step to step ({', '.join(map(str, run.lengths))} tokens): {_PHASE}; "
            "if they are padded, write their average as seq_len"
        )
    elif run.lengths:
        notes.append(
            f"sequences differ in length from step to step ({', '.join(map(str, run.lengths))} tokens), and tokens/s counts seq_len for each of them: "
            "write the average of your data as seq_len"
        )
    if run.seq_len is None and _LENGTH in draft.fill_in:
        notes.append(
            "no tokens were observed: use seq_len: 1 for a model without sequences; tokens/s then means samples/s"
        )
    if (
        model := seen_model(run.facts, _model_of(draft, folder), seq_len=told.get("seq_len"))
    ) is not None:
        entries["model"] = Entry(key="model", value=model[0], comment=model[1])
        fill_in = [name for name in fill_in if name != "model"]
    if why := _no_baseline(run):
        fill_in += ["baseline", *(["workload.global_batch_size"] if run.is_batch_open else [])]
        notes.append(f"no baseline: {why} add its current settings as `baseline:`")
        entries.pop("baseline", None)
    else:
        misread = _misread(entries["trainer"], run)
        is_local = draft.document["cluster"] == "local"
        entries["space"] = _space(
            entries["space"], run, misread, batch=told.get("global_batch_size"), is_local=is_local
        )
        entries["baseline"] = Entry(
            key="baseline", value=_config(run, read), comment=f"{SEEN}: {run.facts.world} ranks"
        )
        entries["trainer"] = _trainer(entries["trainer"], run, misread)
        meant = dict(_meant(draft.today, run))
        entries["trainer"] = _rewritten(entries["trainer"], meant)
        entries["space"] = _space_of(entries["space"], run, meant)
        if kept := _kept(meant):
            notes.append(
                f"it is unclear what the batch options mean: set to {' and '.join(kept)}, they gave {run.seen.micro_batches} x {run.micro_batch_size} "
                "sequences per step and rank; they keep these values, so the batch is not tuned"
            )
            told["global_batch_size"] = run.batch
            entries["workload"] = replace(entries["workload"], value=told)
    read_length = draft.document["workload"].get("seq_len")
    if (
        run.seq_len
        and _LENGTH not in (*draft.fill_in, *fill_in)
        and not _is_same_length(read_length, run.seq_len)
    ):
        before, entries["trainer"] = (
            entries["trainer"],
            _rewritten(entries["trainer"], {"{seq_len}": str(read_length)}),
        )
        if entries["trainer"] != before:
            notes.append(
                f"the length option stays {read_length}: it seems to be a maximum, and trials must not change it"
            )
    order = [entry.key for entry in draft.entries]
    order = (
        order
        if "baseline" in order
        else [*order[: order.index("trainer")], "baseline", *order[order.index("trainer") :]]
    )
    heading = (
        f"A first spec from `autotune init --run`: {launched} ran for {steps} optimizer step{'s' if steps != 1 else ''}, and was stopped.",
        "Values are what the probe observed. Those that come only from the source are marked with their line. Next: `autotune check`, then `autotune tune`.",
    )
    return replace(
        draft,
        heading=heading,
        entries=tuple(entries[key] for key in order if key in entries),
        fill_in=tuple(dict.fromkeys(fill_in)),
        notes=tuple(notes),
    )


def _no_baseline(run: SeenLaunch) -> str:
    """Why what was seen is none; empty where it is."""
    counts = ", ".join(str(each.sequences) for each in run.seen.first_steps)
    if run.grows_in_batch:
        return f"the batch grew from step to step ({counts} sequences per rank): {_PHASE}, or"
    if run.batches:
        return f"the batch differs from step to step ({counts} sequences per rank), as where it is filled up to a token limit: write its average as global_batch_size, and"
    return "" if run.micro_batch_size else "the sequences per micro-batch were not observed;"


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


def _workload(read: Mapping[str, Any], run: SeenLaunch) -> Iterator[tuple[str, Any]]:
    """The workload with what was seen."""
    told = dict(read)
    if (
        run.seq_len
        and not run.is_length_open
        and not _is_same_length(told.get("seq_len"), run.seq_len)
    ):
        told["seq_len"] = run.seq_len
    if run.batch and not run.is_batch_open:
        batches = told.get("global_batch_size")
        if not isinstance(batches, list):
            told["global_batch_size"] = run.batch
        elif run.batch not in batches:
            told["global_batch_size"] = _scaled(run.batch, run)
    if (optimizer := run.facts.optimizer) is not None and optimizer != told.get(
        "optimizer", "adamw"
    ):
        told["optimizer"] = optimizer
    if run.facts.is_pure_bf16:
        told["pure_bf16"] = True
    elif run.facts.weights == "fp32":
        told = {
            name: value
            for name, value in told.items()
            if name not in ("pure_bf16", "shards_in_fp32")
        }
    yield from told.items()


def _scaled(batch: int, run: SeenLaunch) -> list[int]:
    """Batches around the one that was seen, of a program that cannot accumulate: each micro-batch is a batch."""
    each = run.replicas * (run.seen.micro_batches or 1)
    return sorted({each * size for size in around(max(1, batch // each))})


def _is_same_length(read: Any, found: int) -> bool:
    return isinstance(read, int) and abs(read - found) <= max(1, _SAME_LENGTH * read)


def _misread(entry: Entry, run: SeenLaunch) -> dict[str, Any]:
    """Values that were read of the launch, by knob, whose words mean what was seen: `values` has no word for that (tf32, which is fp32 on a CPU)."""
    words: Mapping[str, Any] = next(
        (part.value for part in entry.parts if part.key == "values"), {}
    )
    return {
        knob: run.read[knob]
        for knob, known in words.items()
        if knob in run.knobs and run.knobs[knob] not in known and run.read.get(knob) in known
    }


def _space(
    entry: Entry, run: SeenLaunch, misread: Mapping[str, Any], *, batch: Any, is_local: bool
) -> Entry:
    """The space, with what was seen among its values; a knob that has one value has the one that was seen. `is_local`: the cluster is this machine, of which
    the launch may use a part."""
    if not isinstance(entry.value, dict):
        return entry  # one that ships
    space = dict(entry.value)
    for knob, value in run.knobs.items():
        listed = space.get(knob)
        if isinstance(listed, list) and knob in misread:
            listed = [value if each == misread[knob] else each for each in listed]
        if knob == "dp" or isinstance(listed, dict):
            continue
        if not isinstance(listed, list):
            if knob == "micro_batch_size" or (
                value != KNOBS[knob].default and knob != "accumulation_steps"
            ):
                space[knob] = [value]
        elif value not in listed:
            several = around(value) if knob == "micro_batch_size" else [value, *listed]
            space[knob] = [value] if len(listed) == 1 else several
        else:
            space[knob] = (
                listed
                if knob == "micro_batch_size"
                else [value, *(v for v in listed if v != value)]
            )
    formats = space.get("precision")
    # which has no units for these
    if isinstance(formats, list) and run.facts.values.get("device") == "cpu":
        space["precision"] = [
            each for each in formats if each not in _OF_GPUS or each == run.knobs.get("precision")
        ]
    sizes = space.get("micro_batch_size")
    # the others are in no step of that batch
    if isinstance(sizes, list) and isinstance(batch, int):
        space["micro_batch_size"] = [
            size for size in sizes if batch % (size * run.replicas) == 0
        ] or sizes
    if run.facts.world not in space.get("world_sizes", ()) and (is_local or "world_sizes" in space):
        space["world_sizes"] = [run.facts.world]
    return replace(entry, value=space)


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
    """(placeholder of the batch, what stands for it): where it does not give its option's value of today by what was seen, one that does, else that value."""
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


def _space_of(entry: Entry, run: SeenLaunch, meant: Mapping[str, str]) -> Entry:
    """The space without what these placeholders cannot tell: other batches than the one that was seen, and parts of a sample of several rows."""
    if not isinstance(entry.value, dict):
        return entry
    space = dict(entry.value)
    if _kept(meant):
        space |= {name: [run.knobs[name]] for name in ("micro_batch_size", "accumulation_steps")}
    rows = [int(text.strip("{}").split()[-1]) for text in meant.values() if "//" in text]
    if rows and isinstance(sizes := space.get("micro_batch_size"), list):
        space["micro_batch_size"] = [size for size in sizes if size % rows[0] == 0]
    return replace(entry, value=space)


def _config(run: SeenLaunch, read: Mapping[str, Any]) -> str:
    """The config that it trains with: what was seen, and of the rest what was read."""
    values = {**{k: v for k, v in read.items() if k in FIELDS and k not in _DEGREES}, **run.knobs}
    return baseline_text({name: values[name] for name in KNOBS if name in values})


def _trainer(entry: Entry, run: SeenLaunch, misread: Mapping[str, Any]) -> Entry:
    """The trainer, with what it is started with anyway as it was seen."""
    parts = []
    for part in entry.parts:
        if part.key == "fixed":
            part = replace(
                part,
                value={**part.value, **{k: v for k, v in run.knobs.items() if k in part.value}},
            )
        if part.key == "values":
            part = replace(
                part,
                value={
                    knob: _with_seen(knob, known, run, misread)
                    for knob, known in part.value.items()
                },
            )
        parts.append(part)
    return replace(entry, parts=tuple(parts))


def _with_seen(
    knob: str, words: Mapping[Any, Any], run: SeenLaunch, misread: Mapping[str, Any]
) -> dict[Any, Any]:
    """The words of a knob by value, what was misread by what was seen."""
    if knob not in misread:
        return dict(words)
    return {
        run.knobs[knob] if value == misread[knob] else value: word for value, word in words.items()
    }


def _comment(run: SeenLaunch, fill_in: list[str]) -> str:
    length = f"seq_len: {SEEN}" if run.seq_len else "seq_len: not observed"
    if run.lengths:
        length = "seq_len: average of the observed steps"
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
        yield "the first steps train other sizes than the options say: if this is only a first phase, as a warm-up is, start the program behind it (or set its length to 0) and observe again"
    for name, before, after in said:
        if name in differing:
            yield f"{name}: read {value_word(before)}, observed {value_word(after)}; the spec has the observed value"


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
        yield f"the optimizer {run.facts.optimizers} is counted as AdamW, because the memory of its states is unknown"
    if others := run.seen.other_sequences:
        counts = " or ".join(map(str, (run.seen.sequences, *others)))
        yield (
            f"it is unclear how many sequences a step trains on each rank: {counts}, because the model is called several times for one backward pass or optimizer; "
            f"the spec has the first, so correct global_batch_size, seq_len and `baseline:` if it is another"
        )
    if frozen := run.seen.facts.get("frozen"):
        yield f"{NOT_COUNTED}other models that it calls and does not train ({frozen:,} weights): {NEEDS_MORE}"
    trained, all_of_it = run.seen.facts.get("trainable"), run.facts.parameters
    if trained and all_of_it and trained < all_of_it / 2 and "peft" not in told:
        yield f"{trained:,} of {all_of_it:,} weights are trained: write `peft: {{method: lora, rank: ...}}` under `workload` if these are adapters"
