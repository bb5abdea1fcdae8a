"""What the probe sees of real programs that know nothing of it. Each runs in processes of its
own."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from autotune.detect import usable_cores
from autotune_workers.probe.probe_folder import ProbeFolder, is_off
from autotune_workers.process.failure.flight_recorder import variables
from tests.matrix import sampled
from tests.shortcuts import file_with
from tests.workers.probe.watching import LIMIT_S, PROGRAMS, Watched, python, torchrun, watched

PARAMETERS = 64 * 32 + 2 * (32 * 96 + 96 + 32 * 32 + 32 + 32 * 128 + 128 + 128 * 32 + 32)
"""of programs/decoder.py, with its head tied to the embedding"""


OWN_UPDATE = "p.data.add_(p.grad, alpha=-0.1)"


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A program, and what is seen of it; what is not given is not checked."""

    command: Sequence[str]
    code: int = 0
    ranks: int = 1
    steps: Sequence[Mapping[str, Any]]
    """values of each step of every rank"""
    facts: Mapping[str, Any] = field(default_factory=dict)
    libraries: frozenset[str] = frozenset()
    """some whose versions are told"""
    recomputed: bool | None = None
    """whether much of the forward passes is computed again"""

    def check(self, seen: Watched) -> None:
        """Compares all that is given, for every rank."""
        assert seen.code == self.code, seen.text
        assert not seen.of("trouble")
        assert len(seen.trainers) == self.ranks
        for rank in range(self.ranks):
            steps, facts = seen.steps(rank), seen.facts(rank)
            for step, due in zip(steps, self.steps, strict=True):
                assert {name: step[name] for name in due} == due
            assert {name: facts[name] for name in self.facts} == self.facts
            assert self.libraries <= facts["libraries"].keys()
            assert self.recomputed in (None, facts["recomputed"] > 0.3)


def of_ranks(wrapper: str, stage: int) -> dict[str, Any]:
    """Facts of two ranks under torchrun."""
    return {
        "world": 2,
        "backend": "gloo",
        "wrappers": [wrapper],
        "zero_stage": stage,
        "parameters": PARAMETERS,
    }


