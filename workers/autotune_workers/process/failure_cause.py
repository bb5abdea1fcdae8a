"""The cause of a program's failure, read from the log of one node line by line, in bounded memory: lines in, evidence out.

Launchers end a log with their own traceback and a summary, and ranks that lost a peer echo the failure of the one that failed first. So the last
lines seldom say why. This reader knows:

    exceptions   Python tracebacks, with or without the prefixes of torchrun (`[rank1]:`, `[default0]:`), boxed ones of rich, chained ones,
                 and the C++ runtime's `terminate called after throwing`
    refusals     of the command line: argparse, HfArgumentParser, click, typer, absl, tyro, Hydra, fire
    summary      torchrun's `Root Cause (first observed failure)`: the rank, and its exit code or signal

A traceback that two more steps followed was caught, and is no cause. Of one rank the first that is left counts. Of a chain the last exception
is what ended the rank and the first is what went wrong, so a message has both; where the last is only the echo of a lost peer, the first counts.
Which evidence of which rank explains the rest is decided by `gang.failure_kind.weigh`.
"""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import final

from autotune.spec import FailureKind
from autotune_workers.gang.failure_kind import Evidence, of_death, of_exception
from autotune_workers.process.rank_processes import LOG_TAIL_LINES
from autotune_workers.process.traceback_reader import CONTEXT_LINES, Raised, TracebackReader

