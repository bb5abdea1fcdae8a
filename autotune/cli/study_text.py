"""Studies as text: the printed summary, the table of best configs, and trials, speedups and events
in one line each.

All text is made from trials and from the documents of the public contract, so a study reads the
same whether it runs in this process, has ended or runs on a service.
"""

from __future__ import annotations

import shlex
import sys
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.cli.output import bare_table, consoles, print_table
from autotune.ports import EventKind
from autotune.report.findings import failure_kinds_text
from autotune.report.history import history_line
from autotune.report.notes import infeasible_line, note_of, placement_lines, ranked_note
from autotune.report.table_layout import Column, FittedTable, TableLayout
from autotune.report.terminal import (
    MEDIAN_STEP,
    MIN_CONFIG,
    Palette,
    by_config,
    format_count,
    safe,
    study_configs_table,
)
from autotune.results.answers import queue_position_text
from autotune.results.without_baseline import why_unmeasured
from autotune.spec import (
    ParallelConfig,
    StudyStatus,
    Trial,
    TrialPurpose,
    TrialStatus,
    config_changes,
    config_label,
)
from autotune.spec.runs.trial import trial_numbers
from autotune.spec.texts.as_text import (
    DEFAULT_IS_BEST,
    UNKNOWN,
    bytes_cell,
    count_cell,
    duration_cell,
    format_span,
    format_speedup,
    number_of,
)

if TYPE_CHECKING:
    from rich.console import Console

OPTIONAL_COLUMNS = ("stability", MEDIAN_STEP, "memory", "reward")
"""columns that a narrow terminal omits from tables of configs, in this order"""
ACROSS_COLUMNS = (*OPTIONAL_COLUMNS, "runner", "GPUs")
"""columns that a narrow terminal omits from tables of configs across studies; study ids stay
whole"""
STUDY_COLUMNS = ("created", "cluster", "model", "runs")
"""columns that a narrow terminal omits from tables of studies, in this order"""
MIN_NAME = 12
"""minimum width of a study's name in a narrow terminal, characters"""


def trial_line(trial: Trial, palette: Palette) -> str:
    """Return one line about an ended trial."""
    label = f"trial {trial.number} {config_label(trial.config)}: {trial.status.lower()}"
    if (m := trial.measured) is not None:
        predicted = (
            f" (predicted {count_cell(float(trial.estimate.tokens_per_s))})"
            if trial.estimate
            else ""
        )
        label += (
            f", {count_cell(m.tokens_per_s)} tokens/s{predicted}, {bytes_cell(m.peak_memory_bytes)}"
        )
    remark = note_of(trial)
    return f"{label}; {remark}" if remark else label


def noisy_line(noisy: Mapping[str, Any]) -> str:
    """Return the warning that this machine is too noisy, for a running study. `noisy`: the study's
    `too_noisy` document."""
    return f"{noisy['message']} so far. A speedup is claimed only if later runs agree, or if the speedup is far above this noise: {noisy['remedy']}"


def print_study(
    document: Mapping[str, Any],
    trials: Sequence[Mapping[str, Any]],
    *,
    why: Sequence[str] = (),
    verbose: bool = False,
    folder: Path | None = None,
) -> None:
    """Print a study: a table with one row per config, then the answer in at most ten lines.

    `verbose`: also print what was excluded, where ranks ran, and why the winner won (the sentences
    in `why`). `folder`: the folder with the study's results, if no store has them.
    """
    out, err = consoles()
    palette = Palette.of(sys.stdout)
    study, best = document["study"], document["best"]
    rows = [Trial.from_dict(dict(t)) for t in trials]
    if rows:
        chosen = ParallelConfig.from_dict(best["config"]) if best else None
        missing = _unmeasured_baseline(document)
        table = study_configs_table(
            by_config(rows), best=chosen, unmeasured=missing, palette=palette
        )
        out.print(table)
    target = document.get("target")
    if target:
        print_target(target)
    for name, text in answer_lines(document, rows, folder):
        _print_answer(out, name, text)
    if best or (target and target["proxies"]):
        err.print(f"export     {export_command(document, folder)}", soft_wrap=True)
    if not verbose:
        return
    if (job := study.get("ray")) is not None:
        out.print(
            f"Ray job {job['job']}" + (f": {job['url']}" if job["url"] else ""), soft_wrap=True
        )
    for line in (
        *([f"config     {ParallelConfig.from_dict(best['config'])}"] if best else ()),
        *placement_lines(study),
        f"runs: {runs_line(rows)}",
        infeasible_line(document.get("infeasible") or {}),
    ):
        out.print(line)
    for sentence in why:
        out.print(f"  {sentence}")