SIX = [{"micro": 1}] * 6
ONE_OF_FOUR = [{"micro": 1, "sequences": [4]}] * 4
TWO_OF_FOUR = {"micro": 2, "sequences": [8]}
REPLICATED = Seen(command=(), ranks=2, steps=[TWO_OF_FOUR] * 14, facts=of_ranks("DDP", 0))
MEGATRON = {
    "model": "__main__.GPTModel",
    "outermost": "__main__.Float16Module",
    "types": {"bfloat16": 20800},
    "stepped_types": {"float32": 20800},
    "parameters": 20800,
    "shape": {
        "num_layers": 2,
        "hidden_size": 32,
        "vocab_size": 64,
        "ffn_hidden_size": 128,
        "has_head": True,
    },
}
PROGRAMS_SEEN = {
    "inputs given as keywords are found further inside": Seen(
        command=python("decoder.py", "--keywords", "--batch=5"),
        steps=[{"micro": 1, "sequences": [5], "tokens": 80}] * 6,
        facts={"recomputed": 0.0},
    ),
    "parameters sharded by FSDP2 are counted whole": Seen(
        command=torchrun("decoder.py", "--wrap=fsdp2", "--accumulate=2"),
        ranks=2,
        steps=[TWO_OF_FOUR] * 6,
        facts=of_ranks("FSDP2", 3),
    ),
    "a compiled program": Seen(
        command=python("decoder.py", "--compile=aot_eager", "--accumulate=2"),
        steps=[TWO_OF_FOUR] * 6,
        facts={"compiled": True},
    ),
    "a compiled module within DDP refuses its length": Seen(
        command=torchrun("decoder.py", "--wrap=ddp", "--compile=eager"),
        ranks=2,
        steps=SIX,
        facts=of_ranks("DDP", 0),
    ),
    "inner optimizers are one step": Seen(
        command=python("inner_optimizers.py"), steps=[{"micro": 2, "sequences": [6]}] * 5
    ),
    "the trainer of transformers": Seen(
        command=python("hf.py", "out"),
        steps=[{"micro": 4, "sequences": [8], "tokens": 128}] * 4,
        facts={"attention": "sdpa", "autocast": "bfloat16"},
        libraries=frozenset({"transformers"}),
        recomputed=True,
    ),
    **{
        f"Megatron's make, recomputed: {recompute}": Seen(  # wrapped bf16 weights whose fp32 copies are stepped, keyword inputs, and hidden states with the sequence first
            command=python("megatron_like.py", *(["--recompute"] if recompute else [])),
            steps=[{"micro": 4, "sequences": [8], "tokens": 128, "backwards": 4}] * 5,
            facts=MEGATRON,
            recomputed=recompute,
        )
        for recompute in (True, False)
    },
    "DeepSpeed's make": Seen(  # an engine around bf16 weights whose `backward` and `step` are its own, and an optimizer that steps an inner one for each group of weights
        command=python("deepspeed_like.py"),
        steps=[{"micro": 3, "sequences": [12], "tokens": 192, "backwards": 3}] * 5,
        facts={
            "wrappers": ["DeepSpeed"],
            "zero_stage": 2,
            "types": {"bfloat16": 4160},
            "outermost": "__main__.DeepSpeedEngine",
            "optimizers": ["torch.optim.adamw.AdamW"],
        },
    ),
    "accelerate's loop steps once for all its micro-batches, and at the end of the data": Seen(
        command=python("accelerated.py", "bf16"),
        steps=[
            *[{"micro": 3, "sequences": [12], "tokens": 192, "backwards": 3}] * 5,
            {"micro": 1, "sequences": [4], "tokens": 64, "backwards": 1},
        ],
        facts={"autocast": "bfloat16", "optimizers": ["torch.optim.adamw.AdamW"]},
    ),
    "Lightning that calls the parts of its module": Seen(
        command=python("lightning_batches.py"),
        steps=[{"micro": 2, "sequences": [8], "tokens": 128}] * 4,
        facts={"parameters": 64 * 32 + 32 * 64 + 64},
    ),
    **{
        f"a larger model that is called with gradients and not trained: {habit}": Seen(
            command=python("habits.py", habit),
            steps=[{"micro": 1}] * 4,
            facts={"parameters": 264, "frozen": 1032, "trainable": 264},
        )
        for habit in ("teacher", "average")
    },
    "a larger model that is called without gradients": Seen(
        command=python("habits.py", "reference"),
        steps=[{"micro": 1}] * 4,
        facts={"parameters": 264, "frozen": 1032, "copied": 0},
    ),
    "an average of the weights that is never called": Seen(
        command=python("habits.py", "copy"),
        steps=ONE_OF_FOUR,
        facts={"parameters": 264, "frozen": 0, "copied": 256},
    ),
    **{
        f"a mesh that cuts parameters and is not named for it is tensor-parallel: {habit}": Seen(
            command=torchrun("habits.py", habit),
            ranks=2,
            steps=ONE_OF_FOUR,
            facts={"parameters": 264, "degrees": {"tp": 2}, "wrappers": [], "offloads": False},
        )
        for habit in ("mesh", "named")
    },
    "parameters that wait on the host": Seen(
        command=torchrun("habits.py", "host"),
        ranks=2,
        steps=ONE_OF_FOUR,
        facts={"degrees": {}, "wrappers": ["FSDP2"], "offloads": True, "trainable": 264},
    ),
    "a rank that holds a share of the parameters trains all of them": Seen(
        command=torchrun("habits.py", "share"),
        ranks=2,
        steps=ONE_OF_FOUR,
        facts={"wrappers": ["FSDP1"], "parameters": 264, "trainable": 264},
    ),
    "parameters of a module of which a method is called": Seen(
        command=python("habits.py", "method"),
        steps=ONE_OF_FOUR,
        facts={"parameters": 264, "trainable": 264},
    ),
    "ranks that are forked": Seen(
        command=python("habits.py", "forked"),
        ranks=2,
        steps=ONE_OF_FOUR,
        facts={"world": 2, "wrappers": ["DDP"], "parameters": 264},
    ),
    "a program that trains in another process": Seen(
        command=[*python("starts_another.py"), *python("decoder.py")[1:]], steps=SIX
    ),
    "a program that ends itself": Seen(
        command=python("decoder.py", "--end=os._exit"), code=3, steps=SIX
    ),
    "a program that is killed": Seen(
        command=python("decoder.py", "--end=SIGKILL"), code=-9, steps=SIX
    ),
}
SLOWLY_SEEN = {
    "parameters sharded by FSDP1 are counted whole": Seen(
        command=torchrun("decoder.py", "--wrap=fsdp1", "--accumulate=2"),
        ranks=2,
        steps=[TWO_OF_FOUR] * 6,
        facts=of_ranks("FSDP1", 3),
    ),
    "a program compiled in place": Seen(
        command=python("decoder.py", "--compile=in place", "--accumulate=2"),
        steps=[{"micro": 2}] * 6,
        facts={"compiled": True},
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", PROGRAMS_SEEN)
def test_programs_are_seen_as_they_train(name: str, tmp_path: Path) -> None:
    PROGRAMS_SEEN[name].check(watched(PROGRAMS_SEEN[name].command, cwd=tmp_path))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("habit", "differ"), [("alone", True), ("stage", True), ("sends", False), ("share", None)]
)
def test_ranks_report_whether_they_have_the_same_weights(
    habit: str, differ: bool | None, tmp_path: Path
) -> None:
    """Those that an optimizer or a wrapper keeps equal do. Those of sharded models are not
    compared."""
    seen = watched(torchrun("habits.py", habit), cwd=tmp_path)
    assert not seen.of("trouble")
    reports = seen.of("replica")
    assert len(reports) == (0 if differ is None else 2)
    assert len({report["weights"] for report in reports}) == (0 if differ is None else 1 + differ)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOWLY_SEEN)
