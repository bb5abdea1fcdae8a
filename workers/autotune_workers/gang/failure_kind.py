"""Determines why an attempt failed from the evidence of its ranks. Pure functions.

A failure has one cause and many consequences: when one rank runs out of memory, its peers only see
a broken connection. The evidence of all ranks is therefore compared, and the strongest class wins
(`WEIGHTS`): a failure that the trainer itself named ("verdict"), exhausted memory, a dead process,
an exception, an exception in a collective, a collective that timed out, and last a lost peer
("echo").
"""

from __future__ import annotations

import errno
import functools
import math
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.spec import Failure, FailureKind
from autotune_workers.gang.exception_kinds import Judged, judged, lacks_memory

PEER_GONE = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|broken pipe|remote process exited|socket (closed|error)"
    r"|not (currently )?connected|application timeout caused pair closure|failed to recv|recvValue failed|sendBytes failed"
    r"|NCCL communicator was aborted|aborted on|process group .*(destroyed|aborted)|unhandled system error"
    r"|connectFullMesh failed|store.*(closed|shut ?down)",
    re.IGNORECASE,
)
_TIMED_OUT = re.compile(r"timed out|timeout", re.IGNORECASE)
_CONNECTION_ERRORS = (
    "RuntimeError",
    "ConnectionError",
    "ConnectionResetError",
    "BrokenPipeError",
)
"""exceptions that a lost peer may cause, besides those of torch.distributed"""
_CRASHES = ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE")
_CRASHES_WITHOUT_MEMORY = ("SIGABRT", "SIGSEGV", "SIGBUS")
"""signals with which programs may die after a failed allocation"""
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
"""signals that are recognized in exit statuses of launchers and shells"""

EXPLOSION_FACTOR = 2.0
"""a loss above this multiple of that of random guessing counts as exploded"""
EXPLODED_STEPS = 3
"""number of consecutive exploded steps that end a trial as diverged"""

WEIGHTS = ("verdict", "memory", "death", "exception", "collective", "timeout", "echo")
"""classes of evidence, the strongest first"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A possible cause of the failure of an attempt, seen on one rank."""

    weight: str
    """one of WEIGHTS"""
    kind: FailureKind
    message: str
    """one sentence"""
    exception: str = ""
    """type and text, or the signal"""
    rank: int | None = None
    step: int | None = None
    """from 0, warm-up included"""
    log_tail: tuple[str, ...] = ()
    """last lines of the rank's log"""

    def failure(self) -> Failure:
        """The failure of an attempt with this cause."""
        return Failure(
            kind=self.kind,
            message=self.message,
            exception=self.exception,
            log_tail=self.log_tail,
            rank=self.rank,
            step=self.step,
        )


def place(rank: int | None, step: int | None, phase: str, verb: str = "") -> str:
    """Words for messages: "rank 1 in step 4", or before the first step "rank 1 during PHASE"; with
    a verb "rank 1 was lost in step 4". A rank of None is "the program"."""
    who = ("the program" if rank is None else f"rank {rank}") + (f" {verb}" if verb else "")
    return f"{who} in step {step}" if step is not None else f"{who} during {phase or 'start'}"


