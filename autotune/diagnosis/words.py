"""Formats a diagnosis as lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.diagnosis.finding import Diagnosis, Finding


def lines_of(diagnosis: Diagnosis, folder: str = "") -> Iterator[str]:
    """Format all findings and notes. `folder`: paths inside it become relative to it."""
    return (line.replace(f"{folder}/", "") if folder else line for line in _lines(diagnosis))


def _lines(diagnosis: Diagnosis) -> Iterator[str]:
    if not diagnosis.findings:
        yield diagnosis.verdict
    for number, finding in enumerate(diagnosis.findings, 1):
        yield f"{number}. {finding.cause}: {finding.what}{cost_of(finding)}"
        yield from (f"   seen: {text}" for text in finding.evidence)
        yield f"   confirm: {finding.confirm}"
        yield f"   change: {finding.change}" + (f" ({finding.line})" if finding.line else "")
    yield from diagnosis.profile
    yield from (f"note: {text}" for text in diagnosis.not_seen)


def cost_of(finding: Finding) -> str:
    """Return a text of the share of the step that a finding costs, with its interval; empty if
    unknown."""
    if finding.share is None:
        return ""
    text = f", {finding.share:.0%} of the step"
    if finding.low is None or finding.high is None:
        return text
    return f"{text} ({finding.low:.0%} to {finding.high:.0%})"
