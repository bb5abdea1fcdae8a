"""A small study, and a hand-written store that refuses what a store must never be asked to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from autotune.ports import (
    AttemptEnded,
    AttemptId,
    CloseAttempt,
    EndTrial,
    KeepSteps,
    KeepTrial,
    StartAttempt,
    TrialRequest,
)
from autotune.search.grid import GridSearcher
from autotune.search.searcher import Problem, Searcher
from autotune.space import SearchSpace
from autotune.spec import (
    Budget,
    ClusterSpec,
    Failure,
    FailureKind,
    GpuSpec,
    Measurement,
    MeasureSpec,
    ModelSpec,
    ParallelConfig,
    SpaceSpec,
    Study,
    Trial,
    TrialPurpose,
    TrialStatus,
    Workload,
)
from autotune.study.controller import (
    AttemptAdopted,
    CancelAttempt,
    Command,
    Controller,
    EndStudy,
    EnterPhase,
    Event,
    KeepLate,
    Tick,
)
from autotune.study.loop import CHECKPOINT_S
from tests.shortcuts import present

CAPACITY = 4


def workload() -> Workload:
    gpu = GpuSpec(
        name="cpu",
        memory_bytes=4e9,
        peak_flops_per_s={"fp32": 1e11, "bf16": 1e11},
        memory_bytes_per_s=1e10,
    )
    model = ModelSpec(
        name="tiny", num_layers=4, hidden_size=64, num_attention_heads=4, vocab_size=256
    )
    return Workload(
        model=model,
        cluster=ClusterSpec(name="cpu-1x4", gpu=gpu, num_nodes=1, gpus_per_node=4),
        seq_len=32,
        global_batch_size=8,
    )


CONFIGS = tuple(
    ParallelConfig(
        tp=tp, pp=pp, dp=dp, micro_batch_size=m, accumulation_steps=8 // (m * dp), precision="fp32"
    )
    for tp, pp, dp in (
        (1, 1, 1),
        (2, 1, 1),
        (1, 2, 1),
        (1, 1, 2),
        (2, 2, 1),
        (2, 1, 2),
        (1, 2, 2),
        (1, 1, 4),
    )
    for m in (1, 2)
)
BASELINE = ParallelConfig(dp=4, accumulation_steps=2, precision="fp32")


def study(**budget: Any) -> Study:
    measure = budget.pop("measure", MeasureSpec(finalists=2, final_rounds=2))
    return Study(
        name="world",
        workload=workload(),
        space=SpaceSpec(),
        budget=Budget(**budget),
        measure=measure,
        searcher="grid",
    )


def measured(config: ParallelConfig, step_time_s: float = 0.1, **fields: Any) -> Measurement:
    return Measurement(
        step_times_s=(step_time_s,) * 5,
        tokens_per_step=config.global_batch_size * 32,
        num_ranks=config.world_size,
        **fields,
    )


class RecordingSearcher(GridSearcher):
    """A grid searcher that counts what it is told."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.asked: list[ParallelConfig] = []
        self.told: Counter[int] = Counter()
        self.gain: float | None = None

    def ask(self, n: int = 1) -> list[ParallelConfig]:
        configs = super().ask(n)
        self.asked += configs
        return configs

    def tell(self, trials: Iterable[Trial]) -> None:
        trials = list(trials)
        self.told.update(
            t.number for t in trials if t.status.is_terminal and t.purpose is TrialPurpose.SEARCH
        )
        super().tell(trials)

    def expected_gain(self, trials: int = Searcher.LOOKAHEAD) -> float | None:
        return self.gain


