"""The replay benchmark reads published sweeps, counts right, and draws."""

from __future__ import annotations

import csv
from pathlib import Path
from xml.etree import ElementTree

import pytest

from autotune.spec import FailureKind
from tests.benchmarks import replay as benchmark
from tests.benchmarks.cells import Cell, read_cells
from tests.benchmarks.figure import curves_svg
from tests.shortcuts import present

NANOTRON = benchmark.DATA / "nanotron_h100.csv"


@pytest.fixture(scope="module")
def cell() -> Cell:
    return next(c for c in read_cells(NANOTRON) if c.name.startswith("nanotron-llama-1B, 8 GPUs"))


def test_the_development_cells() -> None:
    cells = [c for name in benchmark.DEFAULT for c in read_cells(benchmark.DATA / name)]
    assert len(cells) == 32
    for c in cells:
        assert len(c.rows) >= 15
        for config in c.rows:
            assert config.world_size == c.workload.cluster.num_gpus
            assert config.global_batch_size == c.workload.global_batch_sizes[0]


def test_failures_are_trials_that_failed(cell: Cell) -> None:
    broken = next(c for c, row in cell.rows.items() if row.failure)
    trial = cell.trial(broken, 0)
    assert present(trial.failure).kind is FailureKind.OUT_OF_MEMORY
    assert cell.regret(broken) == 1.0
    assert min(cell.regret(c) for c in cell.rows) == 0.0


def test_a_run_counts_until_within_five_percent(cell: Cell) -> None:
    run = benchmark.replay(cell, "random", 0)
    assert run.curve[min(run.trials, len(run.curve)) - 1] <= benchmark.CLOSE or run.trials > len(
        run.curve
    )
    assert list(run.curve) == sorted(run.curve, reverse=True)
    assert run.failed < run.trials
    assert run.stopped_after is None


@pytest.mark.thorough
def test_bayesian_stops_itself(cell: Cell) -> None:
    run = benchmark.replay(cell, "bayesian", 0, in_flight=2)
    assert run.trials <= 5
    assert run.stopped_after is not None
    assert run.stopped_after <= benchmark.CURVE + 1


def test_history_is_of_other_cells() -> None:
    cells = read_cells(NANOTRON)
    firsts = {
        c.name: [c.trial(config, 0) for config in list(c.rows)[: benchmark.PAST_TRIALS]]
        for c in cells
    }
    history = benchmark.past(cells[0], cells, firsts, 3, 0)
    assert len(history) == 3 * benchmark.PAST_TRIALS
    assert all(workload != cells[0].workload for workload, _ in history)


def test_any_table_in_the_common_header(tmp_path: Path) -> None:
    with NANOTRON.open(newline="") as file:
        rows = list(csv.DictReader(file))
    path = tmp_path / "mine.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows({**r, "source": "mine"} for r in rows[:60])
    (one,) = read_cells(path, unknown_cause=FailureKind.ERROR)
    assert one.workload.trainer == "native"
    assert benchmark.replay(one, "cost_ranked", 0).trials <= len(one.rows)


def test_the_figure_is_well_formed() -> None:
    root = ElementTree.fromstring(
        curves_svg({"a & b": [1.0, 0.1, 0.0], "c": [0.5, 0.5, 0.5]}, title="<regret>")
    )
    assert sum(1 for e in root.iter() if e.tag.endswith("polyline")) == 2