def _print_answer(out: Console, name: str, text: str) -> None:
    """Print one line of the answer, wrapped in a narrow terminal. A config stays on one line,
    because people copy it."""
    if not out.is_terminal or " " not in text:
        out.print(f"{name:10} {text}", soft_wrap=True)
        return
    room = max(MIN_CONFIG, out.width - 11)
    lines = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)
    out.print(
        "\n".join(f"{head:10} {line}" for head, line in zip_longest([name], lines, fillvalue=""))
    )


def answer_lines(
    document: Mapping[str, Any], trials: Sequence[Trial], folder: Path | None = None
) -> list[tuple[str, str]]:
    """Return the lines that end a study's summary, as (name, text): what to change from the
    baseline, by how much that is faster, how certain that is, and what it costs."""
    study, best = document["study"], document["best"]
    missing = _unmeasured_baseline(document)
    lines: list[tuple[str, str]] = []
    remarks = best["measurement"].get("remarks") or () if best else ()
    if best:
        won = Trial.from_dict(dict(best))
        baseline = Trial.from_dict(dict(document["baseline"])) if document.get("baseline") else None
        lines.append(
            ("change", _changes_text(won, baseline or missing, is_measured=baseline is not None))
        )
        if line := _speedup_text(document, won, missing):
            runner_up = "" if document.get("tied_with") else baseline_runner_up(document, trials)
            lines.append(("speedup", line + runner_up))
        if document.get("tied_with"):
            lines.append(("tied", tied_line(document, trials)))
        lines.append(("stability", _stability_and_memory(won, baseline, missing)))
        lines += [("limits", remark) for remark in remarks]
    if failed := [t for t in trials if t.status is TrialStatus.FAILED]:
        how = failure_kinds_text(failed)
        lines.append(("failed", f"{how} (`autotune logs {study['id']} TRIAL` shows one)"))
    noisy = document.get("too_noisy") or {}
    already_shown = (why_unmeasured(missing), *remarks, *filter(None, [noisy.get("message")]))
    lines += [
        ("note", note)
        for note in document.get("notes") or ()
        if not any(text in note for text in already_shown)
    ]
    separator = ": " if study.get("interrupted") else ", "
    message = f"{separator}{study['message']}" if study["message"] else ""
    waiting = f"; it {words}" if (words := queue_position_text(study.get("waits_behind"))) else ""
    lines.append(("study", f"{study['id']} ({study['name']}): {state_of(study)}{message}{waiting}"))
    count = number_of(len(trials) or run_count(study), "run")
    configs = f" of {number_of(len(by_config(trials)), 'config')}" if trials else ""
    spent, explain = (
        format_span(study.get("elapsed_s")),
        f"autotune explain {_study_argument(study, folder)}",
    )
    lines.append(("runs", f"{count}{configs} in {spent} ({explain})"))
    return lines


def _unmeasured_baseline(document: Mapping[str, Any]) -> Trial | None:
    baseline = document.get("unmeasured_baseline")
    return Trial.from_dict(dict(baseline)) if baseline else None


def _changes_text(won: Trial, baseline: Trial | None, *, is_measured: bool) -> str:
    """Return the knobs to change from the baseline's config; `is_measured`: whether the baseline
    was measured."""
    if baseline is None:
        return "(the baseline was not measured)"
    changes = config_changes(baseline.config, won.config)
    if is_measured or not changes:
        return changes or "nothing; keep the baseline"
    return f"{changes} (the baseline was not measured)"


def _speedup_text(document: Mapping[str, Any], won: Trial, missing: Trial | None) -> str:
    """Return the speedup. `missing`: the baseline that could not be measured; the text then gives
    the reason, the best config's speed and the speed predicted for the baseline."""
    if missing is None:
        return speedup_line(document)
    speed = format_count(won.measured.tokens_per_s if won.measured else None)
    words = f"none, because {why_unmeasured(missing)}; the best config has {speed} tokens/s"
    if missing.estimate is None:
        return words
    speed = format_count(float(missing.estimate.tokens_per_s))
    return f"{words}; {speed} are predicted for the baseline"


