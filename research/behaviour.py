"""What the product answers, recorded, so that a change that should change nothing can show it.

python -m research.behaviour FOLDER               writes one file for each part below
python -m research.behaviour FOLDER --against OLD   then names what differs from a recording of an earlier checkout; exit 1 where something does

plans      `plan --json` of every shipped space with some catalog models on clusters of one and of many nodes
asked      the configs that searchers ask for in the cells of the replay, in order, with seeds
openapi    the service's document           help       the page of every command
answers    `status`, `best`, `list`, `report`, `export`, `store check` of a simulated study in a new store
upgraded   what each kept store of an older version says after its upgrade, and the tables that it has
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autotune import cli
from autotune.cli.exit_codes import BAD_INPUT
from tests.benchmarks.cells import read_cells
from tests.benchmarks.replay import DATA, DEFAULT
from tests.benchmarks.replay import replay as replayed

ROOT = Path(__file__).parents[1]
MODELS = ("gpt2-medium", "llama-8b", "mixtral-8x7b", "nano-gpt")
CLUSTERS = {"laptop": "cpu-1x4", "single-gpu": "h100-sxm-1x1", "dense-single-node": "h100-sxm-1x8"}
"""by space; of the others on four nodes"""
NODES = "a100-80gb-4x8"
TRAINERS = ("native", "megatron", "torchtitan")
SEEDED = ("random", "bayesian", "reinforce", "cost_ranked")
OLD_STORES = ROOT / "tests" / "store" / "data"
STUDY = {
    "name": "fixed",
    "model": "gpt2-small",
    "cluster": "h100-sxm-1x8",
    "workload": {"seq_len": 1024, "global_batch_size": 256},
    "space": "dense-single-node",
    "budget": {"max_trials": 8},
    "searcher": "bayesian",
    "runner": "simulated",
}
CHANGING = re.compile(
    r"\b[0-9a-f]{16,}\b|\b(?=[a-z]*\d)[a-z][a-z0-9]{9}\b|[\w.-]+:\d+:\d+:[0-9a-f]+|/tmp/\w+|\d{4}-\d\d-\d\d[T ][\d:.]+(\+00:00|Z)?|\"?(gpu|took|elapsed|wall|setup|created|updated|started|ended)_?\w*\"?: [-\d.e+]+"
)
"""ids, times of day and durations"""


def said(*words: str) -> str:
    """What a command says on both streams, without what changes from run to run, and its exit
    code."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.run(list(words))
    if code == BAD_INPUT:
        raise ValueError(f"{' '.join(words)}: {err.getvalue()}{out.getvalue()}")
    return CHANGING.sub("#", f"{code}\n{out.getvalue()}{err.getvalue()}")


def plans(folder: Path) -> dict[str, Any]:
    """By space, model and trainer."""
    store = ("--store", str(folder / "none.db"))
    spaces = sorted(path.stem for path in (ROOT / "search_spaces").glob("*.yaml"))
    found = {}
    for space, model, trainer in itertools.product(spaces, MODELS, TRAINERS):
        cluster = CLUSTERS.get(space, NODES)
        spec = {**STUDY, "model": model, "cluster": cluster, "space": space, "trainer": trainer}
        found[f"{space} {model} {trainer}"] = _spoken("plan", spec, "--json", "--top", "5", *store)
    return found


def _spoken(command: str, spec: dict[str, Any], *words: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.json"
        path.write_text(json.dumps(spec))
        return said(command, str(path), *words).replace(folder, "FOLDER")


def asked(_: Path) -> dict[str, Any]:
    """By searcher, cell and seed."""
    cells = [cell for name in DEFAULT for cell in read_cells(DATA / name)][::4]
    found: dict[str, Any] = {}
    for searcher in SEEDED:
        for cell in cells:
            for seed in (0, 1) if searcher in ("random",) else (0,):
                run = replayed(cell, searcher, seed)
                found[f"{searcher} {cell.name} {seed}"] = [
                    [str(trial.config) for trial in run.first],
                    run.curve,
                    run.trials,
                    run.stopped_after,
                ]
    return found


def openapi(folder: Path) -> dict[str, Any]:
    """The document that the service shows."""
    from autotune.service.http.app import create_app
    from autotune.service.options import ServiceOptions
    from autotune.store import open_store

    with contextlib.closing(open_store(folder / "openapi.db")) as store:
        found: dict[str, Any] = create_app(store, ServiceOptions()).openapi()
    return found


def help_pages(_: Path) -> dict[str, Any]:
    """By command."""
    from autotune.cli.help_pages import commands_of

    os.environ["COLUMNS"] = "120"
    names = [name for name, _ in commands_of(cli.application())]
    return {name: said(*name.split(), "--help") for name in ["", *names]}


def answers(folder: Path) -> dict[str, Any]:
    """Of a study that is simulated with its seed."""
    store = ("--store", str(folder / "results.db"))
    tuned = _spoken("tune", STUDY, "--json", *store)
    words = [
        "list",
        "status fixed",
        "best fixed --top 3",
        "best --model gpt2-small",
        "explain fixed",
        "logs fixed",
    ]
    found = {text: said(*text.split(), "--json", *store) for text in words}
    return {"tune": tuned, **found, "export": said("export", "fixed", "--to", "native", *store)}


def upgraded(folder: Path) -> dict[str, Any]:
    """By file."""
    found: dict[str, Any] = {}
    for script in sorted(OLD_STORES.glob("*.sql")):
        path = folder / f"{script.stem}.db"
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.executescript(script.read_text())
        listed = said("list", "--json", "--store", str(path))
        best = said("best", "--json", "--top", "5", "--store", str(path))
        with contextlib.closing(sqlite3.connect(path)) as connection:
            counts = {
                name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
                for (name,) in connection.execute(
                    "SELECT name FROM sqlite_master WHERE type='table' ORDER BY name"
                )
            }
        found[script.stem] = [listed, best, counts]
    return found


PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "openapi": openapi,
    "help": help_pages,
    "upgraded": upgraded,
    "answers": answers,
    "plans": plans,
    "asked": asked,
}


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """The places at which two recordings differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for name in sorted({*old, *new})
            for line in differences(old.get(name), new.get(name), f"{where}/{name}")
        ]
    return [] if old == new else [f"{where}: {_apart(old, new)}"]


def _apart(old: Any, new: Any) -> str:
    before, after = str(old), str(new)
    at = next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b),
        min(len(before), len(after)),
    )
    begin = max(0, at - 60)
    return f"{before[begin : at + 60]!r} is {after[begin : at + 60]!r}"


def main(arguments: Sequence[str]) -> int:
    """Records, and compares where an older recording is named."""
    folder = Path(arguments[0])
    old = Path(arguments[2]) if len(arguments) > 2 and arguments[1] == "--against" else None
    folder.mkdir(parents=True, exist_ok=True)
    apart = 0
    for name, part in PARTS.items():
        with tempfile.TemporaryDirectory() as scratch:
            recorded = json.loads(json.dumps(part(Path(scratch)), sort_keys=True))
        (folder / f"{name}.json").write_text(json.dumps(recorded, indent=1, sort_keys=True))
        found = differences(json.loads((old / f"{name}.json").read_text()), recorded) if old else []
        print(
            f"{name}: {len(recorded)} entries" + (f", {len(found)} differences" if old else ""),
            flush=True,
        )
        for line in found[:20]:
            print(f"  {line}")
        apart += len(found)
    return 1 if apart else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
