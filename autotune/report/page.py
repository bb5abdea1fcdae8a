"""One study as a self-contained HTML page: answer, figures, trials, failures, how to reproduce it.

Everything is inside the one file: styles and SVG inline, no script, nothing fetched, and a Content-Security-Policy that says so. All
text from studies (names, messages, logs) is escaped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import fields
from html import escape
from typing import Any

from autotune import __version__
from autotune.ports import StudyRecord
from autotune.report.figures import Bar, Line, Point, plot, stacked_bars
from autotune.report.findings import (
    best_so_far,
    prediction_errors,
    status_counts,
    time_parts,
    why,
)
from autotune.report.reward_tables import formula_rows, front_rows, reward_rows
from autotune.report.terminal import (
    PART_COLOURS,
    PART_NAMES,
    format_bytes,
    format_count,
    format_duration,
    note_of,
)
from autotune.results.answers import Result, explained, result_from
from autotune.results.rankings import front_documents
from autotune.reward import STABILITY_RULE, tokens_per_s
from autotune.spec import MemoryParts, Trial, TrialPurpose, config_label

MAX_SPEC = 20_000
"""characters of the spec that are shown"""
MAX_BARS = 40
"""trials in the memory figure"""

STYLE = """
:root{color-scheme:light dark;--ink:#1c2430;--soft:#5b6675;--line:#d9dee6;--page:#fff;--card:#f6f8fa;--accent:#2f6fde;--bad:#c4314b;--good:#1f8a4c}
@media(prefers-color-scheme:dark){:root{--ink:#e6eaf0;--soft:#9aa5b4;--line:#39424e;--page:#14181d;--card:#1d232a;--accent:#6ea3ff;--bad:#ff7b8e;--good:#58c98a}}
*{box-sizing:border-box}body{margin:0;font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page)}
main{max-width:1080px;margin:0 auto;padding:24px 20px 64px}h1{font-size:26px;margin:0 0 4px;overflow-wrap:anywhere}h2{font-size:19px;margin:36px 0 10px}
p{margin:6px 0}.soft{color:var(--soft)}.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(170px,1fr));gap:12px;margin:18px 0}
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px 14px}.card b{display:block;font-size:22px;font-variant-numeric:tabular-nums}
.card span{color:var(--soft);font-size:13px}.answer{background:var(--card);border-left:4px solid var(--accent);border-radius:6px;padding:12px 16px;margin:16px 0}
.answer code{font-size:15px}.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:20px}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px}figcaption{color:var(--soft);font-size:13px;margin-top:6px}
figure h3{font-size:15px;margin:0 0 6px}svg{width:100%;height:auto;display:block;font:12px system-ui,sans-serif}svg text{fill:var(--ink)}
.tick,.row{fill:var(--soft)!important;font-size:11px}.row{fill:var(--ink)!important}.name{font-size:12px}.grid{stroke:var(--line)}.axis{stroke:var(--soft)}
.dot{fill:var(--accent);fill-opacity:.75}.best{fill:var(--good);stroke:var(--page);stroke-width:2}.base{fill:none;stroke:var(--ink);stroke-width:2}
.fail{stroke:var(--bad);stroke-width:2;fill:none}.line{fill:none;stroke:var(--good);stroke-width:2}.dashed{fill:none;stroke:var(--soft);stroke-dasharray:5 4}
.limit{stroke:var(--bad);stroke-width:1.5;stroke-dasharray:6 3}.mark{stroke:var(--ink);stroke-width:3}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:14px}
th,td{text-align:left;padding:6px 10px;border-bottom:1px solid var(--line);vertical-align:top}th{color:var(--soft);font-weight:600;white-space:nowrap}
td.n,th.n{text-align:right;white-space:nowrap}tr.won td{background:color-mix(in srgb,var(--good) 12%,transparent)}
code,pre{font-family:ui-monospace,monospace;font-size:13px}pre{background:var(--card);border:1px solid var(--line);border-radius:6px;padding:10px 12px;overflow-x:auto;margin:8px 0}
.COMPLETED{color:var(--good)}.FAILED{color:var(--bad)}details{margin:4px 0}summary{cursor:pointer}td.why{max-width:360px;overflow-wrap:anywhere}
@media print{main{max-width:none}figure,.card{break-inside:avoid}}
"""


def html_report(record: StudyRecord, trials: Sequence[Trial]) -> str:
    """The page of a study, running or finished."""
    found = result_from(record, trials)
    study = record.study
    title = f"{study.name}: autotune report"
    body = [
        _head(found),
        _answer(found),
        "<h2>Figures</h2>",
        '<div class="figures">',
        *(f for f in (_progress(found), _accuracy(found), _steps(found), _memory(found)) if f),
        "</div>",
        _rewards(found),
        _trials(found),
        _failures(found),
        _reproduce(found),
    ]
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main></body></html>\n"
    )


def _head(found: Result) -> str:
    record, workload = found.record, found.record.study.workload
    batch = ", ".join(map(str, workload.global_batch_sizes))
    facts = (
        f"{workload.model.name} ({format_count(workload.model.num_parameters)} parameters) on {workload.cluster.name}, "
        f"sequences of {workload.seq_len} tokens, {batch} per step, trainer {record.study.trainer}, "
        f"searcher {record.study.searcher}, runner {record.study.runner}"
    )
    when = f"study {record.id}, {record.status.lower()}"
    when += f", {record.started_at:%Y-%m-%d %H:%M} UTC" if record.started_at else ""
    when += f", {format_duration(record.elapsed_s)}" if record.elapsed_s else ""
    message = f'<p class="soft">{escape(record.message)}</p>' if record.message else ""
    return f'<h1>{escape(record.study.name)}</h1><p>{escape(facts)}</p><p class="soft">{escape(when)}</p>{message}'


def _answer(found: Result) -> str:
    best = found.best
    cards = [
        ("speedup over the default", f"{found.speedup:.2f}×" if found.speedup is not None else "–"),
        ("tokens per second", format_count(tokens_per_s(best)) if best else "–"),
        ("step time", format_duration(best.measurement.step_time_s) if best and best.measurement else "–"),
        ("peak memory", format_bytes(best.measurement.peak_memory_bytes if best and best.measurement else None)),
    ]
    mfu = best.measurement.mfu if best and best.measurement else None
    if mfu is not None:
        cards.append(("model FLOPs utilization", f"{mfu:.1%}"))
    counts = status_counts(found.trials)
    cards.append(("trials", f"{len(found.trials)}"))
    boxes = "".join(
        f'<div class="card"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for name, value in cards
    )
    winner = f"<p>Best: <code>{escape(str(best.config))}</code> (trial {best.number})</p>" if best else ""
    sentences = "".join(f"<p>{escape(sentence)}</p>" for sentence in why(found))
    summary = ", ".join(f"{n} {status.lower()}" for status, n in counts.items()) or "no trials yet"
    return f'<div class="cards">{boxes}</div><div class="answer">{winner}{sentences}<p class="soft">{escape(summary)}</p></div>'


def _title(trial: Trial, *facts: str) -> str:
    return f"trial {trial.number}: {config_label(trial.config)}" + "".join(f", {fact}" for fact in facts)


def _kind(found: Result, trial: Trial) -> str:
    if found.best is not None and trial.number == found.best.number:
        return "best"
    return "base" if trial.purpose is TrialPurpose.BASELINE else "dot"


def _progress(found: Result) -> str:
    if not found.measured:
        return ""
    points = [
        Point(
            x=t.number,
            y=tokens_per_s(t),
            kind=_kind(found, t),
            title=_title(t, f"{format_count(tokens_per_s(t))} tokens/s"),
        )
        for t in found.measured
    ]
    points += [Point(x=t.number, y=0.0, kind="fail", title=_title(t, note_of(t))) for t in found.failed]
    lines = [Line(points=best_so_far(found.trials), stepped=True)]
    last = max(1.0, float(found.trials[-1].number))
    if found.baseline is not None:
        level = tokens_per_s(found.baseline)
        lines.append(Line(points=[(0.0, level), (last, level)], kind="dashed", label="default config"))
    figure = plot(
        points,
        lines,
        x_label="trial",
        y_label="tokens per second",
        x_format=lambda x: f"{x:.0f}",
        y_format=format_count,
        x_range=(-0.04 * last, 1.04 * last),
        whole_x=True,
        description="Measured throughput by trial, with the best so far",
    )
    caption = "Every measured trial, the best so far (line), the default config (square and dashes), failures (crosses at the bottom)."
    return _figure("Throughput by trial", figure, caption)


def _accuracy(found: Result) -> str:
    both = [t for t in found.measured if t.estimate is not None]
    if not both:
        return ""
    values = [(float(t.estimate.tokens_per_s), tokens_per_s(t), t) for t in both if t.estimate is not None]
    high = 1.08 * max(max(x, y) for x, y, _ in values)
    points = [
        Point(
            x=x,
            y=y,
            kind=_kind(found, t),
            title=_title(t, f"predicted {format_count(x)}", f"measured {format_count(y)}"),
        )
        for x, y, t in values
    ]
    figure = plot(
        points,
        [Line(points=[(0.0, 0.0), (high, high)], kind="dashed")],
        x_label="predicted tokens per second",
        y_label="measured",
        x_format=format_count,
        y_format=format_count,
        x_range=(0.0, high),
        y_range=(0.0, high),
        description="Predicted against measured throughput",
    )
    errors = prediction_errors(found.trials)
    caption = f"On the dashed line the prediction is exact. Median error of the step time {errors['step_time']:.0%}"
    caption += f", of the peak memory {errors['memory']:.0%}." if "memory" in errors else "."
    return _figure("Predicted against measured", figure, caption)


def _steps(found: Result) -> str:
    bars, profiled = [], True
    for label, trial in (("default config", found.baseline), ("winner", found.best)):
        if trial is None or (label == "winner" and trial is found.baseline):
            continue
        parts, measured = time_parts(trial)
        if parts and trial.measurement is not None:
            profiled = profiled and measured
            step = trial.measurement.step_time_s
            bars.append(Bar(label=f"{label} (#{trial.number})", parts=parts, mark=step, note=format_duration(step)))
    if not bars:
        return ""
    names = {**PART_NAMES, **{n: n for bar in bars for n in bar.parts if n not in PART_NAMES}}
    figure = stacked_bars(
        bars,
        names=names,
        colours=PART_COLOURS,
        number=format_duration,
        x_label="seconds of one optimizer step",
        description="Parts of the step, default config against winner",
    )
    source = "Profiled parts" if profiled else "Parts as the cost model predicts them"
    return _figure("Where the time goes", figure, f"{source}; the thick tick is the measured step time.")


def _memory(found: Result) -> str:
    bars = []
    for trial in found.trials[:MAX_BARS]:
        peak = trial.measurement.peak_memory_bytes if trial.measurement else None
        if trial.estimate is None or (peak is None and trial.failure is None):
            continue
        parts = {n: float(v) for n, v in trial.estimate.memory_parts_bytes.to_dict().items()}
        note = (
            format_bytes(peak) if peak else (str(trial.failure.kind).lower().replace("_", " ") if trial.failure else "")
        )
        bars.append(Bar(label=f"#{trial.number}", parts=parts, mark=peak, note=note))
    if not bars:
        return ""
    capacities = [
        t.measurement.memory_capacity_bytes
        for t in found.trials
        if t.measurement and t.measurement.memory_capacity_bytes
    ]
    capacity = min(capacities, default=found.record.study.workload.cluster.gpu.memory_bytes)
    largest = max(max(bar.mark or 0.0, sum(bar.parts.values())) for bar in bars)
    shown = capacity <= 4 * largest
    figure = stacked_bars(
        bars,
        names={f.name: PART_NAMES[f.name] for f in fields(MemoryParts)},
        colours=PART_COLOURS,
        number=format_bytes,
        x_label="peak memory of the fullest rank",
        description="Predicted and measured peak memory by trial, against the capacity",
        unit=2.0 ** (10 * math.floor(math.log2(max(largest, 1.0)) / 10)),
        limit=capacity if shown else None,
        limit_label=f"capacity {format_bytes(capacity)}",
    )
    caption = "Predicted parts, and the measured peak as a thick tick."
    caption += "" if shown else f" The capacity of {format_bytes(capacity)} is far to the right."
    return _figure("Memory", figure, caption)


def _figure(title: str, svg: str, caption: str) -> str:
    return f"<figure><h3>{escape(title)}</h3>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def _table(heads: Sequence[tuple[str, bool]], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    """`heads`: (name, whether it is a number); `rows`: (class, cells as HTML)."""
    top = "".join(f"<th{' class=n' if n else ''}>{escape(name)}</th>" for name, n in heads)
    lines = []
    for kind, cells in rows:
        inner = "".join(f"<td{' class=n' if n else ''}>{cell}</td>" for (_, n), cell in zip(heads, cells, strict=True))
        lines.append(f"<tr{f' class={kind}' if kind else ''}>{inner}</tr>")
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _rewards(found: Result) -> str:
    """What the winner's reward is made of, and what nothing beats."""
    if found.best is None:
        return ""
    parts = ""
    if found.best is not None:
        explanation = explained(found)
        heads, rows = reward_rows(explanation)
        said = "".join(f"<p>{escape(sentence)}</p>" for sentence in explanation["text"])
        parts = (
            f"<h2>Reward by parts</h2>{said}" + _words(heads, rows, text=1) + f'<p class="soft">{STABILITY_RULE}.</p>'
        )
        parts += _words(*formula_rows(explanation), text=2)
    heads, rows = front_rows(front_documents(found))
    caption = "No other measured config is at least as good in speed, stability, free memory and cost and better in one of them."
    return parts + "<h2>Pareto front</h2>" + _words(heads, rows, text=2) + f'<p class="soft">{caption}</p>'


