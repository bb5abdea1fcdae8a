"""The cause of a program's failure, read from the log of one node line by line, in bounded memory:
lines in, evidence out.

Launchers end a log with their own traceback and a summary, and ranks that lost a peer echo the
failure of the one that failed first. So the last lines seldom say why. This reader knows:

    exceptions   Python tracebacks, with or without the prefixes of torchrun (`[rank1]:`, `[default0]:`), mpirun, srun and Ray, boxed ones of rich,
                 chained ones, and the C++ runtime's `terminate called after throwing`
    refusals     of the command line: argparse, jsonargparse, HfArgumentParser, click, typer, absl, tyro, Hydra, fire
    watchdogs    of NCCL, and NCCL's own warnings of memory, which its exceptions leave out
    last words   by which a program ends itself without an exception: `Loss is nan, stopping training`
    summary      torchrun's `Root Cause (first observed failure)`: the rank, and its exit code or signal; other launchers' by `launcher_words`

A traceback that two more steps followed was caught, and is no cause. That memory ran out then is
kept (`ran_out`). Of one rank the first that is left counts. Of a chain the last exception is what
ended the rank and the first is what went wrong, so a message has both; where the last is only the
echo of a lost peer, the first counts. Which evidence of which rank explains the rest is decided by
`gang.failure_kind.weigh`.
"""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import final

from autotune.spec import FailureKind
from autotune_workers.gang.exception_kinds import (
    DIVERGED_LINE,
    TIMED_OUT,
    engine_of,
    lacks_memory,
    signal_named,
)
from autotune_workers.gang.failure_kind import Evidence, of_death, of_exception
from autotune_workers.process.failure.launcher_words import RankEnd, rank_end
from autotune_workers.process.failure.traceback_reader import CONTEXT_LINES, Raised, TracebackReader
from autotune_workers.process.rank_processes import LOG_TAIL_LINES

