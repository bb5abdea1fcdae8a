"""Pipeline formulas against the schedule tables that torch itself runs."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from autotune.cost.layout import layout_of
from autotune.cost.time.pipeline import bubble_time_s, in_flight
from autotune.spec import ConfigTable, ModelSpec, ParallelConfig
from autotune.trainers.base.layer_split import cut_layers
from tests.cost.examples import MODEL, workload

TORCH = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved_1f1b": "Interleaved1F1B",
    "interleaved_zero_bubble": "InterleavedZeroBubble",
}
KINDS = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}
Work = tuple[str, int, int]


def torch_table(schedule: str, p: int, m: int, v: int) -> list[list[Work]]:
    """(kind, stage, micro-batch) in order, for each rank; idle slots and reductions left out."""
    visualizer = pytest.importorskip("torch.distributed.pipelining._schedule_visualizer")
    rows = visualizer.get_schedule_ops(
        TORCH[schedule], p, m, num_stages_per_rank=v if v > 1 else None
    )
    ranks = []
    for rank, row in enumerate(rows):
        seen: dict[tuple[str, int], int] = defaultdict(int)
        work = []
        for action in row:
            kind = KINDS.get(action.computation_type.name) if action is not None else None
            if kind is None:
                continue
            stage = rank if v == 1 else action.stage_index
            work.append((kind, stage, seen[kind, stage]))
            seen[kind, stage] += 1
        ranks.append(work)
    return ranks


def run(ranks: list[list[Work]], stages: int, seconds: dict[str, float]) -> tuple[float, list[int]]:
    """Plays a table: (when the last rank is done, most stage inputs that each rank held at
    once)."""
    done: dict[Work, float] = {}
    at, clock = [0] * len(ranks), [0.0] * len(ranks)
    held, peak = [0] * len(ranks), [0] * len(ranks)
    while any(at[r] < len(ranks[r]) for r in range(len(ranks))):
        before = list(at)
        for r, work in enumerate(ranks):
            while at[r] < len(work):
                kind, stage, batch = work[at[r]]
                needs: list[Work] = [("F", stage - 1, batch)] if kind == "F" and stage else []
                if kind in "BI":
                    needs = [("F", stage, batch)] + (
                        [("B", stage + 1, batch)] if stage < stages - 1 else []
                    )
                if any(need not in done for need in needs):
                    break
                clock[r] = max([clock[r], *(done[need] for need in needs)]) + seconds[kind]
                if kind != "W":
                    done["B" if kind == "I" else kind, stage, batch] = clock[r]
                held[r] += (kind == "F") - (kind in "BW")
                peak[r] = max(peak[r], held[r])
                at[r] += 1
        assert at != before, "the table deadlocks"
    return max(clock), peak


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize(
    ("schedule", "v"),
    [
        ("gpipe", 1),
        ("1f1b", 1),
        ("interleaved_1f1b", 2),
        ("interleaved_1f1b", 4),
        ("interleaved_zero_bubble", 2),
        ("interleaved_zero_bubble", 3),
    ],
)
def test_step_time_and_micro_batches_in_flight_agree_with_torch(
    schedule: str, v: int, p: int, rounds: int
) -> None:
    m = p * rounds
    seconds = {"F": 1.0 / v, "B": 2.0 / v, "I": 1.0 / v, "W": 1.0 / v}
    wanted, peaks = run(torch_table(schedule, p, m, v), p * v, seconds)
    table = ConfigTable.of(
        [ParallelConfig(pp=p, accumulation_steps=m, pp_schedule=schedule, virtual_stages=v)]
    )
    layout = layout_of(workload(), table)
    bubble = float(bubble_time_s(table, layout, np.array([3.0 * (p - 1)]))[0])
    assert 3.0 * m + bubble == pytest.approx(wanted)
    for rank in range(p):
        assert float(in_flight(table, layout, np.array([float(rank)]))[0]) * v == pytest.approx(
            peaks[rank]
        )


def test_layers_are_cut_evenly_or_by_cost() -> None:
    assert cut_layers(MODEL, 3) == [6.0, 5.0, 5.0]
    assert sum(cut_layers(MODEL, 5)) == MODEL.num_layers
    by_cost = cut_layers(MODEL, 4, "by_cost")
    assert sum(by_cost) == MODEL.num_layers
    assert by_cost[-1] <= by_cost[0]
    assert cut_layers(MODEL, 1, "by_cost") == [16.0]


def test_a_rank_that_reaches_its_share_is_full() -> None:
    """The projection weighs as much as four layers: 20 in all."""
    h, ffn = 2048, 8192
    model = ModelSpec(
        name="tied", num_layers=16, hidden_size=h, ffn_hidden_size=ffn, num_attention_heads=32, gated_mlp=True,
        vocab_size=4 * (4 * h + 3 * ffn), tied_embeddings=True,
    )  # fmt: skip
    assert cut_layers(model, 2, "by_cost") == [10.0, 6.0]
    assert cut_layers(model, 4, "by_cost") == [5.0, 5.0, 5.0, 1.0]
