"""Which calls of a module count in a step, and of how many sequences: of programs of many habits,
each a few lines in a process of its own, and of one step here."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autotune_workers.probe.injected.passes import Call, Root, counted
from tests.matrix import sampled
from tests.shortcuts import file_with
from tests.workers.probe.watching import watched

IDS = torch.zeros(8, 16, dtype=torch.int64)


class Step:
    """One step of a program that calls modules."""

    def __init__(self) -> None:
        self.roots: dict[int, Root] = {}
        self.backwards = 0

    def call(self, module: nn.Module, *args: Any) -> Tensor:
        root = self.roots.setdefault(id(module), Root(module))
        call = Call(root)
        call.look(torch, module, args)
        for name, part in module.named_modules():
            if name:
                part.register_forward_pre_hook(lambda m, given: call.look(torch, m, given))
        found: Tensor = module(*args)
        call.ends(torch, found)
        return found

    def backward(self, loss: Tensor) -> None:
        self.backwards += 1
        loss.sum().backward()

    def ends(self) -> tuple[int, list[int], int | None]:
        found = counted(self.roots.values(), backwards=self.backwards, loaded=0, takes_turns=False)
        self.backwards = 0
        for root in self.roots.values():
            root.step_ends()
        return found


def embedding() -> nn.Embedding:
    return nn.Embedding(4, 3)


class Wide(nn.Module):
    """Takes whatever it is given beside its input."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = embedding()

    def forward(self, ids: Tensor, *others: Any) -> Tensor:
        return self.inside(ids.clamp(0, 3))


class Recurrent(nn.Module):
    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.table, self.layer = embedding(), nn.LSTM(3, 3, batch_first=batch_first)

    def forward(self, ids: Tensor) -> Tensor:
        return self.layer(self.table(ids))[0]


class Graphs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, nodes: Tensor, edges: Tensor, graph: Tensor) -> Tensor:
        return self.layer(nodes)


def test_two_towers_before_one_backward_pass_are_one_micro_batch() -> None:
    step, model = Step(), embedding()
    for _ in range(2):
        queries, passages = step.call(model, IDS[:, :4].clone()), step.call(model, IDS.clone())
        step.backward(queries.sum(1) @ passages.sum(1).T)
    assert step.ends() == (2, [16, 32], 2 * 8 * (4 + 16))


@pytest.mark.parametrize(("loaded", "likeliest"), [(0, 8), (8, 8), (32, 32)])
def test_what_loaders_gave_tells_parts_of_a_batch_from_towers(loaded: int, likeliest: int) -> None:
    step, model = Step(), embedding()
    step.backward(sum(step.call(model, IDS.clone()) for _ in range(4)))  # type: ignore[arg-type]
    micro, sequences, tokens = counted(
        step.roots.values(), backwards=1, loaded=loaded, takes_turns=False
    )
    assert (micro, sequences[0], tokens) == (1, likeliest, 4 * 128)
    assert {8, 32} == set(sequences)


def test_calls_that_train_nothing_do_not_count() -> None:
    step, model, teacher = Step(), embedding(), embedding().requires_grad_(False)
    step.call(model, torch.zeros(64, 16, dtype=torch.int64))  # looked at alone
    step.backward(step.call(model, IDS.clone()) - step.call(teacher, IDS))
    assert step.ends() == (1, [8], 128)


def test_where_no_gradient_is_seen_all_calls_count() -> None:
    step, model = Step(), embedding()
    step.call(model, IDS.clone())
    step.call(model, IDS.clone())
    assert step.ends() == (2, [16], 256)


def test_the_same_data_again_counts_once_unless_it_is_the_same_in_each_step() -> None:
    step, model, always = Step(), embedding(), IDS.clone()
    found = []
    for _ in range(2):
        batch = IDS.clone()
        for ids in (batch, batch, always, always):
            step.backward(step.call(model, ids))
        found.append(step.ends())
    assert [sequences[-1] for _, sequences, _ in found] == [16, 24]
    written = IDS.clone()
    for _ in range(2):
        written.zero_()
        step.backward(step.call(model, written))
    assert step.ends() == (2, [16], 256)


@pytest.mark.parametrize(("batch_first", "sequences"), [(True, 8), (False, 16)])
def test_a_model_that_has_the_length_first_is_given_as_many_sequences_as_its_second_dimension(
    batch_first: bool, sequences: int
) -> None:
    step = Step()
    step.backward(step.call(Recurrent(batch_first=batch_first), IDS.clone()))
    assert step.ends() == (1, [sequences], 128)