def test_slow_programs_are_seen_as_they_train(name: str, tmp_path: Path) -> None:
    SLOWLY_SEEN[name].check(watched(SLOWLY_SEEN[name].command, cwd=tmp_path))


def test_ranks_that_keep_all_parameters_are_told_from_their_launcher(replicated: Watched) -> None:
    REPLICATED.check(replicated)


def test_a_plain_program_is_seen_step_by_step(tmp_path: Path) -> None:
    command = python(
        "decoder.py", "--accumulate=3", "--dtype=bfloat16", "--checkpoint", "--steps=14"
    )
    seen = watched(command, cwd=tmp_path)
    assert seen.code == 0, seen.text
    assert not seen.of("profile"), "nobody asked for it"
    steps, facts = seen.steps(), seen.facts()
    assert [(s["micro"], s["sequences"], s["tokens"]) for s in steps] == [(3, [12], 192)] * 14
    assert all(step["s"] >= 0.02 for step in steps[1:])
    assert (facts["parameters"], facts["world"], facts["autocast"]) == (PARAMETERS, 1, "bfloat16")
    assert facts["types"] == {"float32": PARAMETERS}
    assert facts["optimizers"] == ["torch.optim.adamw.AdamW"]
    assert facts["recomputed"] > 0.3
    assert any("ScaledDotProduct" in name for name in facts["graph"])
    assert not facts["compiled"]
    assert seen.of("watch")[-1]["cores"] == usable_cores()
    assert not seen.of("trouble")


@pytest.mark.thorough
def test_torchs_warning_of_the_probes_own_hooks_is_not_shown(tmp_path: Path) -> None:
    """The program's output stays its own, also where its warnings are errors."""
    argv = python("decoder.py", "--compile=eager")
    seen = watched([argv[0], "-W", "error:Using `torch.compile", *argv[1:]], cwd=tmp_path)
    assert seen.code == 0, seen.text
    assert "global hooks" not in seen.text
    assert len(seen.steps()) == 6


