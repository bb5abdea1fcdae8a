"""Classifies an exception by its name and text. The first rule that matches in `judged` decides.

    memory     allocators of torch, NCCL, cuBLAS, cuDNN, HIP, numpy and the kernel; Ray's memory monitor
    diverged   trainers that end a run because loss or gradient is not finite, or the loss scale reached its minimum
    timeout    rendezvous, heartbeats, barriers and NCCL's watchdog
    lost       lost processes and nodes, as reported by Ray and torch's agent
    refused    parsers and validators of settings, and indivisible batches; only before the first step, because later errors concern data
    engine     generation engines of post-training: vLLM and SGLang

Mentions of memory in a `ValueError` and similar are advice ("if you run out of memory, ...") and
are ignored.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from typing import NamedTuple, final

from autotune.spec import FailureKind

OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemory|(can't|cannot) allocate memory|std::bad_alloc|unable to allocate|not enough memory"
    r"|STATUS_?ALLOC_?FAILED|HOST_ALLOCATION_FAILED|failed to (cuda |hip )?(host )?[mc]?alloc\b"
    r"|failed to allocate (?!\w* ?(ports?|ids?|address|name|slot)\b)|no executable batch size found"
    r"|node running low on memory|no available memory for the cache",
    re.IGNORECASE,
)
"""messages about failed allocations"""
_NO_SIZE = re.compile(r"more than 1EB memory|tried to allocate \d+ ?(EiB|EB)\b", re.IGNORECASE)
"""impossible sizes, which come from numbers that a broken collective corrupted"""
_OTHER_MEMORY = re.compile(
    r"ibv_(reg|create)\w*.{0,80}cannot allocate memory|memlock|shared memory", re.IGNORECASE
)
"""limits of locked, shared and on-chip memory, which a smaller batch does not help with"""
_ADVICE = re.compile(
    r"\b(if|when|whenever|in case|avoid\w*|prevent\w*|against|may|might|could(?! not)|can(?! not)(?!')|would|should|hint|tip|note|reduce\w*|risk)\b.{0,80}$",
    re.IGNORECASE,
)
"""words before a mention of memory that make it mere advice"""
_NOT_OF_ALLOCATORS = frozenset(
    [
        "ValueError",
        "TypeError",
        "KeyError",
        "IndexError",
        "AttributeError",
        "NameError",
        "UnboundLocalError",
        "ImportError",
        "ModuleNotFoundError",
        "AssertionError",
        "NotImplementedError",
        "SyntaxError",
        "IndentationError",
        "FileNotFoundError",
        "PermissionError",
        "UnicodeDecodeError",
        "StopIteration",
    ]
)
"""exceptions that allocators never raise"""
_NOT_OF_VALUES = _NOT_OF_ALLOCATORS - {"ValueError", "AssertionError"}
"""exceptions that trainers never raise for a diverged loss"""

_NOT_FINITE = r"(?<![\w-])-?(nans?|inf|infs|infinite|infinity|non-?finite|not finite)(?![\w-])"
_TRAINED = r"(loss(es)?|grad(ient)?s?|grad[_ ]norm|norm|loss[_ ]scale|logits?|activations?|weights?|param(eter)?s?|updates?|probability tensor)"
_DIVERGED = re.compile(
    rf"\b{_TRAINED}\b.{{0,80}}?{_NOT_FINITE}|{_NOT_FINITE}.{{0,80}}?\b{_TRAINED}\b"
    r"|loss scale (is )?already at minimum|minimum loss scale (has been )?reached|unexpected result -?(nan|inf)\b"
    r"|returned (nan|inf) values in its|\bloss (has )?(diverged|exploded)|detected nan and/or inf values|training (has )?diverged",
    re.IGNORECASE,
)
_ASKS_FINITE = re.compile(r"\b(isnan|isfinite|isinf|is_nan|is_finite)\b")
"""calls in an assertion that checks for finite numbers"""
DIVERGED_LINE = re.compile(
    rf"\bloss(es)?\b.{{0,40}}{_NOT_FINITE}.{{0,80}}\b(stop|abort|exit|terminat)\w*"
    rf"|\b(stop|abort|exit|terminat)\w*.{{0,60}}{_NOT_FINITE}",
    re.IGNORECASE,
)
"""log line of a program that ends itself without an exception: `Loss is nan, stopping training`"""

TIMED_OUT = re.compile(
    r"collective operation timeout|watchdog('s)? (thread )?(got stuck|.{0,40}timeout)|heartbeat\w*.{0,40}tim(ed|e) ?out"
    r"|timed out (after .{1,30} )?waiting for clients|(client )?socket has timed out|socket timeout|wait timeout after"
    r"|timed out (initializing process group|in store based barrier)|failed to pass monitoredbarrier"
    r"|monitored ?barrier.{0,80}tim(ed|e) ?out|rendezvous.{0,80}tim(ed|e) ?out|tim(ed|e) ?out.{0,80}rendezvous",
    re.IGNORECASE,
)
"""messages of ranks that waited in vain for others"""
_TIMEOUT_NAMES = frozenset({"RendezvousTimeoutError", "GetTimeoutError", "NCCLTimeoutError"})
_LOST_NAMES = frozenset(
    [
        "ActorDiedError",
        "RayActorError",
        "WorkerCrashedError",
        "NodeDiedError",
        "LocalRayletDiedError",
        "RayletDiedError",
        "OwnerDiedError",
        "ActorUnavailableError",
        "ObjectLostError",
        "NodePreemptedError",
    ]
)
"""Ray's exceptions for lost processes and nodes"""
_REFUSALS = re.compile(
    r"^(pydantic(_core|_settings)?\.|omegaconf\.errors\.|hydra\.errors\.(Config|Override|Missing|Hydra\w*Config)|jsonargparse\.|argparse\.Argument"
    r"|click\.exceptions\.|typer\.|absl\.flags\.|tyro\.|dacite\.exceptions\.|draccus\.|simple_parsing\.|jsonschema\.exceptions\.|marshmallow\."
    r"|cattrs?\.(errors|v)|confuse\.|voluptuous\.|strictyaml\.)"
)
"""qualified names of exceptions of parsers and validators"""
_REFUSAL_NAMES = frozenset(
    [
        "ConfigAttributeError",
        "ConfigKeyError",
        "ConfigTypeError",
        "ConfigCompositionException",
        "MissingMandatoryValue",
        "MissingConfigException",
        "OverrideParseException",
        "UnrecognizedFlagError",
        "IllegalFlagValueError",
        "NSKeyError",
        "ArgumentError",
        "BadParameter",
        "NoSuchOption",
        "UsageError",
    ]
)
"""their names, for logs that have them without a module"""
_REFUSAL_TEXTS = re.compile(
    r"(keys|arguments) are not used by the HfArgumentParser|\bNon-existent config key\b|^\d+ validation errors? for "
)