SURVIVED_STEPS = 2
"""steps after a traceback that show that it was caught: the line of the step in which a rank fails
may come after it, from another rank"""
_LESS = r"\b(skip|retry|retri|reduc|halv|smaller|tried to allocate)"
_RAN_OUT = re.compile(
    rf"\b(CUDA|HIP|XPU|MPS|GPU)\b.{{0,20}}\bout of memory\b|OutOfMemoryError|\bout of memory\b\W.{{0,80}}{_LESS}|{_LESS}.{{0,80}}\bout of memory\b",
    re.IGNORECASE,
)
"""what a program says that goes on without memory; texts that a model generates may speak of
memory, too"""
MAX_STREAMS = 64
"""prefixes that are told apart; lines of further ones are read as one stream"""
_PREFIX = re.compile(
    r"^(?:\[(?!rank\d)[A-Za-z][\w-]*?(?P<local>\d+)\]:|\([A-Za-z]\w*(?:\([^()]*\))? (?:rank=\d+, )?pid=(?P<pid>\d+)(?:, ip=[\w.:]+)?\)"
    r"|\[\d+,(?P<mpi>\d+)\](?:<\w+>)?:)?(?:\[rank(?P<rank>\d+)\]:|(?P<task>\d{1,5}):(?= ))?(?P<space> ?)"
    r"(?P<logged>(?:ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./-]+:\d+\] ?)?"
)
"""of torchrun, Ray, mpirun --tag-output and srun --label, and of vLLM's logger, which has it before
each line of a traceback (vllm#27508)"""
_USAGE = re.compile(r"^\s*usage: ", re.IGNORECASE)
_ARGPARSE = re.compile(r"^(?P<program>[^:]{1,200}): error: (?P<text>.+)")
_ARGPARSE_WORDS = re.compile(
    r"^(unrecognized arguments|argument \S+: |the following arguments are required|ambiguous option)"
)
_JSONARGPARSE = re.compile(
    r"^error: (?P<text>(?:Parser key|Key|Option|Unrecognized arguments|Configuration check failed|Validation failed|Problem with given|Problem in"
    r" default|Expected a|Unable to load config|argument |the following arguments|unrecognized).*)"
)
_CLICK = re.compile(
    r"^(?:Error: |│ )(?P<text>No such option|No such command|Invalid value|Missing (?:option|argument|parameter)|Got unexpected extra|Option '[^']+'"
    r" (?:requires|does not)|Unrecognized options?)(?P<rest>.*)"
)
_OTHER_REFUSALS = re.compile(
    r"(?P<text>Unknown command line flag '.*|Could not override '.*|Could not consume arg: .*|Unrecognized (?:options?|arguments?): .*"
    r"|Some specified arguments are not used by the HfArgumentParser.*|Flags parsing error:.*|The function received no value for the required argument.*"
    r"|Error parsing override '.*|Error merging override .*|^Key '.*' is not in struct|^You must specify '.*', e\.g.*|^Missing mandatory value: .*"
    r"|^In '.*': .*Error raised while composing config.*|^In '.*': Could not find '.*|^Could not find '.*/.*'$|^mismatched input '.*expecting.*"
    r"|Error parsing '?--\S+.*|^│ (?:The following arguments are required|Required options|Missing (?:option|argument)s?|Invalid choice|invalid choice).*)"
)
_TYRO = re.compile(
    r"^╭─+ (?P<text>Unrecognized (?:options|arguments)|Parsing error|Required options|Missing arguments|Invalid (?:choice|value)) ─"
)
_NCCL_MEMORY = re.compile(r"NCCL WARN ")
_NCCL_NAMES = re.compile(
    r"NCCL error|nccl(UnhandledCuda|Internal|System)Error|unhandled cuda error", re.IGNORECASE
)
_BUILDS = re.compile(
    r"torch\._inductor|torch/_inductor|\binductor\b|AUTOTUNE \w+\(|SingleProcess AUTOTUNE|triton.{0,40}(autotun|compil)|\bcompiling\b|\bcompilation\b"
    r"|torch\.compile|\[\d+/\d+\] .{0,80}(nvcc|hipcc|c\+\+|g\+\+)|Building extension module|Emitting ninja|ninja: |Loading extension module"
    r"|Capturing CUDA graph|JIT.{0,20}(compil|build)|XLA.{0,30}compil|torch\._dynamo",
    re.IGNORECASE,
)
"""lines of compilers and builders of kernels"""
_RECENT = 12
"""last lines in which one of these says that it is still at work"""
_ROOT_CAUSE = re.compile(r"^Root Cause \(first observed failure\)")
_FAILED_RANK = re.compile(r"^\s+rank\s+: (?P<rank>\d+)")
_EXIT_CODE = re.compile(r"^\s+exitcode\s+: (?P<code>-?\d+)")
_TRAILER = re.compile(
    r"torch/distributed/elastic/multiprocessing/api\.py:\d+\] failed \(exitcode: "
)
_NO_FILE = re.compile(r"can't open file '(?P<path>.+)': \[Errno 2\]")
_LAUNCHERS = (
    "ChildFailedError",
    "CalledProcessError",
    "ProcessRaisedException",
    "ProcessExitedException",
)
_WATCHDOG = re.compile(
    r"ProcessGroup\w*|[Ww]atchdog|[Hh]eartbeat|monitored ?[Bb]arrier|[Rr]endezvous"
)
"""what speaks of a timeout without an exception"""
_MAX_SIGNS = 16
"""lines of watchdogs and launchers that are kept"""
_STRONG = ("verdict", "memory", "exception")
"""classes of evidence that explain an end; the others may be its consequence"""


