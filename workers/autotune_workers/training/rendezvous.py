"""Rendezvous of the ranks of a gang: a TCP store that rank 0 opens on a free port, then a process
group.

The store listens on one address only (loopback for ranks of one machine, otherwise the address of
rank 0's node), never on all interfaces. Collectives use gloo for CPU tensors and NCCL for GPU
tensors.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from autotune_workers.training.torch_internals import abort_process_group

GLOO = "gloo"
_TEARING_DOWN = threading.Lock()


def open_store(host: str, world_size: int, timeout_s: float) -> tuple[dist.TCPStore, int]:
    """Opens the gang's store on `host` and returns it with its port. Does not wait for other
    ranks."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind((host, 0))
        listener.listen(128)
        port = listener.getsockname()[1]
        store = dist.TCPStore(
            host,
            port,
            world_size,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=timeout_s),
            master_listen_fd=listener.detach(),  # the store owns the socket from here on
        )
    return store, port


def join_store(host: str, port: int, world_size: int, timeout_s: float) -> dist.TCPStore:
    """Connects to the store that rank 0 opened."""
    return dist.TCPStore(
        host,
        port,
        world_size,
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout_s),
    )


@contextlib.contextmanager
def process_group(
    store: dist.Store,
    *,
    rank: int,
    world_size: int,
    device: torch.device,
    timeout_s: float,
    backend: str = "",
) -> Iterator[None]:
    """Within the block, the default process group exists. It is destroyed at the end, or aborted if
    the block raises, because destroying may wait forever for a failed peer.

    `backend`: a torch.distributed backend; empty for the default of the device.
    """
    on_gpu = device.type == "cuda"
    extra: dict[str, Any] = {"device_id": device} if on_gpu else {}
    dist.init_process_group(
        backend=backend or ("cpu:gloo,cuda:nccl" if on_gpu else GLOO),
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_s),
        **extra,
    )
    is_healthy = False
    try:
        yield
        is_healthy = True
    finally:
        tear_down(is_healthy=is_healthy)


def tear_down(*, is_healthy: bool) -> None:
    """Destroys all process groups of this rank; aborts them first unless `is_healthy`, that is,
    unless no rank is known to have failed."""
    if not is_healthy:
        abort()
    with _TEARING_DOWN:  # waits for an abort by another thread
        is_left = dist.is_initialized()
    if is_left:
        dist.destroy_process_group()


def abort() -> None:
    """Aborts the NCCL process groups of this rank: pending collectives raise. Safe from any thread;
    does nothing without a group. Gloo needs no abort: it does not wait for a lost peer, and
    destroying its groups wakes the peers."""
    with _TEARING_DOWN, contextlib.suppress(Exception):
        if dist.is_initialized() and dist.get_backend() != GLOO:
            abort_process_group()