SURVIVED_STEPS = 2
"""steps after a traceback that show that it was caught: the line of the step in which a rank fails may come after it, from another rank"""
MAX_STREAMS = 64
"""prefixes that are told apart; lines of further ones are read as one stream"""
_PREFIX = re.compile(r"^(?:\[(?!rank\d)[A-Za-z][\w-]*?(?P<local>\d+)\]:)?(?:\[rank(?P<rank>\d+)\]:)?(?P<space> ?)")
_USAGE = re.compile(r"^\s*usage: ", re.IGNORECASE)
_ARGPARSE = re.compile(r"^(?P<program>[^:]{1,200}): error: (?P<text>.+)")
_ARGPARSE_WORDS = re.compile(
    r"^(unrecognized arguments|argument \S+: |the following arguments are required|ambiguous option)"
)
_CLICK = re.compile(
    r"^(?:Error: |│ )(?P<text>No such option|Invalid value|Missing (?:option|argument)|Got unexpected extra|Option '[^']+'"
    r" (?:requires|does not)|Unrecognized options?)(?P<rest>.*)"
)
_OTHER_REFUSALS = re.compile(
    r"(?P<text>Unknown command line flag '.*|Could not override '.*|Could not consume arg: .*|Unrecognized options?: .*"
    r"|Some specified arguments are not used by the HfArgumentParser.*)"
)
_ROOT_CAUSE = re.compile(r"^Root Cause \(first observed failure\)")
_FAILED_RANK = re.compile(r"^\s+rank\s+: (?P<rank>\d+)")
_EXIT_CODE = re.compile(r"^\s+exitcode\s+: (?P<code>-?\d+)")
_TRAILER = re.compile(r"torch/distributed/elastic/multiprocessing/api\.py:\d+\] failed \(exitcode: ")
_NO_FILE = re.compile(r"can't open file '(?P<path>.+)': \[Errno 2\]")
_LAUNCHERS = ("ChildFailedError", "CalledProcessError", "ProcessRaisedException", "ProcessExitedException")
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
        self._count = 0
        self.steps_heard = 0
        """steps that were done when the last line came"""

    def hear(self, line: str, steps_done: int = 0) -> None:
        """A line of the log, after so many steps."""
        self._count += 1
        self.steps_heard = steps_done
        match = _PREFIX.match(line)
        assert match is not None, "it matches the empty text"
        rank, local = match["rank"], match["local"]
        text = line[match.end() :] if rank or local else line
        self._read_summary(text)
        self._read_refusal(line, text)
        key = (local or "", rank or "")
        if key not in self._streams and len(self._streams) >= MAX_STREAMS:
            key = ("", "")
        stream = self._streams.setdefault(key, TracebackReader(is_alone=bool(rank)))
        stream.hear(text, line, self._count, steps_done, self._before)
        self._before.append(line)
        if not self._in_trailer:
            self._own.append(line)

    def evidence(self, steps_done: int = 0, *, kernel_oom: bool = False) -> list[Evidence]:
        """What the log says of the failure, the earliest first; empty where it says nothing. `steps_done`: in all."""
        step = steps_done or None
        found = []
        for (local, rank), stream in self._streams.items():
            raised = _first_left(stream.raised, steps_done)
            if raised is not None:
                found.append((raised, self._of_raised(raised, self._rank_of(local, rank), step)))
        found.sort(key=lambda pair: (pair[1].rank != self._root, pair[0].line))
        evidence = [e for _, e in found]
        if self._refusal is not None:
            evidence.insert(0, self._refusal)
        return evidence + self._deaths(evidence, step, kernel_oom=kernel_oom)

    def _deaths(self, evidence: Sequence[Evidence], step: int | None, *, kernel_oom: bool) -> list[Evidence]:
        """What the launcher's summary says, where the rank that it saw fail first did not say why: how that rank ended, or where it only echoes a
        lost peer, how the others did. A rank that raised may die of a signal as it is torn down: its exception says more. The launcher itself
        ends the others by SIGTERM."""
        if self._root is None or any(e.weight != "echo" and e.rank in (self._root, None) for e in evidence):
            return []
        echoes = {e.rank for e in evidence if e.weight == "echo"}
        codes = {self._root: self._exit_codes.get(self._root, 0)}
        if self._root in echoes:
            codes = {rank: code for rank, code in self._exit_codes.items() if code != -signal.SIGTERM}
        tail = tuple(self._own)
        return [
            of_death(rank=rank, code=code, step=step, kernel_oom=kernel_oom, log_tail=tail)
            for rank, code in codes.items()
            if code and rank not in echoes
        ]

    def _rank_of(self, local: str, rank: str) -> int | None:
        if rank:
            return int(rank)
        return self._first_rank + int(local) if local else self._root

    def _of_raised(self, raised: Raised, rank: int | None, step: int | None) -> Evidence:
        if (named := re.search(r"-- Process (\d+) terminated", "\n".join(raised.lines[:CONTEXT_LINES]))) is not None:
            rank = self._first_rank + int(named[1])
        chain = [_of_one(name, text, rank, step) for name, text in raised.chain]
        cause = chain[-1] if chain[-1].weight in _STRONG else next((e for e in chain if e.weight in _STRONG), chain[-1])
        if (memory := next((e for e in chain if e.weight == "memory"), None)) is not None:
            cause = memory
        elif cause is chain[-1] and len(chain) > 1:
            cause = replace(cause, message=f"{cause.message}; first {chain[0].exception.splitlines()[0]}")
        if cause.exception.startswith("KeyError: ") and any("<frozen os>" in line for line in raised.lines):
            name = cause.exception.removeprefix("KeyError: ").strip("'\"")
            cause = replace(cause, message=f"{cause.message}: the environment variable {name} is not set")
        return replace(cause, log_tail=tuple(raised.lines))

    def _read_refusal(self, line: str, text: str) -> None:
        self._usage_seen = self._usage_seen or bool(_USAGE.match(text))
        if self._refusal is not None:
            return
        words = ""
        if (found := _ARGPARSE.match(text)) is not None and (self._usage_seen or _ARGPARSE_WORDS.match(found["text"])):
            words = found["text"]
        elif (found := _CLICK.match(text)) is not None and self._usage_seen:
            words = (found["text"] + found["rest"]).rstrip("│ ")
        elif (found := _OTHER_REFUSALS.search(text)) is not None and not text.startswith((" ", "raise ")):
            words = found["text"].rstrip("│ ")
        if words:
            self._refusal = Evidence(
                weight="verdict",
                kind=FailureKind.INVALID,
                message=f"the program refused its command line: {words[:300]}",
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
        if one.chain and not one.chain[-1][0].endswith(_LAUNCHERS) and steps_done - one.steps_done < SURVIVED_STEPS:
            return one
    return None


def _of_one(name: str, text: str, rank: int | None, step: int | None) -> Evidence:
    """Evidence of one exception. Torch's and Python's own go by their last name, so that `requests.ConnectionError` is no lost peer."""
    short = re.split(r"\.|::", name)[-1] if name.startswith(("torch.", "builtins.", "c10::")) else name
    first, _, rest = text.partition("\n")
    text = f"{first} {rest}" if first.endswith((",", ":")) else text  # a message has the first line only
    return of_exception({"type": short, "text": text.strip(), "step": step}, rank=rank)