class World:
    """A controller with the store that it writes and the attempts that a runner would be
    running."""

    def __init__(
        self,
        study: Study,
        *,
        capacity: int = CAPACITY,
        configs: Sequence[ParallelConfig] = CONFIGS,
        **options: Any,
    ) -> None:
        self.study, self.capacity, self.configs, self.options = study, capacity, configs, options
        self.trials: dict[int, Trial] = {}
        self.order: list[int] = []
        self.attempts: dict[int, int] = {}
        self.running: dict[AttemptId, TrialRequest] = {}
        self.cancelled: set[AttemptId] = set()
        self.late: list[AttemptEnded] = []
        self.ends: list[EndStudy] = []
        self.commands: list[Command] = []
        self.now_s = 100.0
        self.left_s: float | None = None
        """of the job that the study runs in"""
        self.passed_s = 0.0
        self.kept_s = 0.0
        self.forgotten_s = -CHECKPOINT_S  # the first controller follows none
        """at most, by all deaths of controllers"""
        self.elapsed_s = 0.0
        self.gpu_s: float | None = None
        self.stop_reason = ""
        self.restart()

    def restart(self, adopted: Collection[AttemptId] = ()) -> None:
        """What the death of the controller leaves: the store, and those attempts that its
        successor's runner adopts."""
        self.forgotten_s += CHECKPOINT_S
        self.running = {
            attempt: request for attempt, request in self.running.items() if attempt in adopted
        }
        self.cancelled.clear()
        self.ends = [e for e in self.ends if e.status.is_terminal]
        space = SearchSpace.of(self.study.workload, self.configs)
        self.searcher = RecordingSearcher(Problem(space=space))
        open_ones = [n for n in sorted(self.trials) if n not in self.order]
        self.controller = Controller(
            study_id="s",
            study=self.study,
            searcher=self.searcher,
            capacity=self.capacity,
            past=[self.trials[n] for n in (*self.order, *open_ones)],
            elapsed_s=self.elapsed_s,
            gpu_s=self.gpu_s,
            stop_reason=self.stop_reason,
            **({"baseline": BASELINE} | self.options),
        )
        for attempt in self.running:
            assert attempt in self.controller.cut_off
            assert self.do(AttemptAdopted(id=attempt)) == []

    def resume(self) -> list[Command]:
        """The controller dies, and the next one begins."""
        self.restart()
        return self.tick()

    def do(self, event: Event) -> list[Command]:
        """One event, with its commands carried out."""
        commands = self.controller.handle(event)
        self.commands += commands
        for command in commands:
            self._carry_out(command)
        if self.now_s - self.kept_s >= CHECKPOINT_S or any(
            isinstance(c, EndTrial | EndStudy) for c in commands
        ):
            self.checkpoint()
        return commands

    def checkpoint(self) -> None:
        """Keeps what the loop keeps now and then: times, which a restart goes on from."""
        self.kept_s = self.now_s
        self.elapsed_s, self.gpu_s = self.controller.elapsed_s, self.controller.spent.gpu_s

    def tick(self, seconds: float = 0.0) -> list[Command]:
        self.now_s += seconds
        self.passed_s += seconds
        return self.do(Tick(now_s=self.now_s, left_s=self.left_s))

    def finish(self, number: int, step_time_s: float = 0.1, **fields: Any) -> list[Command]:
        """The runner measured this trial."""
        request = self.request(number)
        return self.report(
            AttemptEnded(id=request.id, measurement=measured(request.config, step_time_s, **fields))
        )

    def fail(self, number: int, kind: FailureKind) -> list[Command]:
        request = self.request(number)
        return self.report(
            AttemptEnded(id=request.id, failure=Failure(kind=kind, message="as the test wants it"))
        )

    def cancel_confirmed(self, number: int) -> list[Command]:
        return self.report(AttemptEnded(id=self.request(number).id, cancelled=True))

    def report(self, event: AttemptEnded) -> list[Command]:
        self.running.pop(event.id, None)
        self.cancelled.discard(event.id)
        return self.do(event)

    def request(self, number: int) -> TrialRequest:
        return next(r for r in self.running.values() if r.number == number)

    @property
    def only(self) -> int:
        """Number of the one trial that runs."""
        (request,) = self.running.values()
        return request.number

    @property
    def end(self) -> EndStudy:
        """How it ended."""
        assert len(self.ends) == 1, self.ends
        return self.ends[0]

    @property
    def winner(self) -> ParallelConfig:
        """Config of the best trial, with which it ended."""
        return self.trials[present(self.end.best)].config

    def run(self, step_time_s: Any = lambda config: 0.1) -> EndStudy:
        """Lets every trial be measured, to the end."""
        self.tick()
        while not self.ends:
            number = min(r.number for r in self.running.values())
            self.finish(number, step_time_s(self.request(number).config))
            self.tick(1.0)
        return self.end

    def _carry_out(self, command: Command) -> None:
        assert not self.ends or isinstance(command, KeepLate), f"{command} after the end"
        match command:
            case KeepTrial(trial=trial):
                assert trial.number == len(self.trials)
                assert trial.status is TrialStatus.PENDING
                self.trials[trial.number] = trial
            case StartAttempt(request=request):
                trial = self.trials[request.number]
                assert not trial.status.is_terminal
                assert request.attempt == trial.attempts + 1
                assert not any(r.number == request.number for r in self.running.values())
                self.trials[request.number] = replace(
                    trial, status=TrialStatus.RUNNING, attempts=request.attempt
                )
                self.running[request.id] = request
                assert sum(r.config.world_size for r in self.running.values()) <= self.capacity
            case CloseAttempt(number=number, attempt=attempt):
                assert self.trials[number].status is TrialStatus.RUNNING
                assert self.trials[number].attempts == attempt
            case EndTrial(trial=trial):
                before = self.trials[trial.number]
                assert not before.status.is_terminal, f"{before.status} -> {trial.status}"
                assert trial.status.is_terminal
                assert before.config == trial.config
                assert (trial.failure is not None) == (trial.status is TrialStatus.FAILED)
                self.trials[trial.number] = trial
                self.order.append(trial.number)
            case CancelAttempt(id=attempt_id):
                assert attempt_id in self.running
                self.cancelled.add(attempt_id)
            case KeepSteps(steps=steps):
                assert not self.trials[steps.id[1]].status.is_terminal
            case KeepLate(event=event):
                self.late.append(event)
            case EnterPhase():
                self.stop_reason = self.controller.stop_reason
            case EndStudy():
                self.ends.append(command)
                if command.status.is_terminal:
                    assert all(t.status.is_terminal for t in self.trials.values())


def begun(study: Study, *, after: int = 0, **options: Any) -> World:
    """A study whose first so many trials have been measured."""
    world = World(study, **options)
    world.tick()
    for number in range(after):
        world.finish(number)
    return world
