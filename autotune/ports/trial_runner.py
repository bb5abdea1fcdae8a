"""The runner of trials: it executes attempts and reports what happens as events. It decides nothing about studies.

    TrialRequest    one attempt to be run            RunnerEvent      what is reported of it: queued, started, steps, log, seen, ended
    TrialRunner     start, poll, cancel, close       AdoptingRunner   one that can take over attempts of an earlier runner
                                                     PreflightRunner  one whose class says what it cannot run before it is made
                                                     ChoosingRunner   one that can leave nodes out

All values are plain, so that they cross process and machine borders as JSON.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from autotune.spec import Failure, Measurement, MeasureSpec, ParallelConfig, Study, Workload
from autotune.spec.plain import Plain
from autotune.trainers.base.torchrun import Placement

AttemptId = tuple[str, int, int]
"""(study id, trial number, attempt from 1)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest(Plain):
    """One attempt to be run. Plain values only: it is sent between processes and machines as JSON."""

    study: str
    """id of the study"""
    number: int
    """trial number"""
    attempt: int
    """from 1"""
    workload: Workload
    """what is trained"""
    config: ParallelConfig
    """how"""
    measure: MeasureSpec
    """how it is measured, with its deadlines"""
    seed: int = 0
    """seed of weights and data"""
    trainer: str = "native"
    """whose training loop"""
    trainer_options: Mapping[str, Any] = field(default_factory=dict)
    """further options of the trainer"""
    data: str | None = None
    """text or .bin file; None means the bundled text"""
    profile: bool = False
    """also profile the parts of the step"""
    beat_step_time_s: float | None = None
    """best step time so far for the same tokens per step; a trial that can no longer match it ends early as STOPPED"""
    repeat: int = 0
    """how often this config was measured before in this study"""
    with_log: bool = False
    """also report the lines that a program prints, as `LogRead`, and what the probe observed, as `ProgramSeen`"""
    watched: bool = True
    """whether the probe observes the program"""
    keeps_outputs: bool = False
    """whether a program writes to its usual place, so that each trial replaces the output of the last one"""
    as_it_is: bool = False
    """whether a program is started as its user starts it, to see what it does: what it trains is not compared with a config"""
    ends_itself: bool = False
    """whether a measured program may run to its own end, to see what it writes there"""

    @property
    def id(self) -> AttemptId:
        """The id in this attempt's events."""
        return (self.study, self.number, self.attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlace:
    """The ranks of an attempt on one node."""

    node: str
    """its hostname"""
    ranks: tuple[int, ...]
    """their numbers in the attempt"""
    gpus: tuple[str, ...] = ()
    """theirs, as CUDA_VISIBLE_DEVICES names them there; empty: they train on the CPU, or the program sees all GPUs"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted:
    """The ranks are placed and begin to set up."""

    id: AttemptId
    places: tuple[NodePlace, ...] = ()
    """where, the node of rank 0 first; empty: the runner cannot tell"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptQueued:
    """The attempt still waits for ranks that others use. Said again and again while it lasts: this time counts for no deadline."""

    id: AttemptId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsReported:
    """Some optimizer steps are done. Series of equal length; steps count from 0 with warm-up."""

    id: AttemptId
    first_step: int
    step_times_s: tuple[float, ...]
    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRead:
    """Lines that a program has printed, for requests that ask for them (`with_log`)."""

    id: AttemptId
    node: int
    """on which node of the attempt, from 0"""
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSeen:
    """What the probe saw of a program, at its end, for requests that ask for the log. Plain values."""

    id: AttemptId
    facts: Mapping[str, Any]
    """what the measured process trains, by the names of the probe's reports; empty: the probe saw no training"""
    micro_batches: int | None = None
    """forward passes with gradients of a usual step"""
    sequences: int | None = None
    """sequences that one process trains in a usual step"""
    tokens: int | None = None
    """tokens that one process trains in a usual step"""
    wait_share: float | None = None
    """share of the steps' time that was spent waiting for data"""
    skipped_steps: int = 0
    """steps that a gradient scaler left out"""
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """files that were written or removed outside of the trial's folder, by path: `how`, `existed`, `kept`"""
    lost: tuple[str, ...] = ()
    """files of the user's that could not be put back, each with where it is now"""
    troubles: tuple[str, ...] = ()
    """why the probe saw nothing, or not all"""
    has_own_updates: bool = False
    """whether the program changes its weights without an optimizer of torch, so that the probe sees no steps"""
    fills_by_tokens: bool = False
    """whether steps have other numbers of sequences than the config, each another one, as micro-batches that are filled up to a number of tokens have"""
    disagreement: str = ""
    """how a step differs from the config, in words"""
    witness: str = ""
    """how the log differs from the probe, in words"""
    measured: bool = False
    """whether the steps that count are the probe's"""
    together: int = 1
    """most steps whose lines arrived at once, where steps are timed by that"""
    left_out: str = ""
    """how much of its log was more than could be read, in words"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded:
    """The attempt is over and its resources are free. Exactly one for each started attempt. `failure` None means measured: COMPLETED, or STOPPED if
    `stopped` says why it ended early. A cancelled attempt has `cancelled`.
    """

    id: AttemptId
    measurement: Measurement | None = None
    failure: Failure | None = None
    stopped: str = ""
    cancelled: bool = False


RunnerEvent = AttemptQueued | AttemptStarted | StepsReported | LogRead | ProgramSeen | AttemptEnded


class TrialRunner(Protocol):
    """Executes attempts. Not thread-safe: one loop owns one runner."""

    trainers: Sequence[str]
    """names of the trainers that it can run"""

    @property
    def capacity(self) -> int:
        """Ranks that can be in use at once."""
        ...

    def start(self, request: TrialRequest) -> None:
        """Start the attempt and return at once; later errors arrive as `AttemptEnded` with a failure.

        Raises `RunnerError` only if nothing can run at all (Ray has died, no such trainer).
        """
        ...

    def poll(self, timeout_s: float) -> list[RunnerEvent]:
        """Events since the last call; waits up to `timeout_s` for the first one."""
        ...

    def cancel(self, attempt: AttemptId) -> None:
        """End the attempt soon: cooperative stop, then kill. Its `AttemptEnded` (cancelled) still arrives. Unknown ids are ignored."""
        ...

    def close(self) -> None:
        """Kill what runs and free everything. Idempotent; bounded in time."""
        ...


@runtime_checkable
class AdoptingRunner(TrialRunner, Protocol):
    """A runner whose attempts outlive it for a while, so that the next one of the study can go on with them."""

    def adopt(self, study: str, attempts: Collection[AttemptId]) -> list[AttemptId]:
        """Takes over what an earlier runner of this study left behind: those of `attempts` that still run, or ended unheard. All that they reported
        since they began is reported again. What else was left is kept warm, or ended."""
        ...


LeftOut = Literal["left out", "needed", "absent"]
"""what became of a node that a runner was to leave out: it gets no more ranks; too few would be left without it; the runner has no such node"""


@runtime_checkable
class ChoosingRunner(TrialRunner, Protocol):
    """A runner that can leave nodes out."""

    def leave_out(self, node: str, needed: Placement) -> LeftOut:
        """Gives no rank of an attempt that begins from now on to this node (hostname or address), unless the other nodes have no room for ranks that are
        placed as `needed`."""
        ...


class PreflightRunner(TrialRunner, Protocol):
    """A runner that says what it cannot run: its class before a runner is made and anything is started, and the runner of the cluster that it joined.
    Each method is optional."""

    @classmethod
    def preflight(cls, study: Study) -> None:
        """Raises `RunnerError` for a study that this runner can run on no machine, e.g. of a trainer that it does not know."""
        ...

    @classmethod
    def preflight_here(cls, study: Study, smallest: ParallelConfig) -> None:
        """Raises `RunnerError` (or `MissingExtraError`) for a study that it cannot run on this machine. `smallest`: the config of the space with
        the fewest ranks. Takes milliseconds: nothing is started, and no cluster is asked."""
        ...

    def check_study(self, study: Study) -> None:
        """Raises `RunnerError` for what only a runner that is made can know: what the cluster that it joined cannot run."""
        ...
