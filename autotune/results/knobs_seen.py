"""Comparison of a config's knobs with what the probe observed in the program: the rows of `check`,
and for a diagnosis the knobs without effect.

A difference means that an option does not reach the program, or has no effect there. Nothing is
concluded from what the probe cannot observe: fp8 kernels, recomputation in compiled code, a model
behind another launcher.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.ports.program_facts import NARROW, RECOMPUTED, ProgramFacts
from autotune.spec import ParallelConfig

PROGRAM_DEFAULTS: Mapping[str, Any] = {
    "precision": "fp32",
    "zero_stage": 0,
    "recompute": "none",
    "compile": False,
}
"""values of knobs in a program that does not set them"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A value in the spec, compared with the observed value."""

    name: str
    """name of a knob, a key of the spec, or another fact"""
    said: str
    """value in the spec"""
    seen: str
    """value that the probe observed; empty if it could not observe it"""
    agrees: bool | None
    """None: unknown"""
    remedy: str = ""
    """what to do about a difference"""
    fix: tuple[str, Any] | None = None
    """(SECTION.KEY of the spec, observed value), if writing this value there removes the
    difference"""
    remark: str = ""
    """what it means for the plan, where no key of a spec says it"""

    @property
    def difference(self) -> str:
        """The difference as a message; empty if there is none."""
        if self.agrees is not False:
            return ""
        return f"{self.name}: the spec has {self.said}, but the probe observed {self.seen}; {self.remedy}"


def precision_row(config: ParallelConfig, facts: ProgramFacts) -> Row:
    """Return the row of the precision."""
    observed, requested = facts.precision, config.precision
    plain = facts.computes or facts.weights
    agrees: bool | None = observed == requested or plain == requested
    if requested == "tf32" and plain == "fp32":
        # an environment variable may also enable tf32, which the probe does not observe
        agrees = observed == requested or None
    if requested in NARROW or not observed:
        agrees = None
    where = f"{observed} ({'autocast' if facts.values.get('autocast') else 'weights'})"
    return Row(
        name="precision",
        said=requested,
        seen=where if observed else "",
        agrees=agrees,
        remedy=f"the option has no effect. Another option may be needed to enable it, or trainer.values may need a different spelling. If the program has only one precision on this machine, set precision: [{observed}] in `space` and in `baseline`",
    )


def knob_rows(config: ParallelConfig, facts: ProgramFacts) -> Iterator[Row]:
    """Yield the rows of ZeRO stage, recomputation and compilation."""
    stage = facts.zero_stage
    wrappers = ", ".join(facts.values.get("wrappers", ()))
    yield Row(
        name="zero_stage",
        said=str(config.zero_stage),
        seen=f"{stage} ({wrappers})" if stage is not None else "",
        agrees=None if stage is None or config.dp == 1 else stage == config.zero_stage,
        remedy="pass {zero_stage} to the program, or set zero_stage in the space to the program's actual stage",
    )
    recompute, share = facts.recompute, facts.recomputed
    repeated = f"{share:.0%} of the modules' calls repeated" if share > RECOMPUTED else "none"
    yield Row(
        name="recompute",
        said=config.recompute,
        seen="" if recompute is None else repeated,
        agrees=None if recompute is None else (config.recompute != "none") == (recompute != "none"),
        remedy="the option has no effect; if the program always recomputes, set recompute: [full] in the space",
    )
    yield Row(
        name="compile",
        said=str(config.compile).lower(),
        seen=str(facts.is_compiled).lower(),
        agrees=facts.is_compiled == config.compile,
        remedy="pass {compile} to the program, or set compile in the space to the program's actual value",
    )


def ineffective_knobs(
    config: ParallelConfig, facts: Mapping[str, Any], *, source: str
) -> dict[str, str]:
    """Return a message for each knob whose value differs from the program's default in the config,
    but not in what the probe observed. `source`: spec or launch, which set the knobs."""
    if "compiled" not in facts:  # these facts are not from the probe
        return {}
    known = ProgramFacts(facts)
    rows = [precision_row(config, known), *knob_rows(config, known)]
    return {
        row.name: f"{row.name}: {row.said} in the {source}, but the probe observed {row.seen}; the option has no effect. Another option may be needed to enable it, or the program lacks something that this option needs (see the program's log)"
        for row in rows
        if row.agrees is False and config.value(row.name) != PROGRAM_DEFAULTS[row.name]
    }