_BATCH_RULE = re.compile(
    r"\b\w*(batch|world_?size|generations?)\w*\b.{0,120}?\b((must|should) be (evenly )?(divisible by|larger than)|is not (divisible by|a multiple of|equal to))\b"
    r"|only support equal chunk|is not a multiple of the provided microbatch size",
    re.IGNORECASE,
)
"""batches that cannot be divided among ranks: verl (`real_train_batch_size (8) must be divisible by
minimal possible batch size (16)`, trainer/ppo/ray_trainer.py; `normalized ppo_mini_batch_size 3
should be divisible by ...`, verl#833; `rollout world_size: 1 is not divisible by infer_tp: 2`,
verl#1191; `only support equal chunk`, EasyR1#44), NeMo-RL (`Data dict size (2) is not a multiple of
the provided microbatch size (8)`, NeMo-RL#355), TRL (`The global train batch size (7 x 1) must be
evenly divisible by the number of generations`, open-r1#249), DeepSpeed under OpenRLHF
(`train_batch_size is not equal to micro_batch_per_gpu * ...`, OpenRLHF#346)"""
_SHORT_LIMIT = re.compile(r"max_token_len must be greater than the sequence length")
"""verl's token budget of a micro-batch is too small for the longest sequence, possibly of a later
step (utils/seqlen_balancing.py, Trinity-RFT#398)"""
_ENGINE_MEMORY = re.compile(
    r"no available memory for the cache"
    r"|KV cache is ?needed, which is larger than the available KV cache memory"
    r"|free memory on device .{0,60}on startup is less than desired GPU memory utilization",
    re.IGNORECASE,
)
"""vLLM on the same GPU as the trainer: no memory for its cache (vllm#10439,
v1/core/kv_cache_utils.py), or for its share at start (v1/worker/gpu_worker.py)"""
_ENGINE_ECHO = re.compile(
    r"Engine core initialization failed|EngineCore encountered an issue|Engine core proc \S+ died unexpectedly"
)
"""messages of other processes about vLLM's engine, which failed before (v1/engine/exceptions.py,
ms-swift#7933)"""
_ENGINE_TIMED_OUT = re.compile(r"RPC call to \w+ timed out")
"""vLLM's executor timed out waiting for a worker (verl#6583)"""
_ENGINE_FRAME = re.compile(r'File ".*?[/\\](vllm|sglang)[/\\]')
_SUPPOSED = "There are some potential root causes"
"""begins Ray's list of possible causes of a process's death, which are not evidence (verl#383)"""

