"""The verdict on a checked program: one line that says whether it is ready or what is wrong, with the
remedy."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from autotune.spec import Failure, FailureKind, Study, config_label
from autotune.spec.texts.as_text import format_bytes, format_duration, number_of
from autotune.study.check.doubts import CLOCK, covers_the_batch
from autotune.study.check.program_check import SPARE, STEPS, ProgramCheck
from autotune.study.program_remarks import listed, remarks
from autotune.trainers import trainer

MANY = 3
"""multiple of the requested number of steps beyond which a program does not heed that number"""
JSON_LINE = '{"step": 3, "step_time_s": 0.41, "loss": 2.31}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a study can begin, with the reason and remedy."""

    ready: bool
    """whether the study can begin"""
    message: str
    """the steps that were read, or what is wrong"""
    remedy: str = ""
    """what to do about it; if the study can begin, remarks"""

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


_REMEDIES = (
    (
        r"ModuleNotFoundError|ImportError|No module named",
        "install the module for the Python that runs the program, or start the program with a different Python",
    ),
    (
        r"unrecognized arguments|no such option|unexpected (?:keyword )?argument|invalid choice|the following arguments are required",
        "correct trainer.argv; the program does not accept these arguments",
    ),
    (
        r"Unable to find address for|Unable to find interface|no socket interface found|[Nn]o interface found",
        "set GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME to one of the node's network interfaces, under trainer.env, or under runner.node_env for a single node",
    ),
    # torchrun says of OMP_NUM_THREADS on every start that it sets this "environment variable for
    # each process"
    (
        r"KeyError: '[A-Z][A-Z0-9_]+'|environment variable(?! for each process)",
        "set the variable under trainer.env",
    ),
    (
        r"No such file|can't open file|found no file|FileNotFoundError",
        "paths are relative to the program's folder; set trainer.cwd, or use the full path",
    ),
    (
        r"[Aa]ddress already in use",
        "let torchrun choose its port; on a single node, add --standalone",
    ),
    (r"[Pp]ermission denied", "make the program executable, or start it with its interpreter"),
)
"""(pattern of the failure's text, remedy) for failures before the first step"""


def verdict_of(check: ProgramCheck) -> Verdict:
    """The verdict on a finished check."""
    failure = check.failure
    if check.interrupted:
        return Verdict(ready=False, message="the check was interrupted")
    if failure is None:
        summary = _ready(check)
        if faults := _faults(check):
            return Verdict(
                ready=False, message=summary.removeprefix("ready: "), remedy="; ".join(faults)
            )
        return Verdict(
            ready=True, message=summary, remedy="; ".join([*check.doubts, *_remarks(check)])
        )
    if failure.kind is FailureKind.OUT_OF_MEMORY:
        return Verdict(
            ready=False,
            message=_failed("the program starts, but the baseline runs out of memory", failure),
            remedy="set `baseline` to a config that fits",
        )
    if check.step_times_s:
        return _after_steps(check, failure)
    if failure.kind in (FailureKind.METRICS_MISSING, FailureKind.HANG):
        return _not_understood(check, failure)
    return Verdict(
        ready=False,
        message=_failed("the program failed before its first step", failure),
        remedy=_remedy(failure),
    )


def _faults(check: ProgramCheck) -> Sequence[str]:
    """Remedies for a program that ran but is not ready; empty if it is."""
    if check.differences or check.replaced:
        return [*_files(check), *check.differences]
    if CLOCK in check.doubts:
        return check.doubts
    why = continues(check) or uncounted(check)
    return [why] if why else []


def _ready(check: ProgramCheck) -> str:
    """Summary of the steps that were read."""
    steps, time_s, memory = len(check.step_times_s), check.step_time_s, check.peak_memory_bytes
    parts = [f"ready: read {steps} steps"]
    if time_s is not None:
        source = {
            "probe": " by the probe",
            "log": " by its log",
            "rate": " by the rate in its log",
            "arrival": " by arrival of its lines",
        }
        parts.append(f"{format_duration(time_s)} each{source.get(check.time_from, '')}")
        if check.seen is not None and check.seen.together > 1:
            parts[-1] += f", up to {check.seen.together} at once"
    is_known = any(map(math.isfinite, check.losses))
    parts.append(
        "with losses"
        if is_known
        else "without losses, so stability follows only from time and memory"
    )
    if memory is not None:
        parts.append(f"peak memory {format_bytes(memory)}")
    return ", ".join(parts)


OUTPUTS = (
    "set the program's output folder to {trial_dir} and set your own folder under `training` for the exported launch "
    "(a program without such an option can read the variable AUTOTUNE_TRIAL_DIR), "
    "or add `outputs: keep` to the spec if trials may overwrite the program's outputs"
)
"""remedy for a program that writes outside its trial's folder"""


