"""A study as text: its printed summary, the table of best configs, and trials, speedups and events
in one line each.

Everything is made from trials and from the documents of the public contract. A study therefore
reads the same whether it runs in this process, ended yesterday or runs on a service.
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
from autotune.report.findings import failed_how
from autotune.report.history import history_line
from autotune.report.notes import infeasible_line, note_of, placed_lines, ranked_note
from autotune.report.table_layout import Column, FittedTable, Shortening
from autotune.report.terminal import (
    MEDIAN_STEP,
    MIN_CONFIG,
    Palette,
    by_config,
    configs_of_study_table,
    format_count,
    safe,
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
"""columns of configs that a narrow terminal leaves out, in this order"""
ACROSS_COLUMNS = (*OPTIONAL_COLUMNS, "runner", "GPUs")
"""the same across studies, where the id of the study stays whole"""
STUDY_COLUMNS = ("created", "cluster", "model", "runs")
"""columns of studies that a narrow terminal leaves out, in this order"""
MIN_NAME = 12
"""width to which the name of a study is shortened in a narrow terminal"""


def trial_line(trial: Trial, palette: Palette) -> str:
    """A trial that has ended, in one line."""
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
    """What is said of a machine that is too noisy while a study runs. `noisy`: the document
    `too_noisy`."""
    return f"{noisy['message']} so far. A speedup is claimed only if later runs agree, or if the speedup is far above this noise: {noisy['remedy']}"


def print_study(
    document: Mapping[str, Any],
    trials: Sequence[Mapping[str, Any]],
    *,
    why: Sequence[str] = (),
    verbose: bool = False,
    folder: Path | None = None,
) -> None:
    """Prints a study: one row per config, then the answer in at most ten lines. `verbose`: with
    what was excluded, where ranks ran, and why it won (`why`); `folder`: of its results, where no
    store has them."""
    out, err = consoles()
    palette = Palette.of(sys.stdout)
    study, best = document["study"], document["best"]
    rows = [Trial.from_dict(dict(t)) for t in trials]
    if rows:
        chosen = ParallelConfig.from_dict(best["config"]) if best else None
        missing = _unmeasured_baseline(document)
        table = configs_of_study_table(
            by_config(rows), best=chosen, unmeasured=missing, palette=palette
        )
        out.print(table)
    target = document.get("target")
    if target:
        print_target(target)
    for name, text in answer_lines(document, rows, folder):
        _print_answer(out, name, text)
    if best or (target and target["proxies"]):
        err.print(f"export     {next_step(document, folder)}", soft_wrap=True)
    if not verbose:
        return
    if (job := study.get("ray")) is not None:
        out.print(
            f"Ray job {job['job']}" + (f": {job['url']}" if job["url"] else ""), soft_wrap=True
        )
    for line in (
        *([f"config     {ParallelConfig.from_dict(best['config'])}"] if best else ()),
        *placed_lines(study),
        f"runs: {runs_line(rows)}",
        infeasible_line(document.get("infeasible") or {}),
    ):
        out.print(line)
    for sentence in why:
        out.print(f"  {sentence}")


def _print_answer(out: Console, name: str, text: str) -> None:
    """A line of the answer. A terminal that is too narrow for it gets further lines below its text,
    except of a config, which people copy."""
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
    """The end of a study, answer first: what to change against the baseline, by how much that is
    faster, how sure that is, and what it costs."""
    study, best = document["study"], document["best"]
    missing = _unmeasured_baseline(document)
    lines: list[tuple[str, str]] = []
    limits = best["measurement"].get("remarks") or () if best else ()
    if best:
        won = Trial.from_dict(dict(best))
        baseline = Trial.from_dict(dict(document["baseline"])) if document.get("baseline") else None
        lines.append(
            ("change", _change(won, baseline or missing, is_measured=baseline is not None))
        )
        if line := _speedup(document, won, missing):
            near = "" if document.get("tied_with") else next_best(document, trials)
            lines.append(("speedup", line + near))
        if document.get("tied_with"):
            lines.append(("tied", tied_line(document, trials)))
        lines.append(("stability", _beside_baseline(won, baseline, missing)))
        lines += [("limits", remark) for remark in limits]
    if failed := [t for t in trials if t.status is TrialStatus.FAILED]:
        how = failed_how(failed)
        lines.append(("failed", f"{how} (`autotune logs {study['id']} TRIAL` shows one)"))
    noisy = document.get("too_noisy") or {}
    known = (why_unmeasured(missing), *limits, *filter(None, [noisy.get("message")]))
    lines += [
        ("note", note)
        for note in document.get("notes") or ()
        if not any(text in note for text in known)
    ]
    joint = ": " if study.get("interrupted") else ", "
    message = f"{joint}{study['message']}" if study["message"] else ""
    behind = f"; it {words}" if (words := queue_position_text(study.get("waits_behind"))) else ""
    lines.append(("study", f"{study['id']} ({study['name']}): {state_of(study)}{message}{behind}"))
    count = number_of(len(trials) or run_count(study), "run")
    of = f" of {number_of(len(by_config(trials)), 'config')}" if trials else ""
    spent, explained = (
        format_span(study.get("elapsed_s")),
        f"autotune explain {_named(study, folder)}",
    )
    lines.append(("runs", f"{count}{of} in {spent} ({explained})"))
    return lines


def _unmeasured_baseline(document: Mapping[str, Any]) -> Trial | None:
    found = document.get("unmeasured_baseline")
    return Trial.from_dict(dict(found)) if found else None


def _change(won: Trial, baseline: Trial | None, *, is_measured: bool) -> str:
    """What to change against the baseline, also against one that could not be measured."""
    if baseline is None:
        return "(the baseline was not measured)"
    changes = config_changes(baseline.config, won.config)
    if is_measured or not changes:
        return changes or "nothing; keep the baseline"
    return f"{changes} (the baseline was not measured)"


def _speedup(document: Mapping[str, Any], won: Trial, missing: Trial | None) -> str:
    """The speedup; without a measured baseline why there is none, the speed of the best, and what
    was predicted for the baseline."""
    if missing is None:
        return speedup_line(document)
    speed = format_count(won.measured.tokens_per_s if won.measured else None)
    words = f"none, because {why_unmeasured(missing)}; the best config has {speed} tokens/s"
    if missing.estimate is None:
        return words
    predicted = missing.estimate
    speed = format_count(float(predicted.tokens_per_s))
    return f"{words}; {speed} are predicted for the baseline"


def _beside_baseline(won: Trial, baseline: Trial | None, missing: Trial | None) -> str:
    """Stability and memory of the winner, and in brackets the baseline's; of one that was not
    measured the predicted memory."""

    def of(trial: Trial) -> tuple[str, str]:
        reward = trial.reward
        stability = f"{reward.stability:.2f}" if reward else UNKNOWN
        return stability, bytes_cell(trial.peak_memory_bytes)

    stability, memory = of(won)
    if baseline is not None:
        stable_too, used = of(baseline)
        return f"{stability} (baseline {stable_too}); memory {memory} (baseline {used})"
    if missing is None or missing.estimate is None:
        return f"{stability}; memory {memory}"
    predicted = bytes_cell(float(missing.estimate.peak_memory_bytes))
    return f"{stability}; memory {memory} (predicted for the baseline: {predicted})"


def print_target(target: Mapping[str, Any], *, top: int | None = None) -> None:
    """Prints the ranking of a target's configs, the first `top` of them (None: all that are kept),
    and what is known of all."""
    from autotune.report.target_text import HEADS, TEXT_COLUMNS, target_rows, target_sentences

    out, _ = consoles()
    numbers = [head for i, head in enumerate(HEADS) if i not in TEXT_COLUMNS]
    print_table(HEADS, target_rows(target)[:top], numbers=numbers)
    for sentence in target_sentences(target):
        out.print(sentence)


def job_line(job: Mapping[str, Any]) -> str:
    """What the queue says of the job that runs a study."""
    if not job.get("state"):
        return f"job {job['id']}: not in the queue"
    why = f" ({job['reason']})" if job["reason"] not in ("", "None") else ""
    left = f", {job['left']} left" if job["state"] == "RUNNING" and job["left"] else ""
    begins = (
        f", expected start {job['start']}"
        if job["state"] == "PENDING" and job["start"] not in ("", "N/A")
        else ""
    )
    return f"job {job['id']}: {job['state']}{why}{left}{begins}"


def next_best(document: Mapping[str, Any], trials: Sequence[Trial]) -> str:
    """Where the baseline is the best one: how near the next one comes. Empty otherwise."""
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


def _named(study: Mapping[str, Any], folder: Path | None) -> str:
    """How a command names the study."""
    return str(study["id"]) if folder is None else f"--in {shlex.quote(str(folder))}"


def next_step(document: Mapping[str, Any], folder: Path | None = None) -> str:
    """The command that exports the best config of a study's document, by its `next_export` or else
    by the study's own trainer, or the line of Python that starts it."""
    named = _named(document["study"], folder)
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
"""what runs of each purpose are called: one, several"""
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
    """Runs counted by purpose and by status: `14 search trials, the baseline, 6 finals (19
    completed, 2 failed)`."""
    statuses, purposes = Counter(t.status for t in trials), Counter(t.purpose for t in trials)
    ends = [f"{n} {words}" for status, words in _STATUSES.items() if (n := statuses[status])]
    kinds = [
        words[n > 1].format(n) for purpose, words in _PURPOSES.items() if (n := purposes[purpose])
    ]
    return f"{', '.join(kinds)} ({', '.join(ends)})"


