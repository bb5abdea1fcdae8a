"""Events of a study's history as text, for the terminal and the study's page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.ports import EventKind
from autotune.ports.trial_runner import UNLIMITED_RANKS
from autotune.report.terminal import format_count
from autotune.spec import Failure, ParallelConfig, config_label, number_of

MESSAGES: Mapping[str, str] = {
    EventKind.MACHINE_CHANGED: "",
    EventKind.GUESS_LEFT_OUT: "",
    EventKind.GUESS_FILLED_IN: "",
    EventKind.PROGRAM_CHECKED: "program checked: ",
    EventKind.CALIBRATED: "cluster calibrated: ",
    EventKind.OUTLIER: "",
}
"""prefix of the message, for events whose text is their message"""


def history_line(event: Mapping[str, Any]) -> str:
    """Return an event of a study's history in one line; empty for events that only programs use."""
    kind, data = event["kind"], event["data"]
    if kind.startswith("trial."):
        number = data.get("number")
        change = kind.removeprefix("trial.").replace("asked", "proposed")
        parts = [f"trial {number} {change}"]
        if config := data.get("config"):
            parts.append(
                str(config)
                if isinstance(config, str)
                else config_label(ParallelConfig.from_dict(config))
            )
        # events of an earlier release only have the speed per GPU
        for name, unit in (
            ("tokens_per_s_per_gpu", "tokens/s per GPU"),
            ("tokens_per_s", "tokens/s"),
        ):
            if (speed := data.get(name)) is not None:
                data = {**data, "speed": f"{format_count(speed)} {unit}"}
        if failure := data.get("failure"):
            data = {**data, "message": str(Failure.from_dict(failure))}
        if status := data.get("status"):
            data = {**data, "status": status.lower()}
        shown = ("status", "speed", "kind", "message", "reason")
        parts += [str(data[name]) for name in shown if data.get(name)]
        return ": ".join([parts[0], ", ".join(parts[1:])]) if len(parts) > 1 else parts[0]
    if kind == EventKind.ATTEMPT_ENDED:
        failure = data.get("failure")
        why = f": {Failure.from_dict(failure)}" if failure else ""
        return f"trial {data.get('number')}: attempt {data.get('attempt')} ended{why}"
    if kind in (EventKind.ATTEMPT_CANCELLED, EventKind.ATTEMPT_QUEUED):
        state = "ending" if kind == EventKind.ATTEMPT_CANCELLED else "waiting"
        return f"trial {data.get('number')} is {state}: {data.get('reason', '')}"
    if kind == EventKind.CONTROLLER_BEGAN:
        capacity = data.get("capacity")
        is_counted = capacity and capacity < UNLIMITED_RANKS
        return (
            f"controller started; the runner has room for {number_of(capacity, 'rank')}"
            if is_counted
            else "controller started"
        )
    # the event that the controller started follows or precedes
    if kind in (EventKind.CLAIMED, EventKind.RELEASED):
        return ""
    if kind in MESSAGES:
        return f"{MESSAGES[kind]}{data.get('message', '')}"
    if kind == EventKind.WANTED:
        return data.get("message") or f"asked to {data.get('wanted')}"
    if kind.startswith("study.") and kind != EventKind.DECIDED:
        message = data.get("message") or data.get("status") or ""
        return f"study {kind.removeprefix('study.')}" + (f": {message}" if message else "")
    return ""