def _files(check: ProgramCheck) -> list[str]:
    """Remedies if the program overwrites existing files; empty if it does not."""
    if not check.replaced:
        return []
    files = {path: check.files[path] for path in check.replaced}
    outcome = (
        "These files were restored, but"
        if all(file["kept"] for file in files.values())
        else "These files were not restored, and"
    )
    new = {path: file for path, file in check.files.items() if path not in files}
    kept = [f"new files from the run of {STEPS} steps were kept: {listed(new)}"] if new else []
    return [
        f"the program writes to existing files outside its trial's folder: {listed(files)}. {outcome} each trial would overwrite them; {OUTPUTS}",
        *kept,
    ]


def continues(check: ProgramCheck) -> str:
    """A message if the second run continued from files of the first one; empty if it did not."""
    second = check.second
    if second is None or second.failure is None or not check.files:
        return ""
    if second.failure.kind is not FailureKind.METRICS_MISSING:
        return ""
    return (
        f"the second config, {config_label(second.config)}, ended after too few steps, probably because it continued from files of the first run: "
        f"{listed(check.files)}. Remove these files, and {OUTPUTS.partition(', or add')[0]}"
    )


def _remarks(check: ProgramCheck) -> list[str]:
    """Remarks that do not prevent the study from starting."""
    texts = list(remarks(check.seen, keeps_outputs=True)) if check.seen is not None else []
    if check.files and not check.study.keeps_outputs:
        texts.append(
            f"each trial writes files outside its folder: {listed(check.files)}. These files are kept, and your own runs may find them. `tune` stops "
            f"if a trial would overwrite such a file; {OUTPUTS}"
        )
    texts += [row.remark for row in check.rows if row.remark]
    texts += check.study.workload.assumptions
    texts += filter(None, [_steps_beyond(check)])
    if check.second is not None and (failure := check.second.failure) is not None:
        texts.append(
            f"the second config, {config_label(check.second.config)}, failed: {failure.message}"
        )
    return texts


def _steps_beyond(check: ProgramCheck) -> str:
    """A remark if the second run, which may end by itself, made far more steps than asked for; empty
    otherwise."""
    done = check.second.seen.steps if check.second is not None and check.second.seen else 0
    if done <= MANY * (STEPS + SPARE):
        return ""
    return f"the program made {done} steps instead of {STEPS + SPARE}, and was ended; the option that gets {{steps}} may mean something else. Trials are ended in the same way"


def _is_unit_known(check: ProgramCheck) -> bool:
    """Whether it is known what a line of the log counts, steps or micro-batches, or that makes no
    difference because accumulation is constant."""
    study, second = check.study, check.second
    if check.time_from in ("", "probe") or study.trainer != "command":
        return True
    varies = _accumulation_varies(study)
    varies = varies or (
        second is not None and second.config.accumulation_steps != check.config.accumulation_steps
    )
    if not varies or study.trainer_options.get("counts", "unknown") != "unknown":
        return True
    is_by_tokens = check.time_from == "rate" and "steps_per_s" not in check.metrics
    is_of_known_form = any(line.counts for line in check.understood)
    return is_by_tokens or is_of_known_form or _rate_proves(check) or _times_prove(check)


def _accumulation_varies(study: Study) -> bool:
    """Whether accumulation varies in the space: as a knob, or as a result of batch, micro-batch and
    ranks."""
    knobs, workload = study.space.knobs, study.workload
    if "accumulation_steps" in knobs:
        return len(knobs["accumulation_steps"]) > 1
    sizes = study.space.world_sizes
    may_differ = workload.cluster.num_gpus > 1 and len(sizes) != 1
    listed = (knobs.get(name, ()) for name in ("micro_batch_size", "tp", "pp", "dp", "cp"))
    return (
        may_differ
        or len(workload.global_batch_sizes) > 1
        or any(len(values) > 1 for values in listed)
    )


def _rate_proves(check: ProgramCheck) -> bool:
    """Whether a rate in the log shows that the time of one line covers a whole step of the spec's
    batch, instead of a micro-batch."""
    runs = [
        run
        for run in (check, check.second)
        if run is not None and run.config.accumulation_steps > 1
    ]
    return any(
        covers_the_batch(
            check.study, run.config, [line.text for line in run.understood], run.step_time_s
        )
        for run in runs
    )


def _times_prove(check: ProgramCheck) -> bool:
    """Whether the time per line grows with accumulation between two configs that differ in nothing
    else. The time of lines per micro-batch would be constant."""
    second = check.second
    if (
        second is None
        or replace(second.config, accumulation_steps=check.config.accumulation_steps)
        != check.config
    ):
        return False
    few, many = sorted((check, second), key=lambda run: run.config.accumulation_steps)
    ratio = many.config.accumulation_steps / few.config.accumulation_steps
    times = [[time_s for time_s in run.step_times_s[1:] if time_s > 0] for run in (few, many)]
    if ratio < 2 or not all(times) or max(times[0]) >= min(times[1]):
        return False
    return median(times[1]) / median(times[0]) > math.sqrt(ratio)


