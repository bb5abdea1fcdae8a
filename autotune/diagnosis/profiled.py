"""Findings from a step recorded by torch's profiler. They are used only on GPUs, where the host
runs ahead of the device, so the probe's phases do not show what the device does. On CPUs the phases
are exact.

    host             the GPU is idle for `IDLE` of the step or more and no data loader is waited for: launches do not keep up
    input            the GPU is idle while the program waits for a data loader
    communication    collectives run without computation, beyond the healthy share
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from autotune.diagnosis.evidence import Evidence
from autotune.diagnosis.finding import CLAIMED, Finding
from autotune.spec.texts.as_text import format_duration

IDLE = 0.15
"""minimum idle share of the GPU; in a healthy step it also waits for some launches"""
WAITED_FOR_S = 50e-6
"""maximum time from launch to start of a kernel that the GPU was waiting for, seconds"""
HIDDEN = "communication_overlapped"
"""the part of the profile that overlaps the others"""


def shares_of(parts_s: Mapping[str, float]) -> dict[str, float]:
    """Return the parts of a profiled step as shares of it, without overlapped communication; empty
    without a profile."""
    parts = {name: s for name, s in parts_s.items() if name != HIDDEN}
    whole = sum(parts.values())
    return {name: s / whole for name, s in parts.items()} if whole > 0 else {}


def profile_lines(evidence: Evidence) -> Iterator[str]:
    """Return lines of text about the profiled step: shares of its parts, and the longest
    kernels."""
    shares = shares_of(evidence.parts_s)
    if not shares:
        return
    whole_s = sum(s for name, s in evidence.parts_s.items() if name != HIDDEN)
    listed = [
        f"{name} {share:.0%}"
        for name, share in sorted(shares.items(), key=lambda e: -e[1])
        if share >= 0.005
    ]
    hidden = evidence.parts_s.get(HIDDEN, 0.0) / whole_s
    overlapped = (
        f"; communication that overlaps computation takes another {hidden:.0%}"
        if hidden >= 0.005
        else ""
    )
    yield f"a profiled step of {format_duration(whole_s)}: {', '.join(listed)}{overlapped}"
    if evidence.longest_s:
        longest = (f"{name[:60]} {s / whole_s:.0%}" for name, s in evidence.longest_s.items())
        yield f"longest operations on rank 0: {', '.join(longest)}"


def with_profile(evidence: Evidence, findings: Sequence[Finding], due: float) -> list[Finding]:
    """Add the findings from the profile of a GPU: as evidence of findings with the same cause,
    otherwise as findings of their own. `due`: healthy share of communication in the step."""
    claims = {finding.cause: finding for finding in _claims(evidence, due)}
    known = []
    for finding in findings:
        claim = claims.pop(finding.cause, None)
        if claim is None:
            known.append(finding)
        elif finding.share is not None and finding.share < CLAIMED:
            known.append(claim)
        else:
            known.append(replace(finding, evidence=(*finding.evidence, *claim.evidence)))
    return [*known, *claims.values()]


def _claims(evidence: Evidence, due: float) -> Iterator[Finding]:
    shares = shares_of(evidence.parts_s)
    if not shares or not evidence.on_gpu:
        return
    if (input_share := shares.get("input", 0.0)) >= IDLE / 3:
        yield _claim(
            "input",
            input_share,
            what="the GPUs wait for data",
            seen=f"in the profile, the GPU is idle for {input_share:.0%} of the step while it waits for a data loader",
            confirm="train a few steps on a single batch kept in memory: the step time should drop by this fraction",
            change="raise the DataLoader's num_workers, pin its memory and prefetch, or move slow work out of the dataset",
            knob="num_workers",
        )
    delay_s = evidence.launch_delay_s
    if (host_share := shares.get("host", 0.0)) >= IDLE and (
        delay_s is None or delay_s < WAITED_FOR_S
    ):
        delay = (
            f"; a kernel begins {format_duration(delay_s)} after its launch"
            if delay_s is not None
            else ""
        )
        yield _claim(
            "host",
            host_share,
            what="the GPUs wait for the host, whose kernel launches cannot keep up",
            seen=f"in the profile, the GPU is idle for {host_share:.0%} of the step{delay}",
            confirm="train a few steps with a larger micro-batch: the time per sequence should drop",
            change="use torch.compile (mode='reduce-overhead' uses CUDA graphs), a larger micro-batch, or fewer small operators",
            knob="compile",
        )
    if (communication_share := shares.get("communication", 0.0)) >= due:
        several = evidence.on_several_nodes
        where = "between nodes" if several else "inside the node"
        yield _claim(
            "communication_between_nodes" if several else "communication_inside_node",
            communication_share,
            what=f"collectives {where} run while nothing is computed",
            seen=f"in the profile, exposed collectives take {communication_share:.0%} of the step",
            confirm="measure the collective alone (`autotune calibrate`, nccl-tests): the collective should reach the link's bandwidth",
            change="all-reduce gradients less often (more accumulation steps) or in bf16, or overlap the all-reduce with the backward pass (bucket size, prefetch)",
            knob="accumulation_steps",
        )


def _claim(
    cause: str, share: float, *, what: str, seen: str, confirm: str, change: str, knob: str
) -> Finding:
    # a wide interval, because the profiler records few steps and slows them down
    return Finding(
        cause=cause, share=share, low=share / 2, high=min(1.0, 1.5 * share), what=what, evidence=(seen,), confirm=confirm, change=change, knob=knob
    )  # fmt: skip