def _words(heads: Sequence[str], rows: Sequence[Sequence[str]], *, text: int) -> str:
    """A table of plain text whose first `text` columns are words."""
    cells = [("", [escape(cell).replace("  ", "&emsp;") for cell in row]) for row in rows]
    return _table([(head, i >= text) for i, head in enumerate(heads)], cells)


def _trials(found: Result) -> str:
    if not found.trials:
        return ""
    heads = [
        *(("#", True), ("config", False), ("status", False), ("predicted", True), ("measured", True), ("step", True)),
        *(("spread", True), ("memory", True), ("reward", True), ("why", False)),
    ]
    rows = []
    for t in found.trials:
        m = t.measurement if t.is_measured else None
        peak = t.measurement.peak_memory_bytes if t.measurement else None
        label = config_label(t.config) + ("" if t.purpose is TrialPurpose.SEARCH else f" ({t.purpose})")
        cells = [
            str(t.number),
            f'<span title="{escape(str(t.config))}">{escape(label)}</span>',
            f'<span class="{escape(t.status)}">{escape(t.status.lower())}</span>',
            format_count(float(t.estimate.tokens_per_s)) if t.estimate else "–",
            format_count(m.tokens_per_s) if m else "–",
            format_duration(m.step_time_s) if m else "–",
            f"{m.step_time_spread:.1%}" if m else "–",
            format_bytes(peak) if peak else "–",
            f"{t.reward.total:.3f}" if t.reward else "–",
            escape(note_of(t)),
        ]
        rows.append(("won" if found.best is not None and t.number == found.best.number else "", cells))
    return "<h2>Trials</h2>" + _table(heads, rows) + '<p class="soft">Throughput in tokens per second.</p>'


