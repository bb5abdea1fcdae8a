"""Knobs as a config asks for them beside what the probe saw: the rows of `check`, and for a
diagnosis those that were asked for and have no effect.

a difference    an option does not reach the program, or does nothing there
not seen        nothing is claimed: fp8 kernels, recomputation in compiled code, a model behind another launcher
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.ports.program_facts import NARROW, RECOMPUTED, ProgramFacts
from autotune.spec import ParallelConfig

UNASKED: Mapping[str, Any] = {
    "precision": "fp32",
    "zero_stage": 0,
    "recompute": "none",
    "compile": False,
}
"""what a program does of which nothing is asked"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing that is said and seen."""

    name: str
    """of a knob or a key of the spec, where it is one"""
    said: str
    seen: str
    """empty: not seen"""
    agrees: bool | None
    """None: it cannot be told"""
    remedy: str = ""
    """what to do about a difference"""
    fix: tuple[str, Any] | None = None
    """key of the spec, with the section that it is in, and the value that was seen, where writing
    it there mends the difference"""

    @property
    def difference(self) -> str:
        """In words; empty where there is none."""
        if self.agrees is not False:
            return ""
        return f"{self.name}: the spec has {self.said}, but the probe observed {self.seen}; {self.remedy}"


def precision_row(config: ParallelConfig, facts: ProgramFacts) -> Row:
    """The number format."""
    found, said = facts.precision, config.precision
    plain = facts.computes or facts.weights
    agrees: bool | None = found == said or plain == said
    if said == "tf32" and plain == "fp32":
        agrees = found == said or None  # a variable may allow it, too
    if said in NARROW or not found:
        agrees = None
    where = f"{found} ({'autocast' if facts.values.get('autocast') else 'weights'})"
    return Row(
        name="precision",
        said=said,
        seen=where if found else "",
        agrees=agrees,
        remedy=f"the option has no effect. Another option may be needed to enable it, or trainer.values may need a different spelling. If the program has only one precision on this machine, set precision: [{found}] in `space` and in `baseline`",
    )


def knob_rows(config: ParallelConfig, facts: ProgramFacts) -> Iterator[Row]:
    """Sharding, recomputation and compilation."""
    stage = facts.zero_stage
    wrappers = ", ".join(facts.values.get("wrappers", ()))
    yield Row(
        name="zero_stage",
        said=str(config.zero_stage),
        seen=f"{stage} ({wrappers})" if stage is not None else "",
        agrees=None if stage is None or config.dp == 1 else stage == config.zero_stage,
        remedy="pass {zero_stage} to the program, or set zero_stage in the space to the program's actual stage",
    )
    found, share = facts.recompute, facts.recomputed
    repeated = f"{share:.0%} of the modules' calls repeated" if share > RECOMPUTED else "none"
    yield Row(
        name="recompute",
        said=config.recompute,
        seen="" if found is None else repeated,
        agrees=None if found is None else (config.recompute != "none") == (found != "none"),
        remedy="the option has no effect; if the program always recomputes, set recompute: [full] in the space",
    )
    yield Row(
        name="compile",
        said=str(config.compile).lower(),
        seen=str(facts.is_compiled).lower(),
        agrees=facts.is_compiled == config.compile,
        remedy="pass {compile} to the program, or set compile in the space to the program's actual value",
    )


def without_effect_in(
    config: ParallelConfig, facts: Mapping[str, Any], *, said_by: str
) -> dict[str, str]:
    """What the config asks for beyond what a program does anyway, and the probe did not see; in
    words, by knob. `said_by`: the spec or the launch."""
    if "compiled" not in facts:  # not the probe's
        return {}
    known = ProgramFacts(facts)
    rows = [precision_row(config, known), *knob_rows(config, known)]
    return {
        row.name: f"{row.name}: {row.said} in the {said_by}, but the probe observed {row.seen}; the option has no effect. Another option may be needed to enable it, or the program lacks something that this option needs (see the program's log)"
        for row in rows
        if row.agrees is False and config.value(row.name) != UNASKED[row.name]
    }
