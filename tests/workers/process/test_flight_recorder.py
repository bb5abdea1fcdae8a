"""What the ranks of a hung program write of their collectives, and which of them is blamed."""

from __future__ import annotations

import mmap
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune_workers.process.failure.flight_recorder import collectives_begun, variables
from autotune_workers.process.program.evidence import NodeEnd, rank_behind


def entry(group: str, number: int, name: str = "nccl:all_reduce", **fields: Any) -> dict[str, Any]:
    """As torch records a collective."""
    return {
        "process_group": (group, "desc"),
        "collective_seq_id": number,
        "profiling_name": name,
        **fields,
    }


def rank(folder: Path, number: int, dump: bytes) -> None:
    """A rank of torch's NCCL backend: opens its pipe, and writes its file when it is asked."""
    pipe = folder / f"pipe-{number}.pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    def answer() -> None:
        asked = b""
        while not asked:
            time.sleep(0.01)
            asked = os.read(reader, 128)
        (folder / f"rank-{number}").write_bytes(dump)
        os.close(reader)

    threading.Thread(target=answer, daemon=True).start()


def dumped(*entries: dict[str, Any]) -> bytes:
    return pickle.dumps({"version": "2.10", "entries": list(entries)})


def test_each_rank_tells_the_last_collective_of_each_group(tmp_path: Path) -> None:
    one = dumped(
        entry("0", 4), entry("0", 5, "nccl:all_gather"), entry("1", 2), entry("1", 9, is_p2p=True)
    )
    rank(tmp_path, 0, one)
    rank(tmp_path, 3, dumped(entry("0", 4)))
    assert collectives_begun(str(tmp_path)) == {
        "0": {"0": [5, "nccl:all_gather"], "1": [2, "nccl:all_reduce"]},
        "3": {"0": [4, "nccl:all_reduce"]},
    }


def test_groups_of_one_name_that_share_no_rank_are_told_apart(tmp_path: Path) -> None:
    """Torch before 2.13 gives all groups that one `split_group` makes the same name. Two stages do
    not run the same number of collectives."""
    counts = {0: 7, 1: 7, 2: 12, 3: 12}
    for number, count in counts.items():
        members = "[0, 1]" if number < 2 else "[2, 3]"
        config = {"1": {"name": "1", "desc": "mesh_tp", "ranks": members}}
        dump = pickle.dumps(
            {"version": "2.10", "pg_config": config, "entries": [entry("1", count)]}
        )
        rank(tmp_path, number, dump)
    begun = collectives_begun(str(tmp_path))
    assert begun["2"] == {"1 (ranks 2, 3)": [12, "nccl:all_reduce"]}
    assert rank_behind([NodeEnd(node=0, collectives=begun)]) is None


TORCH_PROGRAM = """
import os, sys
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
group = dist.new_group([0])
for _ in range(3):
    dist.all_reduce(torch.ones(1))
dist.barrier(group=group)
open(sys.argv[1], "wb").write(_dump_fr_trace())
"""


@pytest.mark.thorough
def test_the_record_of_the_installed_torch_is_read(tmp_path: Path) -> None:
    """Gloo records as NCCL does; only nobody asks it through a pipe."""
    file = tmp_path / "recorded"
    environment = {**os.environ, **variables(str(tmp_path), {})}
    subprocess.run(
        [sys.executable, "-c", TORCH_PROGRAM, str(file)], env=environment, check=True, timeout=120
    )
    rank(tmp_path, 0, file.read_bytes())
    assert collectives_begun(str(tmp_path)) == {
        "0": {"0": [3, "gloo:all_reduce"], "1": [1, "gloo:barrier"]}
    }


def test_the_variables_are_those_that_the_installed_torch_reads() -> None:
    """Those of the file and of the number of entries are read by torch without CUDA, too."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as code:
        for name in variables("/folder", {}):
            assert name == "TORCH_NCCL_DEBUG_INFO_PIPE_FILE" or code.find(name.encode()) >= 0, name


def test_a_program_without_the_recorder_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe-0.pipe")  # of a rank that is gone
    assert collectives_begun(str(tmp_path), dump_s=60.0) == {}


def test_links_and_other_kinds_of_files_are_left_alone(tmp_path: Path) -> None:
    """The keeper may be root, and the folder the program's: a link must not have it write or read
    elsewhere, nor a pipe have it wait."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("of somebody else")
    folder = tmp_path / "records"
    folder.mkdir()
    (folder / "pipe-0.pipe").symlink_to(elsewhere)
    (folder / "pipe-1.pipe").write_text("no pipe")
    assert collectives_begun(str(folder), 0.1) == {}
    assert elsewhere.read_text() == "of somebody else"
    assert (folder / "pipe-1.pipe").read_text() == "no pipe"
    elsewhere.write_bytes(dumped(entry("0", 4)))
    (folder / "rank-2").symlink_to(elsewhere)
    os.mkfifo(folder / "rank-3")
    pipes = [folder / f"pipe-{number}.pipe" for number in (2, 3)]
    for pipe in pipes:
        os.mkfifo(pipe)
    readers = [os.open(pipe, os.O_RDONLY | os.O_NONBLOCK) for pipe in pipes]
    assert collectives_begun(str(folder), 0.1) == {}
    for reader in readers:
        assert os.read(reader, 1) == b"1"
        os.close(reader)


def test_a_file_that_names_a_function_is_not_read(tmp_path: Path) -> None:
    rank(tmp_path, 0, pickle.dumps({"entries": [os.system]}))
    assert collectives_begun(str(tmp_path), dump_s=0.3) == {}


def test_who_has_set_up_the_recorder_keeps_it() -> None:
    assert variables("/folder", {})["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] == "/folder/pipe-"
    assert variables("/folder", {"TORCH_FR_BUFFER_SIZE": "0"}) == {}


def test_the_rank_that_has_not_come_to_the_others_collective_is_named_whatever_its_node() -> None:
    here = NodeEnd(
        node=0, collectives={"0": {"0": [7, "nccl:all_reduce"]}, "1": {"0": [7, "nccl:all_reduce"]}}
    )
    there = NodeEnd(
        node=1, collectives={"2": {"0": [6, "nccl:broadcast"]}, "3": {"0": [7, "nccl:all_reduce"]}}
    )
    assert rank_behind([here, there]) == (
        2,
        "rank 2 has not reached nccl:all_reduce (collective 7 of process group 0), which is awaited by 3 other ranks",
    )
    assert rank_behind([here]) is None
    assert rank_behind([NodeEnd(node=0)]) is None