def uncounted(check: ProgramCheck) -> str:
    """A message if it is unknown what a line of the log counts; empty if it is known.

    Accumulation alone hardly changes sequences/s. If they seem to grow with accumulation, each line
    counts a micro-batch. Nothing is concluded if the times of the two configs overlap.
    """
    if _is_unit_known(check):
        return ""
    remedy = "Set `counts: micro-batches` under `trainer` if a line counts a micro-batch, otherwise `counts: steps`"
    if why := _seems_parts(check):
        return f"the probe cannot observe this program, and a line of its log seems to count a micro-batch, not an optimizer step: {why}. {remedy}"
    return f"steps cannot be counted: the probe cannot observe this program, and because its configs differ in accumulation it is unclear whether a line of its log counts an optimizer step or a micro-batch. {remedy}"


def _seems_parts(check: ProgramCheck) -> str:
    """Evidence that a line counts a micro-batch; empty without it."""
    second = check.second
    if second is None:
        return ""
    growth = second.config.accumulation_steps / check.config.accumulation_steps
    first_rates, second_rates = _rates(check), _rates(second)
    if max(growth, 1 / growth) < 2 or not first_rates or not second_rates:
        return ""
    faster = median(second_rates) / median(first_rates)
    overlap = max(min(first_rates), min(second_rates)) <= min(max(first_rates), max(second_rates))
    if overlap or abs(math.log(faster)) < abs(math.log(growth)) / 2 or (faster > 1) != (growth > 1):
        return ""
    return f"the program's sequences/s grow by {max(faster, 1 / faster):.2g} when only accumulation grows by {max(growth, 1 / growth):g}"


def _rates(run: ProgramCheck) -> list[float]:
    """Sequences/s of each line after the first, if each were an optimizer step."""
    return [run.config.global_batch_size / time_s for time_s in run.step_times_s[1:] if time_s > 0]


def _after_steps(check: ProgramCheck, failure: Failure) -> Verdict:
    done = len(check.step_times_s)
    if failure.kind is FailureKind.METRICS_MISSING:
        needed = check.study.measure.warmup_steps + check.study.measure.min_steps
        return Verdict(
            ready=False,
            message=f"the program ended without an error, but its log shows only {number_of(done, 'step')}, and a trial must measure at least {needed}",
            remedy="pass {steps} to the program, so that it runs long enough, and make the program log every step",
        )
    return Verdict(
        ready=False,
        message=_failed(f"the program failed after {number_of(done, 'step')}", failure),
        remedy=_remedy(failure),
    )


def _not_understood(check: ProgramCheck, failure: Failure) -> Verdict:
    count, options = (
        len(check.lines),
        {option.name for option in trainer(check.study.trainer).options},
    )
    if not count:
        message, remedy = (
            _failed("the program printed nothing", failure),
            f"make the program print a line per step, such as {JSON_LINE}",
        )
    elif failure.kind is FailureKind.HANG and not (check.proposal or check.needs_no_patterns):
        message = _failed(
            f"none of the {number_of(count, 'line')} that the program printed belongs to a step",
            failure,
        )
        remedy = "the last lines show how far the program got. Ranks may be waiting for each other (let torchrun choose the port with --standalone), the start may need more time (set measure.start_timeout_s), or the program may not print its steps"
    else:
        message = f"none of the {number_of(count, 'line')} that the program printed was recognized as a step"
        remedy = f"make the program print one JSON object per step, such as {JSON_LINE}, or describe its lines in trainer.metrics"
        if check.needs_no_patterns and "metrics" in options:
            remedy = "remove trainer.metrics; these lines are understood without it"
        elif check.proposal and "metrics" in options:
            remedy = (
                "add the proposed patterns, which read these lines, to the spec under `trainer`"
            )
        elif check.proposal:
            remedy = "this trainer does not know these lines; use `kind: command` with the proposed patterns"
    return Verdict(ready=False, message=message, remedy=remedy)


def quoted(pattern: str) -> str:
    """A pattern as a single-quoted YAML string."""
    return "'" + pattern.replace("'", "''") + "'"


def in_one_line(proposal: Mapping[str, str]) -> str:
    """Patterns as a line of YAML."""
    return f"metrics: {{{', '.join(f'{name}: {quoted(pattern)}' for name, pattern in proposal.items())}}}"


def _failed(what: str, failure: Failure) -> str:
    return f"{what}: {failure.message}" + (
        ""
        if failure.exception in ("", failure.message) or failure.exception in failure.message
        else f" ({failure.exception})"
    )


def _remedy(failure: Failure) -> str:
    error, log = f"{failure.message}\n{failure.exception}", "\n".join(failure.log_tail)
    for text in (error, log):  # the log comes last, because warnings of launchers may match
        for pattern, remedy in _REMEDIES:
            if re.search(pattern, text):
                return remedy
    return "see the last lines of the log"
