"""Ranks build a large model in turns, as many at once as their host has room for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.errors import ConfigError
from autotune_workers.training.tasks import turns_of

GIB = 2**30


def test_as_many_build_at_once_as_have_room() -> None:
    seats = [("a", 100.0 * GIB)] * 4 + [("b", 50.0 * GIB)] * 4
    assert turns_of(seats, 10 * GIB) == [0, 0, 0, 0, 0, 0, 0, 0]
    assert turns_of(seats, 20 * GIB) == [0, 0, 0, 0, 0, 0, 1, 1]
    assert turns_of(seats, 40 * GIB) == [0, 0, 1, 1, 0, 1, 2, 3]


def test_the_tightest_look_at_a_host_counts() -> None:
    assert turns_of([("a", 100.0 * GIB), ("a", 20.0 * GIB)], 10 * GIB) == [0, 1]


def test_a_host_without_room_for_one_copy_is_named() -> None:
    with pytest.raises(ConfigError, match=r"64 GiB.*but b has 50 GiB left"):
        turns_of([("a", 100.0 * GIB), ("b", 50.0 * GIB)], 64 * GIB)


RANK = """
import json, sys, time
import torch.distributed as dist
from autotune_workers.training.tasks import in_turns
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", store=dist.FileStore(folder + "/store", 3), rank=rank, world_size=3)
def make():
    began = time.monotonic()
    time.sleep(0.5)
    if rank == 2:
        raise ValueError(f"began at {began}")
    return began, time.monotonic()
try:
    made = in_turns(make, copy_bytes=2 << 30, room=lambda: 5.5 * 2**30)
except ValueError as error:
    made = str(error)
print(json.dumps(made))
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_wait_for_their_turn_also_where_one_fails(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    said = [json.loads(rank.communicate(timeout=900)[0]) for rank in ranks]
    (_, first_end), (_, second_end), failed = said
    assert float(failed.removeprefix("began at ")) >= max(first_end, second_end)