@pytest.mark.parametrize(
    ("how", "keywords"),
    [
        pytest.param("aot_eager", True, marks=pytest.mark.thorough),
        pytest.param("aot_eager", False, marks=pytest.mark.thorough),
        pytest.param("in place", True, marks=pytest.mark.slow),
    ],
)
def test_programs_compile_the_same_graphs_with_it_and_without(
    tmp_path: Path, how: str, keywords: bool
) -> None:
    """Graphs, captured calls and breaks, over a training with evaluations, in which more than one
    graph is made. The hooks themselves are a few frames without a graph: of each the call before
    and the one after a compiled module, in training and in evaluation, and the step's."""
    command = python(
        "decoder.py",
        f"--compile={how}",
        "--accumulate=2",
        "--steps=16",
        *(["--keywords"] if keywords else []),
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    without = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    plain, seen = (
        next(line for line in text.splitlines() if line.startswith("graphs")).split("; frames")
        for text in (without.stdout, watched(command, cwd=tmp_path).text)
    )
    assert seen[0] == plain[0]
    assert "'unique_graphs': 0" not in plain[0]
    assert int(seen[1]) - int(plain[1]) <= 5


@pytest.mark.thorough
def test_two_optimizers_that_take_turns_make_one_step_of_both(tmp_path: Path) -> None:
    seen = watched(python("adversaries.py"), cwd=tmp_path)
    steps = seen.steps()
    assert len(steps) == 5
    assert {step["backwards"] for step in steps[1:]} == {3}
    assert all(6 in step["sequences"] for step in steps[1:])
    assert seen.facts()["optimizers"] == ["torch.optim.adam.Adam", "torch.optim.sgd.SGD"]


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 2])
def test_a_scaler_that_leaves_a_step_out_and_a_loader_that_is_waited_for(
    tmp_path: Path, workers: int
) -> None:
    seen = watched(python("scaled.py", str(workers)), cwd=tmp_path)
    assert [step["skipped"] for step in seen.steps()] == [False, False, True, False, False, False]
    assert len(seen.trainers) == 1
    facts = seen.facts()
    assert (facts["workers"], facts["autocast"]) == (workers, "float16")
    if not workers:
        assert all(step["wait_s"] >= 0.02 for step in seen.steps())


