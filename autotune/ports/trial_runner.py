"""Protocol of trial runners, which execute attempts and report events. They make no decisions about
studies.

    TrialRequest    an attempt to run                RunnerEvent      an event of an attempt: queued, started, steps, log, seen, ended
    TrialRunner     start, poll, cancel, close       AdoptingRunner   can take over attempts of an earlier runner
                                                     PreflightRunner  can reject a study in advance
                                                     ChoosingRunner   can exclude nodes

All values are plain, so that they can be sent between processes and machines as JSON.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from autotune.spec import Failure, Measurement, MeasureSpec, ParallelConfig, Study, Workload
from autotune.spec.plain import Plain
from autotune.trainers.base.torchrun import Placement

UNLIMITED_RANKS = 1 << 20
"""capacity of a runner without a limit on ranks"""


class AttemptId(NamedTuple):
    """The id by which commands and events refer to an attempt."""

    study: str
    """id of the study"""
    trial: int
    """trial number"""
    attempt: int
    """number of the attempt, from 1"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest(Plain):
    """One attempt to run, as plain values: it is sent between processes and machines as JSON."""

    study: str
    """id of the study"""
    number: int
    """trial number"""
    attempt: int
    """number of the attempt, from 1"""
    workload: Workload
    """what is trained"""
    config: ParallelConfig
    """the config it is trained with"""
    measure: MeasureSpec
    """how it is measured, with its deadlines"""
    seed: int = 0
    """seed of weights and data"""
    trainer: str = "native"
    """registered name of the trainer"""
    trainer_options: Mapping[str, Any] = field(default_factory=dict)
    """further options of the trainer"""
    data: str | None = None
    """text or .bin file; None means the bundled text"""
    profile: bool = False
    """also profile the parts of the step"""
    beat_step_time_s: float | None = None
    """best step time so far for the same tokens per step; a trial that can no longer match it ends
    early as STOPPED"""
    repeat: int = 0
    """how many times this study has already measured this config"""
    with_log: bool = False
    """also report the lines that a program prints, as `LogRead`, and what the probe observed, as
    `ProgramSeen`"""
    watched: bool = True
    """whether the probe observes the program"""
    keeps_outputs: bool = False
    """whether a program writes to its usual location, so that each trial overwrites the output of
    the previous one"""
    as_it_is: bool = False
    """whether a program is started exactly as its user starts it: what it trains is then only
    observed, not compared with a config"""
    ends_itself: bool = False
    """whether a measured program may run to completion, to observe what it writes at the end"""

    @property
    def id(self) -> AttemptId:
        """The id in this attempt's events."""
        return AttemptId(self.study, self.number, self.attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlace:
    """The ranks of an attempt on one node."""

    node: str
    """its hostname"""
    ranks: tuple[int, ...]
    """their numbers in the attempt"""
    gpus: tuple[str, ...] = ()
    """their GPUs, as named in CUDA_VISIBLE_DEVICES on the node; empty if they train on the CPU, or
    if the program sees all GPUs"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted:
    """The ranks are placed and begin their setup."""

    id: AttemptId
    places: tuple[NodePlace, ...] = ()
    """the ranks' nodes, starting with rank 0's; empty if unknown to the runner"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptQueued:
    """The attempt is waiting for ranks that others use. Repeated while it waits; waiting does not
    count against any deadline."""

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
    """number of the node within the attempt, from 0"""
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStep:
    """What one process trained on in one of the first steps. None: not observed."""

    sequences: int | None
    """sequences"""
    tokens: int | None
    """tokens"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSeen:
    """What the probe observed of a program, reported at its end, for requests that ask for the
    log."""

    id: AttemptId
    facts: Mapping[str, Any]
    """what the measured process trains, with the same keys as the probe's reports; empty if the
    probe observed no training"""
    options: tuple[Mapping[str, Any], ...] = ()
    """the options of the program, as its argparse parser has them; only of a program that is
    started `as_it_is`"""
    steps: int = 0
    """number of optimizer steps"""
    micro_batches: int | None = None
    """forward passes with gradients in a typical step"""
    sequences: int | None = None
    """sequences that one process trains on in a typical step"""
    other_sequences: tuple[int, ...] = ()
    """what `sequences` may be instead, where the model is called several times before a backward
    pass"""
    tokens: int | None = None
    """tokens that one process trains on in a typical step; on average if `lengths_vary`"""
    first_steps: tuple[FirstStep, ...] = ()
    """the first steps, in their order"""
    wait_share: float | None = None
    """share of the step time spent waiting for data"""
    skipped_steps: int = 0
    """steps skipped by a gradient scaler"""
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """files written or removed outside the trial's folder, by path: `how` the file was changed,
    whether it `existed` before, and whether a copy was `kept`"""
    lost: tuple[str, ...] = ()
    """the user's files that could not be restored, each with its current path"""
    troubles: tuple[str, ...] = ()
    """why the probe observed nothing, or not everything"""
    has_own_updates: bool = False
    """whether the program updates its weights without a torch optimizer, so that the probe observes
    no steps"""
    fills_by_tokens: bool = False
    """whether the number of sequences varies from step to step, as with micro-batches filled up to
    a token limit"""
    lengths_vary: bool = False
    """whether the tokens per sequence vary from step to step, as with batches padded to their
    longest sequence"""
    unevenness: str = ""
    """how ranks differ in their weights or in the number of sequences they train on, as text"""
    remarks: tuple[str, ...] = ()
    """conditions that limit what the trial's figures mean, as in `Measurement.remarks`"""
    disagreement: str = ""
    """how a step differs from the config, as text"""
    witness: str = ""
    """how the log differs from the probe, as text"""
    measured: bool = False
    """whether the measured steps come from the probe"""
    together: int = 1
    """largest number of steps whose lines arrived at once, if steps are timed by the arrival of
    their lines"""
    left_out: str = ""
    """how much of its log could not be read because it was too long, as text"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded:
    """The attempt is over and its resources are free. There is exactly one for each started
    attempt. `failure` None means measured: COMPLETED, or STOPPED if
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
        """Start the attempt and return at once; later errors arrive as `AttemptEnded` with a
        failure.

        Raises `RunnerError` only if nothing can run at all (Ray has died, no such trainer).
        """
        ...

    def poll(self, timeout_s: float) -> list[RunnerEvent]:
        """Events since the last call; waits up to `timeout_s` for the first one."""
        ...

    def cancel(self, attempt: AttemptId) -> None:
        """End the attempt soon: cooperative stop, then kill. Its `AttemptEnded` (cancelled) still
        arrives. Unknown ids are ignored."""
        ...

    def close(self) -> None:
        """Kill all running attempts and free all resources. Idempotent; bounded in time."""
        ...


@runtime_checkable
class AdoptingRunner(TrialRunner, Protocol):
    """A runner whose attempts outlive it for a while, so that the study's next runner can continue
    them."""

    def adopt(self, study: str, attempts: Collection[AttemptId]) -> list[AttemptId]:
        """Take over the `attempts` of this study's previous runner that are still running, or whose
        end was not reported, and report all their events again. Its other processes are kept warm
        or ended."""
        ...


LeftOut = Literal["left out", "needed", "absent"]
"""outcome of leaving a node out: it gets no more ranks; there would be too few nodes without it;
the runner has no such node"""


@runtime_checkable
class ChoosingRunner(TrialRunner, Protocol):
    """A runner that can leave nodes out."""

    def leave_out(self, node: str, needed: Placement) -> LeftOut:
        """Place no rank of later attempts on this node (hostname or address), unless the other
        nodes have no room for ranks placed as `needed`."""
        ...


class PreflightRunner(TrialRunner, Protocol):
    """A runner that can reject a study in advance: the class does so before anything is started,
    and the object does so for the cluster that it has joined.
    Each method is optional."""

    @classmethod
    def preflight(cls, study: Study) -> None:
        """Raise `RunnerError` for a study that the runner cannot run on any machine, e.g. because
        it does not know the trainer."""
        ...

    @classmethod
    def preflight_here(cls, study: Study, smallest: ParallelConfig) -> None:
        """Raise `RunnerError` (or `MissingExtraError`) for a study that it cannot run on this
        machine. `smallest`: the config in the space with the fewest ranks. Takes milliseconds:
        nothing is started, and no cluster is contacted."""
        ...

    def check_study(self, study: Study) -> None:
        """Raise `RunnerError` if the cluster that the runner has joined cannot run the study; only
        a started runner can know this."""
        ...