def _stability_and_memory(won: Trial, baseline: Trial | None, missing: Trial | None) -> str:
    """Return the winner's stability and memory, with the baseline's in brackets. `missing`: the
    baseline that could not be measured; its predicted memory is shown instead."""

    def texts_of(trial: Trial) -> tuple[str, str]:
        reward = trial.reward
        stability = f"{reward.stability:.2f}" if reward else UNKNOWN
        return stability, bytes_cell(trial.peak_memory_bytes)

    stability, memory = texts_of(won)
    if baseline is not None:
        baseline_stability, baseline_memory = texts_of(baseline)
        return f"{stability} (baseline {baseline_stability}); memory {memory} (baseline {baseline_memory})"
    if missing is None or missing.estimate is None:
        return f"{stability}; memory {memory}"
    predicted = bytes_cell(float(missing.estimate.peak_memory_bytes))
    return f"{stability}; memory {memory} (predicted for the baseline: {predicted})"


def print_target(target: Mapping[str, Any], *, top: int | None = None) -> None:
    """Print a target's ranking and what is known about it. `top`: number of configs to print; None
    prints all."""
    from autotune.report.target_text import HEADS, TEXT_COLUMNS, target_rows, target_sentences

    out, _ = consoles()
    numbers = [head for i, head in enumerate(HEADS) if i not in TEXT_COLUMNS]
    print_table(HEADS, target_rows(target)[:top], numbers=numbers)
    for sentence in target_sentences(target):
        out.print(sentence)


def job_line(job: Mapping[str, Any]) -> str:
    """Return the Slurm queue's state of a study's job in one line."""
    if not job.get("state"):
        return f"job {job['id']}: not in the queue"
    why = f" ({job['reason']})" if job["reason"] not in ("", "None") else ""
    left = f", {job['left']} left" if job["state"] == "RUNNING" and job["left"] else ""
    start = (
        f", expected start {job['start']}"
        if job["state"] == "PENDING" and job["start"] not in ("", "N/A")
        else ""
    )
    return f"job {job['id']}: {job['state']}{why}{left}{start}"


def baseline_runner_up(document: Mapping[str, Any], trials: Sequence[Trial]) -> str:
    """Return how close the next config comes if the baseline is the best config, otherwise an empty
    text."""
    best, baseline = document["best"], document.get("baseline")
    if not baseline or best["config"] != baseline["config"]:
        return ""
    config = ParallelConfig.from_dict(best["config"])
    others = [
        (t.measurement.tokens_per_s, t.number)
        for t in trials
        if t.is_measured
        and t.measurement
        and t.config != config
        and t.purpose
        not in (
            TrialPurpose.REFERENCE,
            TrialPurpose.FINAL,
        )  # a config's figure is its first trial's
    ]
    if not others:
        return ""
    speed, number = max(others)
    ratio = speed / best["measurement"]["tokens_per_s"]
    runs = sum(
        t.is_measured and t.config == next(o.config for o in trials if o.number == number)
        for t in trials
    )
    if ratio > 1:
        how = "in one run" if runs == 1 else f"over {runs} runs"
        return f"; trial {number} was {ratio:.2f}x as fast {how}: not confirmed"
    return f"; the next best, trial {number}, reached {ratio:.0%} of the best tokens/s"


def _study_argument(study: Mapping[str, Any], folder: Path | None) -> str:
    """Return the command-line argument that selects the study."""
    return str(study["id"]) if folder is None else f"--in {shlex.quote(str(folder))}"


def export_command(document: Mapping[str, Any], folder: Path | None = None) -> str:
    """Return the command that exports the study's best config, or the line of Python that starts
    it. The trainer comes from the document's `next_export`, otherwise from the study."""
    named = _study_argument(document["study"], folder)
    target = document.get("next_export") or {"trainer": document["study"]["trainer"], "options": {}}
    if line := target.get("python"):
        return f"in Python: {line}"
    options = "".join(f" --option {name}={value}" for name, value in target["options"].items())
    return f"autotune export {named} --to {target['trainer']}{options} -o launch/"


