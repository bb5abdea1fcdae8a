"""Evidence -> failure: pure functions that tell apart why an attempt failed.

A failure has one primary cause and many consequences: when one rank runs out of memory, its peers
only see a broken connection. The evidence of all ranks is therefore weighed together, and the
strongest class wins (`WEIGHTS`): a trainer's own verdict, exhausted memory, a dead process, an
exception, one that a collective raised, a collective that timed out, and last the echo "a peer is
gone".
"""

from __future__ import annotations

import errno
import math
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.spec import Failure, FailureKind
from autotune_workers.gang.exception_kinds import judged, lacks_memory

PEER_GONE = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|broken pipe|remote process exited|socket (closed|error)"
    r"|not (currently )?connected|application timeout caused pair closure|failed to recv|recvValue failed|sendBytes failed"
    r"|NCCL communicator was aborted|aborted on|process group .*(destroyed|aborted)|unhandled system error"
    r"|connectFullMesh failed|store.*(closed|shut ?down)",
    re.IGNORECASE,
)
_TIMED_OUT = re.compile(r"timed out|timeout", re.IGNORECASE)
_KILLED = re.compile(r"\bSIGKILL\b|\bexitcode\s*:\s*-9\b|^Killed$", re.MULTILINE)
_RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)\b")
"""the last line of a traceback"""
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_FATAL = (
    signal.SIGILL,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGKILL,
    signal.SIGSEGV,
    signal.SIGTERM,
)
"""signals whose numbers exit statuses carry"""

EXPLOSION_FACTOR = 2.0
EXPLODED_STEPS = 3

WEIGHTS = ("verdict", "memory", "death", "exception", "collective", "timeout", "echo")
"""Classes of evidence, the strongest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What one rank's end says."""

    weight: str
    """one of WEIGHTS"""
    kind: FailureKind
    """the class that it speaks for"""
    message: str
    """in one sentence"""
    exception: str = ""
    """type and text, or the signal"""
    rank: int | None = None
    """who says it"""
    step: int | None = None
    """in which step, from 0 with warm-up"""
    log_tail: tuple[str, ...] = ()
    """last lines of its log"""

    def failure(self) -> Failure:
        """As the failure of the attempt."""
        return Failure(
            kind=self.kind,
            message=self.message,
            exception=self.exception,
            log_tail=self.log_tail,
            rank=self.rank,
            step=self.step,
        )


def place(rank: int | None, step: int | None, phase: str, verb: str = "") -> str:
    """ "rank 1 in step 4", or in which phase before the first step, with the `verb` between them if there is one; a rank of None is a program whose
    ranks nobody knows."""
    who = ("the program" if rank is None else f"rank {rank}") + (f" {verb}" if verb else "")
    return f"{who} in step {step}" if step is not None else f"{who} during {phase or 'start'}"


def divergence(losses: Sequence[float], vocab_size: int) -> str:
    """Why the last of these losses (nats per token) ends a trial as diverged; empty when it does
    not.

    Exploded is a loss above `EXPLOSION_FACTOR` times that of guessing, or of the first loss if that
    is more, `EXPLODED_STEPS` times in a row. A loss that is no cross entropy and begins below 0
    says nothing.
    """
    guess = math.log(vocab_size)
    limit, recent = EXPLOSION_FACTOR * max(guess, losses[0]), losses[-EXPLODED_STEPS:]
    if limit <= 0 or len(recent) < EXPLODED_STEPS or not all(loss > limit for loss in recent):
        return ""
    return (
        f"the loss must stay under {limit:.3g} (random guessing gives {guess:.3g}), "
        f"but was {losses[-1]:.3g} after {EXPLODED_STEPS} such steps"
    )


