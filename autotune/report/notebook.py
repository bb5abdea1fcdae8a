"""A result in a notebook: a card with the answer, and the figures by name. Registered under
`autotune.views`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape

from autotune.report.figures import plot_functions
from autotune.report.findings import winner_sentences
from autotune.report.notes import infeasible_line
from autotune.report.terminal import MEDIAN_STEP
from autotune.results.figure import Figure
from autotune.results.result import Result
from autotune.reward import tokens_per_s
from autotune.spec import Trial
from autotune.spec.texts.as_text import (
    bytes_cell,
    count_cell,
    duration_cell,
    format_speedup,
    number_of,
)


class NotebookView:
    """The bundled `autotune.results.figure.ResultView`."""

    def plots(self) -> Mapping[str, Callable[[Result], Figure | None]]:
        """Return the figures of a study's page, by name."""
        return plot_functions()

    def summary_html(self, result: Result) -> str:
        """Return a card with name, status and speedup, a table of winner and baseline, and why it
        won."""
        study = result.record.study
        heading = f"<strong>{escape(study.name)}</strong>: {escape(result.record.status.lower())}, {number_of(len(result.shown), 'run')}"
        if result.too_noisy is not None:
            heading += f", {escape(str(result.too_noisy))}"
        elif result.speedup is not None:
            speedup = result.speedup, result.speedup_low, result.speedup_high
            is_open = not result.record.status.is_terminal
            heading += (
                f", {escape(format_speedup(*speedup, over=' over the baseline', is_open=is_open))}"
            )
        rows = [
            _row(label, trial)
            for label, trial in (("best", result.best), ("baseline", result.baseline))
            if trial is not None
        ]
        heads = "".join(
            f"<th>{name}</th>"
            for name in ("", "trial", "config", "tokens/s", MEDIAN_STEP, "peak memory")
        )
        table = (
            f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
            if rows
            else ""
        )
        lines = [*winner_sentences(result), *result.notes, infeasible_line(result.infeasible)]
        text = "".join(f"<p>{escape(line)}</p>" for line in lines if line)
        return f'<div class="autotune-result"><p>{heading}</p>{table}{text}</div>'


def _row(label: str, trial: Trial) -> str:
    measured = trial.measurement
    cells = (
        label,
        f"{trial.number}",
        str(trial.config),
        count_cell(tokens_per_s(trial)),
        duration_cell(measured.step_time_s) if measured else "",
        bytes_cell(measured.peak_memory_bytes) if measured else "",
    )
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