_PURPOSES: Mapping[TrialPurpose, tuple[str, str]] = {
    TrialPurpose.SEARCH: ("1 search trial", "{} search trials"),
    TrialPurpose.BASELINE: ("the baseline", "{} runs of the baseline"),
    TrialPurpose.REFERENCE: ("an fp32 reference", "{} fp32 references"),
    TrialPurpose.FINAL: ("1 final", "{} finals"),
    TrialPurpose.PROXY: ("1 proxy", "{} proxies"),
}
"""names of the runs by purpose: for one run, and for several"""
_STATUSES: Mapping[TrialStatus, str] = {
    TrialStatus.COMPLETED: "completed",
    TrialStatus.STOPPED: "stopped early",
    TrialStatus.FAILED: "failed",
    TrialStatus.CANCELLED: "cancelled",
    TrialStatus.INFEASIBLE: "infeasible",
    TrialStatus.RUNNING: "running",
    TrialStatus.PENDING: "waiting",
}


def runs_line(trials: Sequence[Trial]) -> str:
    """Return the number of runs by purpose and by status, e.g. `14 search trials, the baseline, 6
    finals (19 completed, 2 failed)`."""
    statuses, purposes = Counter(t.status for t in trials), Counter(t.purpose for t in trials)
    ends = [f"{n} {words}" for status, words in _STATUSES.items() if (n := statuses[status])]
    kinds = [
        words[n > 1].format(n) for purpose, words in _PURPOSES.items() if (n := purposes[purpose])
    ]
    return f"{', '.join(kinds)} ({', '.join(ends)})"


def speedup_line(document: Mapping[str, Any]) -> str:
    """Return the best config's speedup over the baseline and how it was measured; an empty text if
    one of the two is missing.

    `document`: the public document {study, best, baseline, speedup, final_rounds, ...}.
    """
    study, best, baseline = document.get("study"), document.get("best"), document.get("baseline")
    if not study or not best or not baseline:
        return ""
    ended = StudyStatus(study["status"]).is_terminal
    if noisy := document.get("too_noisy"):
        return str(noisy["message"])
    if best["config"] == baseline["config"]:
        return DEFAULT_IS_BEST + ("" if ended else " so far")
    if not document.get("speedup"):
        return ""
    if document.get("final_rounds"):
        how = "re-measured side by side"
    else:
        how = "each measured once" if ended else "not yet re-measured"
    low, high = document.get("speedup_low"), document.get("speedup_high")
    interval = f"95% CI {low:.2f}-{high:.2f}, " if low is not None and high is not None else ""
    return f"{document['speedup']:.2f}x the baseline ({interval}{how})"


def tied_line(document: Mapping[str, Any], trials: Sequence[Trial] = ()) -> str:
    """Return which trials are statistically tied with the best one, and in which knobs the first of
    them differs, if it is in `trials`. Returns an empty text without ties."""
    numbers = document.get("tied_with") or ()
    if not numbers:
        return ""
    rival = next((t for t in trials if t.number == numbers[0]), None)
    line = f"statistically tied with {trial_numbers(numbers)}"
    if rival is None:
        return line
    best = ParallelConfig.from_dict(document["best"]["config"])
    which = f"trial {rival.number}" if len(numbers) > 1 else "it"
    return f"{line}; {which} differs in {config_changes(best, rival.config)}"


def configs_table(configs: Sequence[Mapping[str, Any]]) -> FittedTable:
    """Return a table of measured configs, best first. `configs`: trials, or {study, best} across
    studies."""
    across = bool(configs) and "best" in configs[0]
    notes = [ranked_note({**row, **(row["best"] if across else {})}) for row in configs]
    has_notes = any(notes)
    optional = ACROSS_COLUMNS if across else OPTIONAL_COLUMNS
    palette = Palette.of(sys.stdout)
    table = FittedTable(
        empty=bare_table,
        columns=(
            Column(key="rank", heading="#" if across else "rank", right=True),
            Column(key="config", min_width=MIN_CONFIG, cut=False),
            *(
                Column(key=n, right=True)
                for n in ("GPUs", "tokens/s", MEDIAN_STEP, "memory", "stability", "reward")
            ),
            *(Column(key=n) for n in (("model", "cluster", "runner", "study") if across else ())),
            *([Column(key="note")] if has_notes else []),
        ),
        layouts=(
            *(TableLayout(hidden=frozenset(optional[:n])) for n in range(len(optional))),
            TableLayout(
                hidden=frozenset(optional),
                shorten=("config", "model", "cluster") if across else ("config",),
            ),
        ),
        ellipsis=palette.unicode,
    )
    for rank, row in enumerate(configs, start=1):
        trial = row["best"] if across else row
        m, r = trial["measurement"] or {}, trial["reward"] or {}
        config = ParallelConfig.from_dict(trial["config"])
        study = row["study"] if across else {}
        table.add_row(
            str(rank),
            config_label(config),
            f"{config.world_size:,}",
            count_cell(m.get("tokens_per_s")),
            duration_cell(m.get("step_time_s")),
            bytes_cell(m.get("peak_memory_bytes")),
            f"{r['stability']:.2f}" if r else UNKNOWN,
            f"{r['total']:+.3f}" if r else UNKNOWN,
            *(
                safe(str(study[name]), palette)
                for name in (("model", "cluster", "runner", "id") if across else ())
            ),
            *([notes[rank - 1]] if has_notes else []),
        )
    return table