@final
class CauseReader:
    """What has been read of the log of one node."""

    def __init__(self, first_rank: int = 0) -> None:
        """`first_rank`: of this node, in the whole job."""
        self._first_rank = first_rank
        self._streams: dict[tuple[str, str], TracebackReader] = {}
        self._before: deque[str] = deque(maxlen=CONTEXT_LINES)
        self._own: deque[str] = deque(maxlen=LOG_TAIL_LINES)
        """the last lines before the launcher's"""
        self._usage_seen = self._in_trailer = self._in_root = False
        self._refusal: Evidence | None = None
        self._exit_codes: dict[int, int] = {}
        """exit code by rank, of the ranks that the launcher's summary names"""
        self._root: int | None = None
        """the rank that it saw fail first"""
        self._summary_rank = -1
        self._ends: list[RankEnd] = []
        """what launchers and schedulers say of ranks"""
        self._timeouts: list[Evidence] = []
        """watchdogs' lines"""
        self._last_words: Evidence | None = None
        self._nccl_memory = ""
        """NCCL's warning that it got no memory"""
        self._built = -_RECENT
        """the last line of a compiler, from 1"""
        self._count = 0
        self.steps_heard = 0
        """steps that were done when the last line came"""
        self.ran_out: tuple[str, int] | None = None
        """the first line that says that memory ran out, and the steps that were done then"""

    def hear(self, line: str, steps_done: int = 0) -> None:
        """A line of the log, after so many steps."""
        self._count += 1
        self.steps_heard = steps_done
        match = _PREFIX.match(line)
        assert match is not None, "it matches the empty string"
        rank, local = match["rank"] or match["mpi"] or match["task"], match["local"]
        is_marked = bool(rank or local or match["pid"] or match["logged"])
        text = line[match.end() :] if is_marked else line
        self._read_summary(text)
        self._read_refusal(line, text)
        self._read_signs(line, text, int(match["rank"]) if match["rank"] else None, steps_done)
        key = (local or match["pid"] or "", rank or "")
        if key not in self._streams and len(self._streams) >= MAX_STREAMS:
            key = ("", "")
        stream = self._streams.setdefault(key, TracebackReader(is_alone=bool(rank or match["pid"])))
        stream.hear(text, line, self._count, steps_done, self._before)
        self._before.append(line)
        if not self._in_trailer:
            self._own.append(line)

    def evidence(self, steps_done: int = 0, *, kernel_oom: bool = False) -> list[Evidence]:
        """What the log says of the failure, the earliest first; empty where it says nothing.
        `steps_done`: in all."""
        step = steps_done or None
        found = []
        for (local, rank), stream in self._streams.items():
            raised = _first_left(stream.raised, steps_done)
            if raised is not None:
                found.append(
                    (
                        raised,
                        self._of_raised(
                            raised, self._rank_of(local, rank), step, kernel_oom=kernel_oom
                        ),
                    )
                )
        found.sort(key=lambda pair: (pair[1].rank != self._root, pair[0].line))
        evidence = [e for _, e in found]
        if self._refusal is not None:
            evidence.insert(0, self._refusal)
        evidence += self._timeouts
        if self._last_words is not None and not any(e.weight in _STRONG for e in evidence):
            evidence.append(replace(self._last_words, step=step))
        return (
            evidence
            + self._deaths(evidence, step, kernel_oom=kernel_oom)
            + self._ended(evidence, step, kernel_oom=kernel_oom)
        )

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The last lines that were heard, without the launcher's summary."""
        return tuple(self._own)

    @property
    def is_building(self) -> bool:
        """Whether the last lines are those of a compiler or of a builder of kernels."""
        return self._count - self._built < _RECENT

    def _ended(
        self, evidence: Sequence[Evidence], step: int | None, *, kernel_oom: bool
    ) -> list[Evidence]:
        """What launchers and schedulers say: what they decided themselves, and signals of ranks
        that said nothing. They end the others by SIGTERM."""
        is_explained = any(e.weight in _STRONG for e in evidence)
        decided = next((end for end in self._ends if end.kind is not None), None)
        if decided is not None and decided.kind is not None:
            is_memory = decided.kind is FailureKind.OUT_OF_MEMORY
            if is_memory or not is_explained:
                said = "exceeded its job's memory" if is_memory else "was ended by the scheduler"
                who = "the program" if decided.rank is None else f"rank {decided.rank}"
                return [
                    Evidence(
                        weight="memory" if is_memory else "verdict",
                        kind=decided.kind,
                        message=f"{who} {said}: {decided.said[:300]}",
                        exception=decided.said[:300],
                        rank=decided.rank,
                        step=step,
                        log_tail=self.last_lines,
                    )
                ]
        if is_explained or self._root is not None:
            return []
        signals = [
            end
            for end in self._ends
            if end.code < 0 and not (end.code == -signal.SIGABRT and self._timeouts)
        ]
        end = next(
            (end for end in signals if end.code != -signal.SIGTERM), signals[0] if signals else None
        )
        if end is None:
            return []
        return [
            of_death(
                rank=end.rank,
                code=end.code,
                step=step,
                kernel_oom=kernel_oom,
                log_tail=self.last_lines,
            )
        ]

    def _deaths(
        self, evidence: Sequence[Evidence], step: int | None, *, kernel_oom: bool
    ) -> list[Evidence]:
        """What the launcher's summary says, where the rank that it saw fail first did not say why:
        how that rank ended, or where it only echoes a lost peer, how the others did. A rank that
        raised may die of a signal as it is torn down: its exception says more. The launcher itself
        ends the others by SIGTERM."""
        if self._root is None or any(
            e.weight != "echo" and e.rank in (self._root, None) for e in evidence
        ):
            return []
        echoes = {e.rank for e in evidence if e.weight == "echo"}
        codes = {self._root: self._exit_codes.get(self._root, 0)}
        if self._root in echoes:
            codes = {
                rank: code for rank, code in self._exit_codes.items() if code != -signal.SIGTERM
            }
        tail = tuple(self._own)
        return [
            of_death(rank=rank, code=code, step=step, kernel_oom=kernel_oom, log_tail=tail)
            for rank, code in codes.items()
            if code
            and rank not in echoes
            and not (code == -signal.SIGABRT and self._timeouts)  # a watchdog aborts
        ]

    def _rank_of(self, local: str, rank: str) -> int | None:
        if rank:
            return int(rank)
        return self._first_rank + int(local) if local else self._root

    def _of_raised(
        self, raised: Raised, rank: int | None, step: int | None, *, kernel_oom: bool
    ) -> Evidence:
        if (
            named := re.search(
                r"-- Process (\d+) terminated", "\n".join(raised.lines[:CONTEXT_LINES])
            )
        ) is not None:
            rank = self._first_rank + int(named[1])
        chain = [_of_one(name, text, rank, step, _code_of(raised)) for name, text in raised.chain]
        cause = (
            chain[-1]
            if chain[-1].weight in _STRONG
            else next((e for e in chain if e.weight in _STRONG), chain[-1])
        )
        if (memory := next((e for e in chain if e.weight == "memory"), None)) is not None:
            cause = memory
        elif cause is chain[-1] and len(chain) > 1:
            cause = replace(
                cause, message=f"{cause.message}; first {chain[0].exception.splitlines()[0]}"
            )
        if cause.weight == "memory" and (engine := engine_of(raised.lines)):
            cause = replace(
                cause,
                message=cause.message.replace(
                    "ran out of memory", f"ran out of memory in the generation engine {engine}", 1
                ),
            )
        if (
            cause.weight not in ("memory", "verdict")
            and self._nccl_memory
            and _NCCL_NAMES.search(cause.exception)
        ):
            why = f"{cause.message}: {self._nccl_memory}"[:400]
            cause = replace(cause, weight="memory", kind=FailureKind.OUT_OF_MEMORY, message=why)
        if (
            cause.weight in ("exception", "death")
            and (number := signal_named(cause.exception)) is not None
        ):
            death = of_death(
                rank=rank, code=-number, step=step, kernel_oom=kernel_oom, is_explained=True
            )
            cause = replace(
                death, message=f"{death.message}: {cause.exception.splitlines()[0]}"[:400]
            )
        if cause.exception.startswith("KeyError: ") and any(
            "<frozen os>" in line for line in raised.lines
        ):
            name = cause.exception.removeprefix("KeyError: ").strip("'\"")
            cause = replace(
                cause, message=f"{cause.message} (the environment variable {name} is not set)"
            )
        return replace(cause, log_tail=tuple(raised.lines))

    def _read_refusal(self, line: str, text: str) -> None:
        self._usage_seen = self._usage_seen or bool(_USAGE.match(text))
        if self._refusal is not None:
            return
        words = ""
        said = _ARGPARSE.match(text)
        if said is not None and not (self._usage_seen or _ARGPARSE_WORDS.match(said["text"])):
            said = None
        if (found := said or _JSONARGPARSE.match(text) or _TYRO.match(text)) is not None:
            words = found["text"]
        elif (found := _CLICK.match(text)) is not None and self._usage_seen:
            words = (found["text"] + found["rest"]).rstrip("│ ")
        elif (found := _OTHER_REFUSALS.search(text)) is not None and not text.startswith(
            (" ", "raise ")
        ):
            words = found["text"].rstrip("│ ")
        if words:
            self._refusal = Evidence(
                weight="verdict",
                kind=FailureKind.INVALID,
                message=f"the program rejected its command line: {words[:300]}",
                exception=words[:300],
                log_tail=(*self._before, line),
            )
        elif (missing := _NO_FILE.search(text)) is not None:
            self._refusal = Evidence(
                weight="verdict",
                kind=FailureKind.ERROR,
                message=f"Python found no file {missing['path']}",
                exception=f"FileNotFoundError: {missing['path']}",
                log_tail=(*self._before, line),
            )

    def _read_signs(self, line: str, text: str, rank: int | None, steps_done: int) -> None:
        """Watchdogs, last words, compilers at work, and what launchers say."""
        if _BUILDS.search(text):
            self._built = self._count
        # a compiler that tries kernels goes on without those that take too much
        if (
            self.ran_out is None
            and _RAN_OUT.search(text)
            and lacks_memory(text)
            and not self.is_building
        ):
            self.ran_out = text.strip()[:300], steps_done
        if _NCCL_MEMORY.search(text) and lacks_memory(text):
            self._nccl_memory = text.partition("NCCL WARN ")[2][:200]
        if len(self._timeouts) < _MAX_SIGNS and _WATCHDOG.search(text) and TIMED_OUT.search(text):
            report = {
                "type": "DistBackendError",
                "text": text.strip()[:400],
                "step": steps_done or None,
            }
            self._timeouts.append(
                replace(of_exception(report, rank=rank), log_tail=(*self._before, line))
            )
        if self._last_words is None and DIVERGED_LINE.search(text):
            self._last_words = Evidence(
                weight="exception",
                kind=FailureKind.DIVERGED,
                message=f"the program stopped because training diverged: {text.strip()[:300]}",
                exception=text.strip()[:300],
                log_tail=(*self._before, line),
            )
        if len(self._ends) < _MAX_SIGNS and (end := rank_end(text)) is not None:
            self._ends.append(end)

    def _read_summary(self, text: str) -> None:
        self._in_trailer = self._in_trailer or bool(_TRAILER.search(text))
        if not self._in_trailer:
            return
        if _ROOT_CAUSE.match(text):
            self._in_root = True
        elif (found := _FAILED_RANK.match(text)) is not None:
            self._summary_rank = int(found["rank"])
            if self._in_root and self._root is None:
                self._root = self._summary_rank
        elif (found := _EXIT_CODE.match(text)) is not None and self._summary_rank >= 0:
            self._exit_codes.setdefault(self._summary_rank, int(found["code"]))


