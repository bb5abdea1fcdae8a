"""A study leaves out nodes that a calibration or its own trials show to be slow, where its runner
has others, and says so where it cannot."""

from __future__ import annotations

from typing import Any

import pytest

from autotune import api
from autotune.diagnosis import Evidence
from autotune.ports import ChoosingRunner, Store
from autotune.results.calibrations import known_outliers, save_outliers
from autotune.space import SearchSpace
from autotune.spec import Measurement, Study, Trial, TrialStatus
from autotune.study.outliers import Outliers
from autotune.study.progress import TrialEnded
from autotune.trainers.base.torchrun import Placement
from tests.diagnosing.made_up import run
from tests.study.hearing import notices

GPU = {"kind": "gpu", "name": "rank 5 (node n2)", "node": "n2", "what": "matmul", "times": 1.5, "text": "rank 5 (node n2) is an outlier: matmul 1.50 times slower than the others"}  # fmt: skip
LINK = {**GPU, "kind": "link", "name": "n1 to n2", "node": "n1", "text": "n1 to n2 is an outlier"}
SPEC = {
    "name": "several-nodes",
    "model": "nano-gpt",
    "cluster": "a100-80gb-2x2",
    "workload": {"seq_len": 64, "global_batch_size": 8},
    "space": {"dp": [1, 2, 4], "micro_batch_size": [1, 2]},
    "budget": {"max_trials": 4},
    "runner": "ray",
}


class Chooser:
    """A runner with these nodes of two ranks each."""

    trainers, capacity = ("native",), 8

    def __init__(self, *nodes: str) -> None:
        self.nodes = list(nodes)

    def leave_out(self, node: str, needed: Placement) -> str:
        if node not in self.nodes:
            return "absent"
        if len(self.nodes) - 1 < needed.nnodes:
            return "needed"
        self.nodes.remove(node)
        return "left out"

    def start(self, request: Any) -> None: ...

    def poll(self, timeout_s: float) -> list[Any]:
        return []

    def cancel(self, attempt: Any) -> None: ...

    def close(self) -> None: ...


def told(runner: Any) -> tuple[Outliers, list[str]]:
    study: Study = api.load_study(SPEC)
    said: list[str] = []

    kept: list[str] = []
    return Outliers(
        study, SearchSpace.of_study(study), runner, notices(said), keep=kept.append
    ), said


@pytest.mark.parametrize(
    ("nodes", "found", "left", "words"),
    [
        pytest.param(
            ("n0", "n1", "n2"),
            [
                {**GPU, "date": "2026-11-28T10:00:00+00:00"},
                {**GPU, "kind": "node", "name": "node n2"},
            ],
            ["n0", "n1"],
            "rank 5 (node n2) is an outlier: matmul 1.50 times slower than the others (measured 2026-11-28); node n2 is left out; the following trials use other nodes",
            id="the node of a slow GPU, where there are others",
        ),
        pytest.param(
            ("n1", "n2"),
            [GPU],
            ["n1", "n2"],
            "needs 2 nodes with 2 ranks each",
            id="a node that the largest config needs stays",
        ),
        pytest.param(("n1", "n2"), [GPU], ["n1", "n2"], "add a node", id="and its remedy is named"),
        pytest.param(
            ("n0", "n1", "n3"),
            [GPU, LINK, LINK],
            ["n0", "n1", "n3"],
            "configs that send data between these nodes wait for this link",
            id="nodes of another cluster are not spoken of, and links leave no node out",
        ),
    ],
)
def test_a_node_is_left_out_where_there_are_others_and_named_once(
    nodes: tuple[str, ...], found: list[dict[str, Any]], left: list[str], words: str
) -> None:
    runner = Chooser(*nodes)
    outliers, said = told(runner)
    outliers.judge(found)
    assert runner.nodes == left
    assert len(said) == 1
    assert words in said[0]


def test_a_runner_that_cannot_choose_says_so_with_a_remedy() -> None:
    class Plain:
        trainers, capacity = ("native",), 4

    outliers, said = told(Plain())
    outliers.judge([GPU])
    assert "the 'ray' runner cannot choose nodes or GPUs" in said[0]
    assert "CUDA_VISIBLE_DEVICES" in said[0]


def trial(number: int, *, slow: str = "", nodes: int = 3) -> Trial:
    ranks = 2 * nodes
    of_node = [rank for rank in range(ranks) if slow == f"node{rank * nodes // ranks}"]
    evidence: Evidence = run(
        ranks=ranks, nodes=nodes, seed=number, slower=dict.fromkeys(of_node, 1.6)
    )
    study = api.load_study(SPEC)
    measured = Measurement(
        step_times_s=evidence.step_times_s, num_ranks=ranks, evidence=evidence.to_dict()
    )
    config = SearchSpace.of_study(study)[0]
    return Trial(number=number, config=config, status=TrialStatus.COMPLETED, measurement=measured)


def test_trials_that_show_a_slow_node_leave_it_out_but_one_alone_does_not() -> None:
    runner = Chooser("node0", "node1", "node2")
    outliers, said = told(runner)
    for number in range(3):
        outliers.hear(TrialEnded(trial=trial(number)))
    assert said == []
    outliers.hear(TrialEnded(trial=trial(3, slow="node1")))
    assert said == []
    for number in (4, 5):
        outliers.hear(TrialEnded(trial=trial(number, slow="node1")))
    assert runner.nodes == ["node0", "node2"]
    assert len(said) == 1
    assert "node node1 computes" in said[0]
    assert "in 3 trials" in said[0]


def test_trials_on_one_node_blame_no_node() -> None:
    runner = Chooser("node0", "node1", "node2")
    outliers, said = told(runner)
    for number in range(4):
        outliers.hear(TrialEnded(trial=trial(number, slow="node0", nodes=1)))
    assert (runner.nodes, said) == (["node0", "node1", "node2"], [])


def test_what_is_known_of_nodes_lasts_until_they_are_measured_again(store: Store) -> None:
    assert known_outliers(store, "a100") == []
    save_outliers(
        store, "a100", {"nodes": ["n1", "n2"], "out_of_line": [GPU], "date": "2026-11-28"}
    )
    save_outliers(store, "a100", {"nodes": ["n7"], "out_of_line": []})
    save_outliers(store, "a100", {"out_of_line": []})
    assert [(entry["node"], entry["date"]) for entry in known_outliers(store, "a100")] == [
        ("n2", "2026-11-28")
    ]
    save_outliers(store, "a100", {"nodes": ["n2"], "out_of_line": []})
    assert known_outliers(store, "a100") == []
    assert known_outliers(None, "a100") == []


@pytest.mark.parametrize("name", ["ray", "slurm"])
def test_runners_that_choose_nodes_say_so_by_their_protocol(name: str) -> None:
    from autotune.registry import RUNNERS, load

    made = load(RUNNERS, name)
    assert callable(made.leave_out)
    assert isinstance(Chooser(), ChoosingRunner)