@pytest.mark.parametrize(
    "others",
    [
        (),
        (torch.ones(8, 16),),
        (torch.arange(16),),
        (torch.zeros(1, 16),),
        ({"pixels": torch.zeros(70, 3), "labels": torch.zeros(8)},),
    ],
)
def test_tokens_that_fit_another_input_tell_the_size(others: tuple[Any, ...]) -> None:
    step = Step()
    step.backward(step.call(Wide(), IDS.clone(), *others))
    assert step.ends() == (1, [8], 128)


def test_edges_of_graphs_tell_no_size() -> None:
    step = Step()
    edges, graph = torch.zeros(2, 60, dtype=torch.int64), torch.zeros(21, dtype=torch.int64)
    step.backward(step.call(Graphs(), torch.ones(21, 3), edges, graph))
    assert step.ends() == (1, [], None)


def test_a_call_that_fails_does_not_count() -> None:
    call = Call(Root(embedding()))
    call.ends(torch, None)
    assert call.root.made.calls == 0


BEGIN = """\
    import torch
    from torch import nn
    model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 4))
    adam = torch.optim.AdamW(model.parameters())
    def loss(n=6):
        return model(torch.zeros(n, 5, dtype=torch.int64)).square().mean()
    """


@dataclass(frozen=True)
class Habit:
    """A program, and what each of its steps trains."""

    code: str
    micro: int
    sequences: int


HABITS = {
    "an optimizer that accumulates around another": Habit(
        """\
        class Accumulating(torch.optim.Optimizer):
            def __init__(self, inner):
                self.inner, self.calls = inner, 0
                super().__init__(inner.param_groups, {})
            def step(self):
                self.calls += 1
                if self.calls % 3 == 0:
                    self.inner.step()
        outer = Accumulating(adam)
        for _ in range(12):
            loss().backward()
            outer.step()
        """,
        3,
        18,
    ),
    "an optimizer that looks at its loss several times": Habit(
        """\
        lbfgs = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
        for _ in range(4):
            ids = torch.randint(0, 8, (6, 5))
            def closure():
                lbfgs.zero_grad()
                found = model(ids).square().mean()
                found.backward()
                return found
            lbfgs.step(closure)
        """,
        1,
        6,
    ),
    "weights that are changed for a second look": Habit(
        """\
        for _ in range(4):
            ids = torch.randint(0, 8, (6, 5))
            for last in (False, True):
                model(ids).square().mean().backward()
                with torch.no_grad():
                    for p in model.parameters():
                        p.add_(-0.01 if last else 0.01)
            adam.step()
        """,
        1,
        6,
    ),
    "an optimizer for each weight that steps within the backward pass": Habit(
        """\
        own = {p: torch.optim.AdamW([p]) for p in model.parameters()}
        def steps(p):
            own[p].step()
            own[p].zero_grad()
        for p in own:
            p.register_post_accumulate_grad_hook(steps)
        for _ in range(4):
            loss().backward()
        """,
        1,
        6,
    ),
    "evaluations in the middle that keep gradients on": Habit(
        """\
        for _ in range(4):
            loss().backward()
            adam.step()
            print(loss(32).item(), loss(32).item())
        """,
        1,
        6,
    ),
    "a training in a thread, after a look at the model": Habit(
        """\
        import threading
        def train():
            for _ in range(5):
                loss().backward()
                loss().backward()
                adam.step()
        loss(1)
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        """,
        2,
        12,
    ),
}


@pytest.mark.parametrize("name", sampled(list(HABITS), list(HABITS)[:1]))
def test_programs_of_many_habits_are_seen_as_they_train(tmp_path: Path, name: str) -> None:
    habit = HABITS[name]
    program = file_with(tmp_path / "train.py", dedent(BEGIN) + dedent(habit.code))
    seen = watched([sys.executable, str(program)], cwd=tmp_path)
    assert seen.code == 0, seen.text
    assert not seen.of("trouble")
    assert not seen.of("own_updates")
    steps = seen.steps()
    assert len(steps) >= 4
    assert {(step["micro"], step["sequences"][0]) for step in steps} == {
        (habit.micro, habit.sequences)
    }