def studies_table(studies: Sequence[Mapping[str, Any]]) -> FittedTable:
    """Return a table of studies. A narrow terminal omits columns and then shortens names; ids stay
    whole, because commands take them."""
    palette = Palette.of(sys.stdout)
    table = FittedTable(
        empty=bare_table,
        columns=(
            Column(key="id"),
            Column(key="name", min_width=MIN_NAME),
            *(Column(key=key) for key in ("status", "model", "cluster")),
            *(Column(key=key, right=True) for key in ("runs", "speedup")),
            Column(key="created"),
        ),
        layouts=(
            *(TableLayout(hidden=frozenset(STUDY_COLUMNS[:n])) for n in range(len(STUDY_COLUMNS))),
            TableLayout(hidden=frozenset(STUDY_COLUMNS), shorten=("name",)),
        ),
        ellipsis=palette.unicode,
    )
    for s in studies:
        speedup = (
            format_speedup(s["speedup"], *speedup_interval(s)) if s.get("speedup") else UNKNOWN
        )
        table.add_row(
            s["id"],
            safe(s["name"], palette),
            state_of(s),
            safe(s["model"], palette),
            safe(s["cluster"], palette),
            f"{run_count(s):,}",
            "too noisy" if s.get("too_noisy") else speedup,
            str(s["created_at"])[:19].replace("T", " "),
        )
    return table


def run_count(study: Mapping[str, Any]) -> int:
    """Return the number of runs in a study's document: all trials except infeasible ones."""
    return sum(n for status, n in study["trials"].items() if status != TrialStatus.INFEASIBLE)


def state_of(study: Mapping[str, Any]) -> str:
    """Return the study's status, or `interrupted` if its controller died."""
    return "interrupted" if study.get("interrupted") else str(study["status"]).lower()


def speedup_interval(study: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return the bounds of the 95% confidence interval of a listed study's speedup; (None, None)
    for a paused study without final rounds."""
    result = study.get("result") or {}
    if study["status"] == "PAUSED" and not result.get("final_rounds"):
        return None, None
    return result.get("speedup_low"), result.get("speedup_high")


EVENT_TEXTS: Mapping[str, str] = {
    "Tick": "time passed",
    "ControllerBegan": "a controller began",
    "AttemptAdopted": "trial {number} continues under this controller",
    "AttemptQueued": "trial {number} waits for ranks",
    "AttemptStarted": "the ranks of trial {number} are placed",
    "StepsReported": "trial {number} reported steps",
    "AttemptEnded": "attempt {attempt} of trial {number} ended",
    "PauseAsked": "pause requested",
    "ResumeAsked": "pause withdrawn",
    "StopAsked": "stop requested",
    "CancelAsked": "cancellation requested",
    "InterruptAsked": "the controller was interrupted ({reason})",
}
"""text for each event that led to a decision of the controller, by the class name of the event
(`autotune.study.controller.commands.Event`)"""


def event_line(event: Mapping[str, Any]) -> str:
    """Return one line about any event: `history_line`, or for a decision of the controller the
    event that caused it."""
    if event["kind"] != EventKind.DECIDED:
        return history_line(event) or str(event["kind"])
    cause = event["data"]["cause"]
    words = EVENT_TEXTS.get(cause["event"], cause["event"]).format_map(cause)
    return f"decision {event['data']['decision']}: {words}"