def speedup_line(document: Mapping[str, Any]) -> str:
    """How the best config of a study compares with the baseline, and how often both were measured;
    empty without both.

    `document` is the public document {study, best, baseline, speedup, final_rounds, ...}.
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
    """The trials that are statistically tied with the best, and in what the first of them differs
    from it, where `trials` hold it; empty without any."""
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
    """A table of measured configs, best first. Rows are trials, or {study, best} across studies."""
    across = bool(configs) and "best" in configs[0]
    notes = [ranked_note({**row, **(row["best"] if across else {})}) for row in configs]
    has_notes = any(notes)
    optional = ACROSS_COLUMNS if across else OPTIONAL_COLUMNS
    palette = Palette.of(sys.stdout)
    table = FittedTable(
        empty=bare_table,
        columns=(
            Column(key="rank", heading="#" if across else "rank", right=True),
            Column(key="config", least=MIN_CONFIG, cut=False),
            *(
                Column(key=n, right=True)
                for n in ("GPUs", "tokens/s", MEDIAN_STEP, "memory", "stability", "reward")
            ),
            *(Column(key=n) for n in (("model", "cluster", "runner", "study") if across else ())),
            *([Column(key="note")] if has_notes else []),
        ),
        stages=(
            *(Shortening(without=frozenset(optional[:n])) for n in range(len(optional))),
            Shortening(
                without=frozenset(optional),
                shorten=("config", "model", "cluster") if across else ("config",),
            ),
        ),
        ellipsis=palette.unicode,
    )
    for rank, row in enumerate(configs, start=1):
        trial = row["best"] if across else row
        m, r = trial["measurement"] or {}, trial["reward"] or {}
        config = ParallelConfig.from_dict(trial["config"])
        of = row["study"] if across else {}
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
                safe(str(of[name]), palette)
                for name in (("model", "cluster", "runner", "id") if across else ())
            ),
            *([notes[rank - 1]] if has_notes else []),
        )
    return table


def studies_table(studies: Sequence[Mapping[str, Any]]) -> FittedTable:
    """A table of studies. A narrow terminal leaves out columns, and shortens names last: ids stay
    whole, because commands take them."""
    palette = Palette.of(sys.stdout)
    table = FittedTable(
        empty=bare_table,
        columns=(
            Column(key="id"),
            Column(key="name", least=MIN_NAME),
            *(Column(key=key) for key in ("status", "model", "cluster")),
            *(Column(key=key, right=True) for key in ("runs", "speedup")),
            Column(key="created"),
        ),
        stages=(
            *(Shortening(without=frozenset(STUDY_COLUMNS[:n])) for n in range(len(STUDY_COLUMNS))),
            Shortening(without=frozenset(STUDY_COLUMNS), shorten=("name",)),
        ),
        ellipsis=palette.unicode,
    )
    for s in studies:
        speedup = format_speedup(s["speedup"], *interval_of(s)) if s.get("speedup") else UNKNOWN
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
    """The runs in a study's document: all trials except those of configs that could not be run."""
    return sum(n for status, n in study["trials"].items() if status != TrialStatus.INFEASIBLE)


def state_of(study: Mapping[str, Any]) -> str:
    """The status of a study's document, or that it is interrupted: its controller died."""
    return "interrupted" if study.get("interrupted") else str(study["status"]).lower()


def interval_of(study: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """The ends of the 95% interval of a listed study's speedup; None while it has no final rounds
    and may go on."""
    result = study.get("result") or {}
    if study["status"] == "PAUSED" and not result.get("final_rounds"):
        return None, None
    return result.get("speedup_low"), result.get("speedup_high")


CAUSES: Mapping[str, str] = {
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
"""what the controller decided upon, by the name of the event
(`autotune.study.controller.commands.Event`)"""


def logged_line(event: Mapping[str, Any]) -> str:
    """Any event in one line: `history_line`, and each decision of the controller with what it was
    decided upon."""
    if event["kind"] != EventKind.DECIDED:
        return history_line(event) or str(event["kind"])
    cause = event["data"]["cause"]
    words = CAUSES.get(cause["event"], cause["event"]).format_map(cause)
    return f"decision {event['data']['decision']}: {words}"
