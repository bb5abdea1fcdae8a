"""What was left out of a program's log because it printed more than can be passed on: counted by the keeper, said by the owner. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Lines in a row, or of several gaps together."""

    lines: int = 0
    bytes: int = 0
    step_lines: int = 0
    """lines among them that may have said something of a step: the owner had no time to read so many"""
    blind: str = ""
    """why step lines could not be told from others; empty where they could"""

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> LeftOut:
        """What a message of lines says of those before it."""
        return cls(**message.get("left_out", {}))

    def __add__(self, other: LeftOut) -> LeftOut:
        return LeftOut(
            lines=self.lines + other.lines,
            bytes=self.bytes + other.bytes,
            step_lines=self.step_lines + other.step_lines,
            blind=self.blind or other.blind,
        )

    def __bool__(self) -> bool:
        return self.lines > 0

    def plain(self) -> dict[str, Any]:
        """As a message carries it."""
        return asdict(self)

    @property
    def text(self) -> str:
        """How much, and whether it may have said something of a step."""
        size = f"{self.bytes / 2**20:.1f} MiB" if self.bytes >= 2**20 else f"{-(-self.bytes // 2**10)} KiB"
        what = f"{self.lines} {'line' if self.lines == 1 else 'lines'} ({size})"
        if self.blind:
            return f"{what}, perhaps with step lines among them ({self.blind})"
        return f"{what}, with {self.step_lines or 'no'} step {'line' if self.step_lines == 1 else 'lines'} among them"