@pytest.mark.thorough
def test_the_users_own_sitecustomize_still_runs_and_modules_are_found_where_they_were(
    tmp_path: Path,
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import os; os.environ['OWN'] = __file__")
    look = "import os, sys; print(os.environ['OWN'], sys.modules['sitecustomize'].__file__, [p for p in sys.path if 'probe' in p])"
    seen = watched([sys.executable, "-c", look], cwd=tmp_path, env={"PYTHONPATH": str(own)})
    assert seen.text.split() == [str(own / "sitecustomize.py")] * 2 + ["[]"]


def test_a_program_without_torch_runs_as_it_is(tmp_path: Path) -> None:
    seen = watched(
        [sys.executable, "-c", "import sys; print('torch' in sys.modules); sys.exit(7)"],
        cwd=tmp_path,
    )
    assert (seen.code, seen.text.strip(), seen.reports) == (7, "False", [])


@pytest.mark.thorough
def test_an_isolated_interpreter_is_not_seen(tmp_path: Path) -> None:
    command = python("decoder.py")
    seen = watched([command[0], "-I", *command[1:]], cwd=tmp_path)
    assert (seen.code, seen.reports) == (0, [])


def test_a_torch_without_the_hooks_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("__version__ = '0'\n")
    seen = watched([sys.executable, "-c", "import torch; print(torch.__version__)"], cwd=tmp_path)
    assert (seen.code, seen.text.strip()) == (0, "0")
    assert len(seen.of("trouble")) == 1


@pytest.mark.parametrize(("version", "count"), [("2.8.1", "2000"), ("2.13.0+cu130", None)])
def test_torch_gets_the_recorders_variables_by_the_names_it_knows(
    tmp_path: Path, version: str, count: str | None
) -> None:
    (tmp_path / "torch.py").write_text(f"__version__ = {version!r}\n")
    look = "import os, torch; print([os.environ.get(f'TORCH_{name}_BUFFER_SIZE') for name in ('NCCL_TRACE', 'FR')])"
    recorder = variables(str(tmp_path), {})
    seen = watched([sys.executable, "-c", look], cwd=tmp_path, env=recorder)
    assert seen.text.strip() == str([count, "2000"])


@pytest.mark.parametrize(
    "first",
    ["import importlib.util as u; u.find_spec('torch'); u.find_spec('torch')", "import torch"],
)
def test_torch_is_heard_of_after_it_was_only_looked_up(tmp_path: Path, first: str) -> None:
    own = tmp_path / "own"
    own.mkdir()
    # without the hooks, so that the probe says so
    (own / "torch.py").write_text("__version__ = '0'\n")
    code = f"{first}; import torch"
    seen = watched([sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(own)})
    assert seen.code == 0, seen.text
    assert len(seen.of("trouble")) == 1


@pytest.mark.parametrize(
    ("update", "said"), sampled([(OWN_UPDATE, 1), ("pass", 0)], [(OWN_UPDATE, 1)])
)
def test_a_program_that_updates_its_weights_without_an_optimizer_of_torch_is_told(
    tmp_path: Path, update: str, said: int
) -> None:
    program = file_with(
        tmp_path / "own_updates.py",
        "import torch\n"
        "model = torch.nn.Sequential(torch.nn.Embedding(8, 4), torch.nn.Linear(4, 4))\n"
        "for _ in range(5):\n"
        "    model.zero_grad()\n"
        "    model(torch.tensor([[3, 4]])).square().sum().backward()\n"
        "    for p in model.parameters():\n"
        f"        {update}\n",
    )
    seen = watched([sys.executable, str(program)], cwd=tmp_path)
    assert seen.code == 0, seen.text
    assert len(seen.of("own_updates")) == said
    assert not seen.of("trouble")


SKIPS = """\
import torch

ooms = 0
torch.cuda.is_available = torch.cuda.is_initialized = lambda: GPU
torch.cuda.is_current_stream_capturing = lambda: False
torch.cuda.max_memory_allocated = torch.cuda.max_memory_reserved = lambda: 0
torch.cuda.memory_stats = lambda: {{"num_ooms": ooms}}


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, place):
        ctx.place = place
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        fail("backward", ctx.place)
        return gradient, None


class Net(torch.nn.Linear):
    def forward(self, x, place):
        fail("forward", place)
        return Fails.apply(super().forward(x), place)


def fail(where, place):
    global ooms
    if place == 2 and where == "{where}":
        ooms += 1
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


model = Net(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for place in range(5):
    try:
        out = model(torch.randn(2, 4), place)
        fail("loss", place)
        out.mean().backward()
        optimizer.step()
    except torch.OutOfMemoryError:
        pass
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("forward", "a forward pass"),
        ("backward", "a backward pass"),
        ("loss", "an optimizer step"),
        ("nowhere", None),
    ],
)
def test_memory_that_runs_out_is_told_though_the_program_catches_it(
    tmp_path: Path, where: str, told: str | None
) -> None:
    """What is raised outside of modules and passes is known by the allocator's own count, here one
    that is made up."""
    text = SKIPS.format(where=where).replace("GPU", str(where == "loss"))
    program = file_with(tmp_path / "skips.py", text)
    seen = watched([sys.executable, str(program)], cwd=tmp_path)
    assert seen.code == 0, seen.text
    assert [r["where"] for r in seen.of("out_of_memory")] == ([told] if told else [])
    assert len(seen.steps()) == (5 if told is None else 4)


@pytest.mark.thorough
def test_weights_that_cannot_be_compared_raise_nothing_into_the_program(tmp_path: Path) -> None:
    program = file_with(
        tmp_path / "incomparable.py",
        "import torch\n"
        "torch.equal = lambda *tensors: 1 / 0\n"
        "model = torch.nn.Linear(4, 4)\n"
        "for _ in range(3):\n"
        "    model(torch.ones(1, 4)).sum().backward()\n",
    )
    seen = watched([sys.executable, str(program)], cwd=tmp_path)
    assert seen.code == 0, seen.text
    assert not seen.of("own_updates")


def test_files_are_told_and_what_was_there_before_is_put_back(tmp_path: Path) -> None:
    before = {
        "cut.txt": "c",
        "longer.txt": "l",
        "in-place.bin": "abc",
        "replaced.txt": "r",
        "removed.txt": "gone?",
        "read.txt": "read",
        "checkpoints/step-1/model.bin": "one",
    }
    for name, text in before.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    seen = watched(python("writes.py"), cwd=tmp_path)
    assert (seen.code, seen.lost) == (0, []), seen.text
    assert {name: (tmp_path / name).read_text() for name in before} == before
    assert not list(tmp_path.rglob("*.before-autotune"))
    told = {str(Path(path).relative_to(tmp_path)): rest for path, rest in seen.files.items()}
    assert {name for name, (_, existed, _) in told.items() if existed} == before.keys() - {
        "read.txt"
    }
    assert all(kept for _, existed, kept in told.values() if existed)
    assert "new.txt" in told
    assert not any("mine.txt" in name for name in told)


def test_no_file_of_a_folder_that_is_only_opened_is_touched(tmp_path: Path) -> None:
    """`tempfile.TemporaryFile` opens a folder for writing, and so does a program that takes a
    folder for a file. A folder beside it was once emptied for that."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "train.bin").write_text("tokens")
    program = file_with(
        tmp_path / "opens.py",
        "import os, tempfile\n"
        "tempfile.TemporaryFile(dir='data').close()\n"
        "for how in ('w', 'a', 'r+'):\n"
        "    try:\n"
        "        open('data', how)\n"
        "    except IsADirectoryError:\n"
        "        pass\n"
        "assert os.listdir('data') == ['train.bin'], os.listdir('data')\n"
        "assert not [name for name in os.listdir() if name.endswith('.before-autotune')]\n"
        "os.rename('data', 'moved')\n",
    )
    inode = (data / "train.bin").stat().st_ino
    seen = watched([sys.executable, str(program)], cwd=tmp_path)
    assert (seen.code, seen.lost) == (0, []), seen.text
    assert seen.files[str(data / "train.bin")] == ["removed", True, True]
    assert (data / "train.bin").stat().st_ino == inode


def test_temporary_folders_themselves_are_left_alone_as_what_lies_in_them_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere, here = tmp_path / "temporary", tmp_path / "program"
    (elsewhere / "others").mkdir(parents=True)
    (elsewhere / "others" / "file").write_text("not the program's")
    here.mkdir()
    monkeypatch.setenv("TMPDIR", str(elsewhere))
    program = file_with(
        here / "tidies.py",
        "import os, shutil\n"
        "shutil.rmtree(os.environ['TMPDIR'])\n"
        "assert not [name for name in os.listdir('..') if name.endswith('.before-autotune')]\n",
    )
    seen = watched([sys.executable, str(program)], cwd=here)
    assert (seen.code, seen.files) == (0, {}), seen.text


def test_a_folder_of_more_files_than_can_be_kept_ends_the_program_before_it_is_removed(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for n in range(5):
        (data / f"{n}.bin").write_text(str(n))
    program = file_with(
        tmp_path / "removes.py",
        "import autotune_probe.written_files as written, os, shutil\n"
        "written.MOST_FILES, written.time.sleep = 4, lambda s: os._exit(9)  # as the keeper does\n"
        "shutil.rmtree('data')\n",
    )
    seen = watched([sys.executable, str(program)], cwd=tmp_path)
    assert seen.code == 9, seen.text
    assert [report["files"] for report in seen.of("unkept")] == [[str(data)]]
    assert len(list(data.iterdir())) == 5


@pytest.mark.thorough
def test_ranks_that_the_program_spawns_itself_are_seen(tmp_path: Path) -> None:
    program = (
        "import torch, torch.distributed as dist\n"
        "def main(rank):\n"
        "    dist.init_process_group('gloo', init_method='file://' + MEETS, rank=rank, world_size=2)\n"
        "    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    for _ in range(4):\n"
        "        model(torch.ones(3, 4)).sum().backward()\n"
        "        optimizer.step()\n"
        "if __name__ == '__main__':\n"
        "    torch.multiprocessing.spawn(main, nprocs=2)\n"
    )
    meets = f"MEETS = {str(tmp_path / 'meets')!r}\n"
    file = file_with(tmp_path / "train.py", meets + program)
    seen = watched([sys.executable, str(file)], cwd=tmp_path)
    assert seen.code == 0, seen.text
    assert [step["sequences"] for step in seen.steps(1)] == [[3]] * 4
    assert seen.facts()["world"] == 2


@pytest.mark.thorough
def test_files_stay_as_the_program_leaves_them_where_that_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pt").write_text("old")
    command = python("decoder.py", "--model-file=checkpoint.pt")
    seen = watched(command, cwd=tmp_path, keeps_files=False)
    assert seen.files[str(tmp_path / "checkpoint.pt")] == ["written", True, False]
    assert (tmp_path / "checkpoint.pt").read_bytes()[:2] == b"PK"


@pytest.mark.thorough
def test_a_checkpoint_that_torch_writes_outside_of_python_is_put_back(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pt").write_text("old")
    seen = watched(python("decoder.py", "--model-file=checkpoint.pt"), cwd=tmp_path)
    assert seen.code == 0, seen.text
    assert seen.files[str(tmp_path / "checkpoint.pt")] == ["written", True, True]
    assert (tmp_path / "checkpoint.pt").read_text() == "old"


@pytest.mark.parametrize(("value", "off"), [("off", True), ("0", True), ("", False), ("on", False)])
def test_a_variable_switches_it_off(value: str, off: bool) -> None:
    assert is_off({"AUTOTUNE_PROBE": value}) is off


def test_the_programs_own_path_comes_after_the_probes() -> None:
    probe = ProbeFolder()
    try:
        told = probe.variables({"PYTHONPATH": "/own"}, trial_folder="/trial", keeps_files=True)
        first, own = told["PYTHONPATH"].split(":")
        assert (Path(first) / "sitecustomize.py").is_file()
        assert own == "/own"
    finally:
        probe.remove()
    assert not probe.path.exists()


def test_programs_here_import_nothing_of_autotune() -> None:
    assert not any(
        "autotune" in file.read_text().replace("AUTOTUNE", "") for file in PROGRAMS.glob("*.py")
    )


@pytest.mark.thorough
def test_a_script_is_told_by_its_contents_unless_the_trial_wrote_it(tmp_path: Path) -> None:
    text = (PROGRAMS / "inner_optimizers.py").read_text()
    own, launch = tmp_path / "own", tmp_path / "launch"
    own.mkdir()
    launch.mkdir()

    def told(folder: Path, text: str) -> str | None:
        script = file_with(folder / "train.py", text)
        seen = watched([sys.executable, str(script)], cwd=launch)
        version: str | None = seen.facts()["versions"].get("script")
        return version

    edits = text.replace("engine =", "open(__file__, 'a').write('# an edit')\nengine =")
    assert edits != text
    for given in (text, f"{text}\n# another line\n", edits):
        assert told(own, given) == hashlib.sha256(given.encode()).hexdigest()[:12]
    assert told(launch, text) is None


@pytest.mark.parametrize("library", ["torch", "safetensors", "distributed"])
def test_evaluating_and_saving_between_steps_are_told_apart_from_training(
    library: str, tmp_path: Path
) -> None:
    is_grad = ["--grad"] if library == "torch" else []
    seen = watched(python("between_steps.py", f"--save={library}", *is_grad), cwd=tmp_path)
    assert seen.code == 0, seen.text
    phases = [set(step["phases"]) for step in seen.steps()]
    # what comes after step n counts to step n + 1
    assert [n for n, its in enumerate(phases) if "evaluation" in its] == [2, 4, 6, 8, 10]
    assert [n for n, its in enumerate(phases) if "checkpoint" in its] == [3, 6, 9]
    assert all("backward" in its for its in phases), "also of `torch.autograd.grad`"
    assert [step["sequences"] for step in seen.steps()] == [[8]] * 12
    assert not seen.of("trouble")


def test_files_that_a_program_runs_are_told_by_their_contents(tmp_path: Path) -> None:
    """Imported modules, and what its command and its launcher's name; not libraries, the launch's
    own files, or the program itself."""
    own, launch = tmp_path / "own", tmp_path / "launch"
    (own / "parts").mkdir(parents=True)
    launch.mkdir()
    script = own / "train.py"
    text = f"import parts.model\n{(PROGRAMS / 'between_steps.py').read_text()}"
    script.write_text(text.replace("parse_args()", "parse_known_args()[0]"))
    small = {
        "parts/model.py": "WIDTH = 32\n",
        "config.yaml": "lr: 1\n",
        "run.sh": f'{sys.executable} "$@"\n',
    }
    for name, contents in small.items():
        (own / name).write_text(contents)
    data = tmp_path / "tokens.bin"
    data.write_bytes(bytes((1 << 20) + 1))
    (launch / "rendered.json").write_text("{}")
    words = ["sh", str(own / "run.sh"), str(script), f"--config={own / 'config.yaml'}", str(data)]
    seen = watched([*words, "rendered.json", str(tmp_path)], cwd=launch)
    assert seen.code == 0, seen.text
    found = seen.facts()["files"]
    size = found.pop(str(data))
    assert size.startswith(f"{(1 << 20) + 1} bytes of ")
    assert found == {
        name: hashlib.sha256(contents.encode()).hexdigest()[:12] for name, contents in small.items()
    }