def root_cause(error: BaseException) -> BaseException:
    """A pipeline stage wraps what it meets in a RuntimeError; memory and shape errors are told
    apart by their own type."""
    while isinstance(error, RuntimeError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def of_exception(
    report: Mapping[str, Any], *, rank: int | None, phase: str = "", log_tail: Sequence[str] = ()
) -> Evidence:
    """Evidence of an exception that a rank reported: `type`, `text`, `errno`, `step`, `code` (the
    line that raised it), and `failure` when the trainer named it itself; `waited`: whether it came
    while the rank waited for its peers; `aborted`: whether the rank had been told to break off its
    collectives before."""
    step = report.get("step")
    where = place(rank, step, phase)
    name, text = str(report.get("type", "Exception")), str(report.get("text", ""))
    exception = f"{name}: {text}" if text else name
    tail = tuple(log_tail)
    if report.get("failure"):
        own = Failure.from_dict(report["failure"])
        return Evidence(
            weight="verdict",
            kind=own.kind,
            message=own.message,
            exception=own.exception or exception,
            rank=rank if own.rank is None else own.rank,
            step=step if own.step is None else own.step,
            log_tail=own.log_tail or tail,
        )

    def evidence(weight: str, kind: FailureKind, message: str) -> Evidence:
        return Evidence(
            weight=weight,
            kind=kind,
            message=message,
            exception=exception,
            rank=rank,
            step=step,
            log_tail=tail,
        )

    first_line = text.strip().splitlines()[0][:300] if text.strip() else name
    said = judged(name, text, code=str(report.get("code") or ""), is_started=bool(step))
    if report.get("errno") == errno.ENOMEM or (said is not None and said.weight == "memory"):
        return evidence(
            "memory", FailureKind.OUT_OF_MEMORY, f"{where} ran out of memory: {first_line}"
        )
    if report.get("errno") in _DISK_FULL:
        return evidence(
            "exception", FailureKind.ERROR, f"{where} ran out of disk space: {first_line}"
        )
    if report.get("aborted"):
        return evidence("echo", FailureKind.ERROR, f"{where} was aborted: {first_line}")
    if said is not None:
        return evidence(said.weight, said.kind, f"{where} {said.verb}: {first_line}")
    if "Dist" in name or name in (
        "RuntimeError",
        "ConnectionError",
        "ConnectionResetError",
        "BrokenPipeError",
    ):
        if PEER_GONE.search(text):
            return evidence(
                "echo",
                FailureKind.WORKER_LOST,
                f"{where} lost the connection to a peer: {first_line}",
            )
        if _TIMED_OUT.search(text):
            return evidence(
                "timeout",
                FailureKind.HANG,
                f"{where} waited in a collective until it timed out: {first_line}",
            )
        if "Dist" in name or report.get("waited"):
            return evidence(
                "collective",
                FailureKind.ERROR,
                f"{where} raised {name} in a collective: {first_line}",
            )
    return evidence("exception", FailureKind.ERROR, f"{where} raised {name}: {first_line}")


def of_death(
    *,
    rank: int | None,
    code: int | None,
    step: int | None = None,
    phase: str = "",
    log_tail: Sequence[str] = (),
    kernel_oom: bool = False,
    why: str = "",
    is_explained: bool = False,
) -> Evidence:
    """Evidence of a process that is gone. `code`: exit status, negative for a signal, None when
    nobody knows; `why`: what else is known; `is_explained`: whether its log has said why, so that
    words in its last lines say nothing more.

    `kernel_oom`: the kernel's out-of-memory killer has struck since the trial began. An
    unprivileged process cannot read which process it killed, so a SIGKILL (or a launcher's log line
    about one) at the same time is attributed to it: an inference.
    """
    where, tail = place(rank, step, phase), tuple(log_tail)
    text = "\n".join(tail)

    def evidence(weight: str, kind: FailureKind, message: str, exception: str) -> Evidence:
        return Evidence(
            weight=weight,
            kind=kind,
            message=message,
            exception=exception,
            rank=rank,
            step=step,
            log_tail=tail,
        )

    if code is None:
        lost = place(rank, step, phase, "was lost")
        return evidence(
            "death", FailureKind.WORKER_LOST, f"{lost}: {why or 'the host is lost'}", why
        )
    code, passed_on = died_of(code), f" (exit code {code})" if died_of(code) != code else ""
    if kernel_oom and (code == -signal.SIGKILL or (code > 0 and _KILLED.search(text))):
        message = f"{where} was killed by the kernel, because the machine ran out of memory"
        return evidence(
            "memory",
            FailureKind.OUT_OF_MEMORY,
            message,
            "SIGKILL by the kernel's out-of-memory killer",
        )
    says_memory = not is_explained and lacks_memory(text)
    if code >= 0:
        if says_memory:
            return evidence(
                "memory",
                FailureKind.OUT_OF_MEMORY,
                f"{where} ran out of memory and ended",
                f"exit code {code}",
            )
        kind = FailureKind.WORKER_LOST if code == 0 else FailureKind.ERROR
        raised = tail[-1].strip() if code and tail and _RAISED.match(tail[-1].strip()) else ""
        ended = f"{where} ended with exit code {code}" + (f": {raised}" if raised else "")
        return evidence("death", kind, ended, raised or f"exit code {code}")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if name in ("SIGABRT", "SIGSEGV", "SIGBUS") and says_memory:
        return evidence(
            "memory",
            FailureKind.OUT_OF_MEMORY,
            f"{where} ran out of memory and died with {name}",
            name,
        )
    if name in ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE"):
        return evidence("death", FailureKind.ERROR, f"{where} crashed with {name}{passed_on}", name)
    return evidence(
        "death", FailureKind.WORKER_LOST, f"{where} was killed by {name}{passed_on}", name
    )


def died_of(code: int) -> int:
    """The signal, as a negative number, that an exit status passes on: shells end with 128 + n,
    Python's launchers by `sys.exit(-n)`, which is 256 - n. Any other status as it is."""
    return next((-number for number in _FATAL if code in (128 + number, 256 - number)), code)


def follows(evidence: Evidence, earlier: Iterable[Evidence], *, has_aborted: bool) -> bool:
    """Whether a death comes of what went before: of an exception of another rank, or of our own
    abort, which NCCL's watchdog answers by SIGABRT."""
    if evidence.weight != "death":
        return False
    raised = any(e.weight == "exception" and e.rank != evidence.rank for e in earlier)
    return raised or (has_aborted and evidence.exception == "SIGABRT")


def weigh(evidence: Iterable[Evidence]) -> Evidence | None:
    """The evidence that explains the rest: the strongest, and of equals the first."""
    items = list(evidence)
    return min(items, key=lambda e: WEIGHTS.index(e.weight)) if items else None
