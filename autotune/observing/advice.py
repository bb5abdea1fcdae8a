"""`advise(object)` reviews a training from inside its own process. The callback (`callback.py`)
stores the run at its end with functions of this module.

Errors become warnings, so they never interrupt the training.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.errors import SpecError
from autotune.observing.launch import cluster_of_ranks, results_database
from autotune.observing.objects import Training, training_of
from autotune.observing.rank import is_first
from autotune.observing.words import PREFIX, after
from autotune.ports.program_facts import ProgramFacts
from autotune.registry import RUNNERS, load
from autotune.reviews import Review, review
from autotune.reviews.words import short_lines
from autotune.spec import ObservedRun
from autotune.temporary_folders import TemporaryFolder
from autotune.trainers.base.own_program import COMMAND


def advise(
    thing: Any,
    model: Any = None,
    *,
    seq_len: int | None = None,
    batch: int | None = None,
    cluster: str | None = None,
    store: str | Path | None = None,
) -> Review | None:
    """Print a review of a training before it begins, on stderr of the first rank: whether it fits
    in memory, how fast it should be, and what would make it faster.

    Returns None on other ranks, and after an error, which becomes a warning. `thing`: transformers'
    or Lightning's `Trainer`, accelerate's `Accelerator`, a `DeviceMesh` (the last two with
    `model`), or a module. `seq_len` (tokens), `batch` (sequences per rank in a forward pass) and
    `cluster` provide what `thing` does not contain. `store`: the results database; by default the
    user's, if it exists.
    """
    if not is_first(os.environ, ()):
        return None
    try:
        training = training_of(thing, model=model, seq_len=seq_len, batch=batch)
        return announced(training, cluster=cluster, store=store)
    except Exception as error:
        warn(error)
        return None


def announced(training: Training, *, cluster: str | None, store: str | Path | None) -> Review:
    """Print the review of a training in at most five lines, and return it. Raises as `reviewed`."""
    result = reviewed(training, cluster=cluster, store=store)
    first, *rest = short_lines(result)
    if training.is_length_assumed:
        rest.insert(
            0,
            f"assumed: sequences of {training.seq_len} tokens, the model's maximum; set seq_len= for another length",
        )
    for line in [first, *rest][:5]:
        say(line)
    return result


def say(line: str) -> None:
    """Print a line on stderr as autotune's."""
    print(PREFIX + line, file=sys.stderr)


def reviewed(training: Training, *, cluster: str | None, store: str | Path | None) -> Review:
    """Review a training that was read from an object. Raises `SpecError` if its sequence length,
    micro-batch size or parameters are unknown."""
    from autotune.onboarding.launch.seen_draft import seen_model

    for name, value, how in (
        ("the tokens per sequence", training.seq_len, "seq_len="),
        ("the sequences per rank in a forward pass", training.micro_batch, "batch="),
    ):
        if value is None:
            raise SpecError(
                f"{name} could not be read from the object", remedy=f"say {how}", field="object"
            )
    facts = ProgramFacts(load(RUNNERS, "local").facts_of_model(training.model))
    shape = seen_model(facts, None, seq_len=training.seq_len)
    if shape is None:
        raise SpecError("the model has no parameters to count", field="model")
    knobs = training.document
    if facts.zero_stage is not None:
        knobs.setdefault("zero_stage", facts.zero_stage)
    assert training.micro_batch is not None
    document = {
        "name": type(training.model).__name__,
        "model": shape[0],
        "cluster": cluster or "local",
        "workload": {
            "seq_len": training.seq_len,
            "global_batch_size": training.micro_batch * training.accumulation * knobs["dp"],
        },
        "space": {
            name: [value]
            for name, value in knobs.items()
            if name in ("tp", "pp", "cp", "precision")
        },
        "baseline": knobs,
        "trainer": training.trainer,
    }
    if "parameters" in shape[0]:  # only the program itself can build it
        document["trainer"] = {"kind": COMMAND, "argv": ["python", program()], "fixed": knobs}
    here = cluster_of_ranks(training.nodes, max(1, training.ranks // training.nodes))
    with _opened(store) as database, TemporaryFolder("review") as folder:
        path = folder / "study.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        result = review(path, store=database, local_cluster=lambda: here)
        # the study is a temporary file, so its lines mean nothing to the user
        warnings = tuple(replace(each, file="", line=None) for each in result.warnings)
        return replace(result, target=document["name"], warnings=warnings)


def program() -> str:
    """Name of the running script, such as `train.py`."""
    return Path(sys.argv[0]).name or "python"


def warn(error: Exception) -> None:
    """Warn that advice failed. If Python turns warnings into errors, print the text instead."""
    text = f"autotune: advice failed, but training is not affected: {type(error).__name__}: {error}"
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    except Warning:
        print(text, file=sys.stderr)


def _opened(store: str | Path | None) -> Any:
    """Context manager of the results database; of None if it does not exist and was not requested
    by `store` or AUTOTUNE_STORE."""
    return results_database(store, is_needed=store is not None or "AUTOTUNE_STORE" in os.environ)


def kept(run: ObservedRun, store: str | Path | None) -> None:
    """Store the run if there is a results database, and print what was measured."""
    where = "not stored: there is no results database (set AUTOTUNE_STORE)"
    with _opened(store) as database:
        if database is not None:
            run = database.keep_observed(run)
            where = f"stored as observed run {run.id}"
    measured, ended = after(run, where)
    say(measured)
    say(ended if database is not None else ended.rpartition("; ")[0])