def _first_left(raised: Iterable[Raised], steps_done: int) -> Raised | None:
    """The first exception that was neither a launcher's nor followed by more steps."""
    for one in raised:
        if (
            one.chain
            and not one.chain[-1][0].endswith(_LAUNCHERS)
            and steps_done - one.steps_done < SURVIVED_STEPS
        ):
            return one
    return None


def _code_of(raised: Raised) -> str:
    """The line of code that raised: the last indented one that names no file."""
    inside = (line.partition("]:")[2] or line for line in reversed(raised.lines))
    return next(
        (
            text.strip()
            for text in inside
            if text[:1].isspace() and re.search(r"\w", text) and 'File "' not in text
        ),
        "",
    )


def _of_one(name: str, text: str, rank: int | None, step: int | None, code: str) -> Evidence:
    """Evidence of one exception. Torch's and Python's own go by their last name, so that
    `requests.ConnectionError` is no lost peer."""
    short = (
        re.split(r"\.|::", name)[-1] if name.startswith(("torch.", "builtins.", "c10::")) else name
    )
    first, _, rest = text.partition("\n")
    # a message has the first line only
    text = f"{first} {rest}" if first.endswith((",", ":")) else text
    return of_exception(
        {"type": short, "text": text.strip(), "step": step, "code": code}, rank=rank
    )