_SIGNALS = (
    re.compile(r"<Signals\.(?P<name>SIG[A-Z]+)"),
    re.compile(
        r"(?:terminated|killed|died|exited|crashed)\b.{0,30}\b(?P<name>SIG(?:KILL|SEGV|ABRT|BUS|TERM|ILL|FPE))\b"
    ),
    re.compile(r"(?:(?:got|by|on|with) |\()signal:? (?P<number>\d{1,2})\b", re.IGNORECASE),
    re.compile(
        r"is killed by signal: (?P<word>Killed|Segmentation fault|Bus error|Aborted|Terminated)"
    ),
)
_WORDS = {
    "Killed": signal.SIGKILL,
    "Segmentation fault": signal.SIGSEGV,
    "Bus error": signal.SIGBUS,
    "Aborted": signal.SIGABRT,
    "Terminated": signal.SIGTERM,
}
"""signals by the words of shells and launchers"""
_GPU_LOST = re.compile(
    r"uncorrectable (ECC|NVLink) error|fallen off the bus|GPU is lost", re.IGNORECASE
)
"""messages of CUDA and its driver about broken hardware"""


@final
class Judged(NamedTuple):
    """The classification of an exception."""

    weight: str
    """one of `failure_kind.WEIGHTS`"""
    kind: FailureKind
    verb: str
    """what happened, for messages: "ran out of memory" """


def judged(name: str, text: str, *, code: str = "", is_started: bool = False) -> Judged | None:
    """Classifies an exception by itself; None if that depends on its circumstances. `code`: the
    line that raised it; `is_started`: whether a step was completed before."""
    short = name.rpartition(".")[2].rpartition(":")[2]
    may_be_allocator = short not in _NOT_OF_ALLOCATORS
    if _NO_SIZE.search(text):
        return Judged("echo", FailureKind.ERROR, "requested an impossible size")
    is_named = short in ("MemoryError", "OutOfMemoryError") or short.endswith(
        ("OutOfMemoryError", "MemoryError")
    )
    says_memory = may_be_allocator and lacks_memory(text)
    if is_named or says_memory or _ENGINE_MEMORY.search(text):
        return Judged("memory", FailureKind.OUT_OF_MEMORY, "ran out of memory")
    if _ENGINE_ECHO.search(text):
        return Judged("echo", FailureKind.ERROR, "lost the generation engine")
    is_assertion = short == "AssertionError" and not text and _ASKS_FINITE.search(code) is not None
    if short not in _NOT_OF_VALUES and (
        _DIVERGED.search(text) or short == "OLMoNonFiniteError" or is_assertion
    ):
        return Judged("exception", FailureKind.DIVERGED, "ended because training diverged")
    if _ENGINE_TIMED_OUT.search(text):
        return Judged(
            "timeout", FailureKind.HANG, "waited for the generation engine until it timed out"
        )
    if short in _TIMEOUT_NAMES or (may_be_allocator and TIMED_OUT.search(text)):
        return Judged("timeout", FailureKind.HANG, "waited for other ranks until it timed out")
    if short in _LOST_NAMES:
        return Judged("death", FailureKind.WORKER_LOST, "lost a process")
    if _GPU_LOST.search(text):
        return Judged("death", FailureKind.WORKER_LOST, "lost its GPU")
    if short == "SignalException":
        return Judged("death", FailureKind.WORKER_LOST, "was killed by a signal")
    if not is_started and (
        _REFUSALS.match(name) or short in _REFUSAL_NAMES or _REFUSAL_TEXTS.search(text)
    ):
        return Judged("verdict", FailureKind.INVALID, "rejected its settings")
    if short == "AssertionError" and _SHORT_LIMIT.search(text):
        return Judged("verdict", FailureKind.INVALID, "rejected its token limit")
    if not is_started and short in ("ValueError", "AssertionError") and _BATCH_RULE.search(text):
        return Judged("verdict", FailureKind.INVALID, "rejected its batch")
    return None


def engine_of(lines: Iterable[str]) -> str:
    """Name of the generation engine in whose code a traceback ends; empty if in none."""
    frames = [line for line in lines if 'File "' in line]
    found = _ENGINE_FRAME.search(frames[-1]) if frames else None
    return found[1] if found else ""


def lacks_memory(text: str) -> bool:
    """Whether a line of the text reports a failed allocation, rather than giving advice."""
    for line in text.splitlines():
        found = OUT_OF_MEMORY.search(line)
        if (
            found
            and not _OTHER_MEMORY.search(line)
            and not _NO_SIZE.search(line)
            and not _ADVICE.search(line[: found.start()])
        ):
            return True
    return False


def signal_named(text: str) -> int | None:
    """The number of the signal that killed a process according to the text; None if it names
    none."""
    text = text.partition(_SUPPOSED)[0]
    for pattern in _SIGNALS:
        if (found := pattern.search(text)) is not None:
            groups = found.groupdict()
            if groups.get("name"):
                return int(getattr(signal, groups["name"], 0)) or None
            return int(groups["number"]) if groups.get("number") else int(_WORDS[groups["word"]])
    return None


def signal_worded(word: str) -> int | None:
    """The number of the signal that a shell reports as `Killed`, `Segmentation fault` and so on;
    None for other words."""
    return next((int(number) for prefix, number in _WORDS.items() if word.startswith(prefix)), None)