def _failures(found: Result) -> str:
    if not found.failed:
        return ""
    rows = []
    for t in found.failed:
        failure = t.failure
        if failure is None:
            continue
        where = ", ".join(
            f"{name} {value}" for name, value in (("rank", failure.rank), ("step", failure.step)) if value is not None
        )
        evidence = "\n".join(filter(None, [failure.exception, *failure.log_tail]))
        shown = f"<details><summary>evidence</summary><pre>{escape(evidence)}</pre></details>" if evidence else ""
        cells = [
            str(t.number),
            escape(config_label(t.config)),
            escape(str(failure.kind).lower().replace("_", " ")),
            escape(where) or "–",
            f"{escape(failure.message)}{shown}",
        ]
        rows.append(("", cells))
    heads = [("#", True), ("config", False), ("kind", False), ("where", False), ("what happened", False)]
    return "<h2>What failed</h2>" + _table(heads, rows)


def _reproduce(found: Result) -> str:
    record = found.record
    commands = [f"autotune status {record.id}"]
    if found.best is not None:
        commands.append(f"autotune export {record.id} --to {_word(record.study.trainer)} -o launch")
    commands.append("autotune tune study.yaml   # the document below")
    spec = json.dumps(record.spec, indent=2, default=str)
    spec = spec if len(spec) <= MAX_SPEC else spec[:MAX_SPEC] + "\n... (cut)"
    best: dict[str, Any] = found.best.config.to_dict() if found.best is not None else {}
    config = f"<p>The best config:</p><pre>{escape(json.dumps(best, indent=2))}</pre>" if best else ""
    return (
        f"<h2>How to reproduce it</h2><p>Seed {record.study.seed}; written by autotune {escape(__version__)}.</p>"
        f"<pre>{escape(chr(10).join(commands))}</pre>{config}"
        f"<p>The study as it was submitted (YAML reads JSON):</p><pre>{escape(spec)}</pre>"
    )


def _word(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() else "TRAINER"