def divergence(losses: Sequence[float], vocab_size: int) -> str:
    """Why a trial with these losses (nats per token) has diverged; empty if it has not.

    It has if the last `EXPLODED_STEPS` losses exceed `EXPLOSION_FACTOR` times the loss of random
    guessing, or times the first loss if that is larger.
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
    """The original error inside of the RuntimeErrors that pipeline stages wrap around it; its type
    is needed to classify it."""
    while isinstance(error, RuntimeError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def of_exception(
    report: Mapping[str, Any], *, rank: int | None, phase: str = "", log_tail: Sequence[str] = ()
) -> Evidence:
    """Classifies an exception that a rank reported.

    `report` may have `type`, `text`, `errno`, `step`, `code` (the line that raised it), `failure`
    (if the trainer named it itself), `waited` (the rank was waiting for its peers), and `aborted`
    (the rank's collectives had been aborted before).
    """
    step = report.get("step")
    name, text = str(report.get("type", "Exception")), str(report.get("text", ""))
    exception = f"{name}: {text}" if text else name
    if report.get("failure"):
        named = Failure.from_dict(report["failure"])
        return Evidence(
            weight="verdict",
            kind=named.kind,
            message=named.message,
            exception=named.exception or exception,
            rank=rank if named.rank is None else named.rank,
            step=step if named.step is None else named.step,
            log_tail=named.log_tail or tuple(log_tail),
        )
    found = _classify(report, name, text)
    first_line = text.strip().splitlines()[0][:300] if text.strip() else name
    return Evidence(
        weight=found.weight,
        kind=found.kind,
        message=f"{place(rank, step, phase)} {found.verb}: {first_line}",
        exception=exception,
        rank=rank,
        step=step,
        log_tail=tuple(log_tail),
    )


def _classify(report: Mapping[str, Any], name: str, text: str) -> Judged:
    """Classifies an exception by name, text and the circumstances in the report."""
    by_itself = judged(
        name, text, code=str(report.get("code") or ""), is_started=bool(report.get("step"))
    )
    if report.get("errno") == errno.ENOMEM or (by_itself and by_itself.weight == "memory"):
        return Judged("memory", FailureKind.OUT_OF_MEMORY, "ran out of memory")
    if report.get("errno") in _DISK_FULL:
        return Judged("exception", FailureKind.ERROR, "ran out of disk space")
    if report.get("aborted"):
        return Judged("echo", FailureKind.ERROR, "was aborted")
    if by_itself is not None:
        return by_itself
    if "Dist" in name or name in _CONNECTION_ERRORS:
        if PEER_GONE.search(text):
            return Judged("echo", FailureKind.WORKER_LOST, "lost the connection to a peer")
        if _TIMED_OUT.search(text):
            return Judged("timeout", FailureKind.HANG, "waited in a collective until it timed out")
        if "Dist" in name or report.get("waited"):
            return Judged("collective", FailureKind.ERROR, f"raised {name} in a collective")
    return Judged("exception", FailureKind.ERROR, f"raised {name}")


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
    """Classifies the death of a process. `code`: exit status, negative for a signal, None if
    unknown; `why`: reason of a loss with unknown status; `is_explained`: its log has explained the
    death, so do not search `log_tail` for messages about memory.

    `kernel_oom`: the kernel's out-of-memory killer has killed a process since the trial began.
    Which one cannot be read without privileges, so a SIGKILL (or a launcher's log line about one)
    is attributed to it.
    """
    where, tail = place(rank, step, phase), tuple(log_tail)
    evidence = functools.partial(Evidence, rank=rank, step=step, log_tail=tail)
    if code is None:
        lost = place(rank, step, phase, "was lost")
        return evidence(
            weight="death",
            kind=FailureKind.WORKER_LOST,
            message=f"{lost}: {why or 'the host is lost'}",
            exception=why,
        )
    text = "\n".join(tail)
    number = died_of(code)
    passed_on = f" (exit code {code})" if number != code else ""
    if kernel_oom and (number == -signal.SIGKILL or (number > 0 and _KILLED.search(text))):
        return evidence(
            weight="memory",
            kind=FailureKind.OUT_OF_MEMORY,
            message=f"{where} was killed by the kernel, because the machine ran out of memory",
            exception="SIGKILL by the kernel's out-of-memory killer",
        )
    lacked_memory = not is_explained and lacks_memory(text)
    if number < 0:
        name = _signal_name(-number)
        exception, has_crashed = name, name in _CRASHES
        out_of_memory = f"ran out of memory and died with {name}"
        lacked_memory = lacked_memory and name in _CRASHES_WITHOUT_MEMORY
        kind = FailureKind.ERROR if has_crashed else FailureKind.WORKER_LOST
        ended = f"{'crashed with' if has_crashed else 'was killed by'} {name}{passed_on}"
    else:
        exception = f"exit code {number}"
        out_of_memory = "ran out of memory and ended"
        kind = FailureKind.WORKER_LOST if number == 0 else FailureKind.ERROR
        ended = f"ended with {exception}"
        last_line = tail[-1].strip() if tail else ""
        if number and _RAISED.match(last_line) and not lacked_memory:
            exception, ended = last_line, f"{ended}: {last_line}"
    if lacked_memory:
        return evidence(
            weight="memory",
            kind=FailureKind.OUT_OF_MEMORY,
            message=f"{where} {out_of_memory}",
            exception=exception,
        )
    return evidence(weight="death", kind=kind, message=f"{where} {ended}", exception=exception)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def died_of(code: int) -> int:
    """The exit status with a signal n that a parent passed on converted to -n: shells exit with 128
    + n, Python launchers with `sys.exit(-n)`, which is 256 - n. Other statuses are returned
    unchanged."""
    return next((-number for number in _FATAL if code in (128 + number, 256 - number)), code)


def follows(evidence: Evidence, earlier: Iterable[Evidence], *, has_aborted: bool) -> bool:
    """Whether a death is a consequence of an earlier exception on another rank, or of our own
    abort, after which NCCL's watchdog may raise SIGABRT."""
    if evidence.weight != "death":
        return False
    raised = any(e.weight == "exception" and e.rank != evidence.rank for e in earlier)
    return raised or (has_aborted and evidence.exception == "SIGABRT")


def weigh(evidence: Iterable[Evidence]) -> Evidence | None:
    """The strongest evidence, the first of equals; None if there is none."""
    items = list(evidence)
    return min(items, key=lambda e: WEIGHTS.index(e.weight)) if items else None
