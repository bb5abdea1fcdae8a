"""How a config was found and measured, as comment lines at the top of exported files.

`tuned` is the document that `autotune.results.provenance` makes: plain values, in which texts (a
study's name) may hold anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.spec.texts.as_text import format_duration, format_speedup, number_of

LONGEST = 160
"""characters of a line"""


def comments(tuned: Mapping[str, Any]) -> list[str]:
    """The lines, without a comment sign; none for a launch that was not tuned. Each is one
    printable line, whatever the names in it are."""
    if not tuned:
        return []
    study, default = tuned["study"], tuned["default"]
    whose = f"{tuned['model']} on {tuned['cluster']} with {tuned['trainer']}"
    lines = [
        f"Config: {tuned['config']}",
        f"Tuned by autotune {tuned['autotune']} for {whose}: study {study['name']} ({study['id']})",
        f"Measured {tuned['measured_at'] or 'at an unknown time'} by the {tuned['runner']} runner: {_speed(tuned)}",
        f"  over {number_of(tuned['steps'], 'step')}"
        + (f" in {tuned['final_rounds']} final rounds" if tuned["final_rounds"] else "")
        + f"; before the finals: {number_of(tuned['trials']['measured'], 'measured run')}, {tuned['trials']['failed']} failed",
    ]
    if default:
        lines.append(f"Baseline: {default['config']}: {_speed(default)}")
    if tuned.get("too_noisy"):
        lines.append(f"No speedup is claimed: {tuned['too_noisy']}")
    elif tuned["speedup"]:
        speedup = format_speedup(
            tuned["speedup"], tuned.get("speedup_low"), tuned.get("speedup_high")
        )
        lines.append(f"Speedup in tokens per second over the baseline: {speedup}")
    return [plain_line(line) for line in lines]


def plain_line(text: str) -> str:
    """`text` as one printable line of bounded length."""
    line = "".join(c if c.isprintable() else " " for c in text)
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."


def _speed(measured: Mapping[str, Any]) -> str:
    time_s, spread = measured["step_time_s"], measured["step_time_spread"]
    return f"{measured['tokens_per_s']:,.0f} tokens/s, a median step of {format_duration(time_s)} (spread {spread:.1%})"
