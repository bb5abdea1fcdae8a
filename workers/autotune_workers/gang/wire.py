"""What crosses between a runner and its ranks: one JSON object per line, plain values only.

    runner -> rank   {"do": "run" | "store" | "stop" | "abort" | "where" | "exit", ...}
    rank -> runner   {"say": "ready" | "store" | "beat" | "step" | "done" | "failed" | "idle" | "where" | "gone", ...}

Every message about a trial carries `run`, the number of the launch on this gang, so that what arrives late is told apart. A float that
is not finite is written as Python's json writes it (NaN, Infinity); both ends are ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from autotune.ports import TrialRequest
from autotune.spec import ClusterSpec, GpuSpec, LinkSpec, MeasureSpec, ModelSpec, ParallelConfig, Workload

Message = dict[str, Any]

MAX_LINE_BYTES = 64 << 20
"""a longer line means that the other end went mad"""


def plain(value: Any) -> Any:
    """Dataclasses, mappings and tuples as dicts and lists."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def request_from_plain(values: Mapping[str, Any]) -> TrialRequest:
    """The request of `plain(request)`."""
    workload = values["workload"]
    cluster = workload["cluster"]
    batch = workload["global_batch_size"]
    return TrialRequest(
        **{
            **values,
            "workload": Workload(
                **{
                    **workload,
                    "model": ModelSpec(**workload["model"]),
                    "cluster": ClusterSpec(
                        **{
                            **cluster,
                            "gpu": GpuSpec(**cluster["gpu"]),
                            "intra_node": LinkSpec(**cluster["intra_node"]),
                            "inter_node": LinkSpec(**cluster["inter_node"]),
                        }
                    ),
                    "global_batch_size": tuple(batch) if isinstance(batch, list) else batch,
                }
            ),
            "config": ParallelConfig.from_dict(values["config"]),
            "measure": MeasureSpec(**values["measure"]),
        }
    )


def to_line(message: Message) -> bytes:
    """The message as one line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


class Lines:
    """Puts a byte stream together to messages again."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[Message]:
        """The messages that are complete now. Raises `ValueError` for what is no message."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise ValueError(f"a message exceeds {MAX_LINE_BYTES} bytes")
        return [json.loads(line) for line in lines if line]
