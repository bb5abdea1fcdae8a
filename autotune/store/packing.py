"""Compact encodings: a trial's document as compressed JSON, step metrics as fixed-size records.

    document   byte 1 + deflate of canonical JSON with a preset dictionary of the usual keys (RFC 1950 FDICT)
    steps      28 bytes per step, little-endian: u32 step, f64 step_time_s, f64 loss, f64 grad_norm; in order of arrival

The leading byte is the version of the dictionary, which never changes. A new dictionary would get
byte 2.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic_core import from_json

from autotune.errors import StoreCorruptError
from autotune.ports import StepsReported

_DICTIONARY = (
    b'{"config":{"accumulation_steps":1,"compile":false,"cp":1,"dp":1,"ep":1,"micro_batch_size":1,"pp":1,"pp_schedule":"1f1b",'
    b'"precision":"bf16","recompute":"none","sequence_parallel":false,"tp":1,"virtual_stages":1,"zero_stage":0},"estimate":{"memory_parts_bytes":{"activations":,"framework":,"gradients":,"logits":,"optimizer":,"weights":},"mfu":'
    b',"oom_probability":0.0,"peak_memory_bytes":,"peak_memory_high_bytes":,"peak_memory_low_bytes":,"step_time_high_s":'
    b',"step_time_low_s":,"step_time_s":,"time_parts_s":{"bubble":0.0,"compute":,"cp_comm":0.0,"dp_comm":,"ep_comm":0.0,"optimizer":'
    b',"other":,"pp_comm":0.0,"tp_comm":},"tokens_per_s":,"tokens_per_s_per_gpu":},"failure":{"exception":"","kind":"OUT_OF_MEMORY",'
    b'"log_tail":[],"message":"","rank":0,"step":null},"failure":null,"measurement":{"breakdown_s":{},"flops_per_token":null,'
    b'"grad_norms":[],"gradient_noise_scale":null,"losses":[],"memory_capacity_bytes":,"nonfinite_steps":0,"num_ranks":'
    b',"peak_flops_per_s":,"peak_memory_bytes":,"rank_peak_memory_bytes":[],"reference_losses":[],"setup_s":,"skipped_steps":0,'
    b'"step_times_s":[0.,0.,0.],"tokens_per_step":,"utilization":{}},"reason":"","reward":{"parts":{},"stability":,"throughput":'
    b',"total":}}'
)

STEP = np.dtype([("step", "<u4"), ("step_time_s", "<f8"), ("loss", "<f8"), ("grad_norm", "<f8")])
"""one optimizer step, 28 bytes"""


def pack_document(document: Mapping[str, Any]) -> bytes:
    """Return plain values as compressed bytes. A trial takes a few hundred bytes plus the numbers
    of its measurement."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    compressor = zlib.compressobj(level=6, zdict=_DICTIONARY)
    return b"\x01" + compressor.compress(text) + compressor.flush()


def unpack_document(packed: bytes) -> dict[str, Any]:
    """Return the values that `pack_document` encoded. Raises `StoreCorruptError` for damaged
    data."""
    try:
        if packed[:1] != b"\x01":
            raise ValueError(f"unknown packing {packed[:1]!r}")
        return _read(zlib.decompressobj(zdict=_DICTIONARY).decompress(packed[1:]))  # type: ignore[no-any-return]
    except (ValueError, zlib.error) as error:
        raise StoreCorruptError(
            f"a trial's document cannot be read: {error}",
            remedy="run `autotune store check`, then restore a backup",
        ) from error


def _read(text: bytes) -> Any:
    """Return `json.loads(text)`, in a third of its time, which dominates reading a large study."""
    try:
        return from_json(text)
    except ValueError:
        # a lone surrogate, such as from a file name in a message, is read only by `json`
        return json.loads(text)


def append_steps(packed: bytes, report: StepsReported) -> bytes:
    """Return the packed steps with the new steps of the report appended."""
    known = np.frombuffer(packed, STEP)["step"]
    new = np.empty(len(report.step_times_s), STEP)
    new["step"] = np.arange(report.first_step, report.first_step + len(new))
    new["step_time_s"] = report.step_times_s
    new["loss"] = report.losses
    new["grad_norm"] = report.grad_norms
    if len(known) and len(new) and new["step"][0] <= known.max():
        new = new[~np.isin(new["step"], known)]
    return packed + new.tobytes()


def unpack_steps(packed: bytes) -> dict[str, list[float]]:
    """Return the metrics by name, ordered by step. Raises `StoreCorruptError` for damaged data."""
    if len(packed) % STEP.itemsize:
        raise StoreCorruptError(
            "a step series is truncated", remedy="run `autotune store check`, then restore a backup"
        )
    rows = np.frombuffer(packed, STEP)
    rows = rows[np.argsort(rows["step"], kind="stable")]
    return {name: rows[name].tolist() for name in STEP.names or ()}
