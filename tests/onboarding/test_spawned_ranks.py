"""Programs that start their ranks themselves: trials start them by plain python, and tell them how
many."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from autotune.onboarding.draft import Draft
from autotune.onboarding.first_spec import command_draft, first_draft
from tests.shortcuts import file_with

SCRIPT = """\
    import argparse
    import torch.distributed as dist
    import torch.multiprocessing as mp

    def main(rank, given):
        dist.init_process_group("gloo", rank=rank, world_size=given.world_size)
        batch = given.batch_size // given.world_size

    parser = argparse.ArgumentParser()
    parser.add_argument("--world-size", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seq-len", type=int, default=64)
    given = parser.parse_args()
    mp.spawn(main, args=(given,), nprocs=given.world_size)
    """


SPAWN = SCRIPT.replace('parser.add_argument("--world-size", type=int, default=4)', "")


def draft_of(folder: Path, text: str = SCRIPT, words: str = "") -> Draft:
    path = file_with(folder / "train.py", dedent(text))
    place = {"model": "gpt2-small", "cluster": "h100-sxm-1x8"}
    if words:
        command = words.replace("train.py", str(path)).split()
        return command_draft(command, folder=folder, **place)
    return first_draft(path, folder=folder, **place)


@pytest.mark.parametrize(("words", "ranks"), [("", 4), ("python train.py --world-size 2", 2)])
def test_its_own_option_says_how_many(tmp_path: Path, words: str, ranks: int) -> None:
    draft = draft_of(tmp_path, words=words)
    argv = draft.document["trainer"]["argv"]
    assert argv[0] == "python"
    assert "--world-size={world_size}" in argv
    assert "--batch-size={micro_batch_size * dp}" in argv
    assert draft.document["baseline"].startswith(f"dp={ranks},micro_batch_size={32 // ranks},")


def test_a_launcher_that_starts_them_stays(tmp_path: Path) -> None:
    argv = draft_of(tmp_path, words="torchrun --nproc-per-node=2 train.py").document["trainer"][
        "argv"
    ]
    assert argv[0] == "torchrun"
    assert "{world_size}" not in " ".join(argv)


LOOP = """\
    import torch.distributed as dist
    import torch.multiprocessing as mp

    def main(rank, size):
        dist.init_process_group("gloo", rank=rank, world_size=size)

    if __name__ == "__main__":
        size = 4
        for rank in range(size):
            mp.Process(target=main, args=(rank, size)).start()
    """


@pytest.mark.parametrize(
    ("text", "ranks", "assumed"),
    [
        (SPAWN.replace("given.world_size)", "4)"), 4, False),
        ("N = 2\n" + dedent(SPAWN).replace("nprocs=given.world_size", "nprocs=N"), 2, False),
        (SPAWN.replace("nprocs=given.world_size", "nprocs=torch.cuda.device_count()"), 8, True),
        (LOOP, 4, False),
        (LOOP.replace("size = 4", "size = torch.cuda.device_count()"), 8, True),
    ],
)
def test_without_such_an_option_their_number_is_that_of_its_text(
    tmp_path: Path, text: str, ranks: int, assumed: bool
) -> None:
    draft = draft_of(tmp_path, text)
    assert draft.document["trainer"]["argv"][0] == "python"
    assert draft.document["space"]["world_sizes"] == [ranks]
    (note,) = [note for note in draft.notes if "starts its own ranks" in note]
    assert ("are assumed" in note) == assumed


def test_a_loop_over_other_processes_starts_no_ranks(tmp_path: Path) -> None:
    text = LOOP.replace("target=main", "target=prepare") + "\n    def prepare(rank, size): pass\n"
    assert draft_of(tmp_path, text).document["trainer"]["argv"][0] == "torchrun"


def test_processes_of_something_else_are_no_ranks(tmp_path: Path) -> None:
    text = SCRIPT.replace("mp.spawn(main, args=(given,), nprocs=given.world_size)", "spawn('x')")
    assert draft_of(tmp_path, text).document["trainer"]["argv"][0] == "torchrun"
