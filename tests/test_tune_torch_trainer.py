"""`autotune.ray` before anything runs: importing it imports no Ray, `import ray` next to it is
Ray's own, and what is missing or wrong is said."""

from __future__ import annotations

import subprocess
import sys

import pytest

from autotune.errors import RunnerError
from autotune.ray import tune_torch_trainer

IMPORTED = """
import sys
import autotune.ray
early = {"ray", "torch", "autotune_workers"} & set(sys.modules)
assert not early, f"imported {early}"
from autotune_workers.runners import ray, ray_train
assert "ray" not in sys.modules
import ray
assert "autotune" not in ray.__file__.rpartition("site-packages")[2], ray.__file__
assert ray.__name__ == "ray"
"""
HIDDEN = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
from autotune.errors import MissingExtraError
from autotune.ray import tune_torch_trainer

try:
    tune_torch_trainer(None, space={}, model="llama-1b", seq_len=8, global_batch_size=8)
except MissingExtraError as error:
    print(error)
"""


def python(code: str, *arguments: str) -> str:
    """What an interpreter of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_it_imports_no_ray_and_does_not_hide_rays_own() -> None:
    pytest.importorskip("ray")
    python(IMPORTED)


@pytest.mark.thorough
@pytest.mark.parametrize("module", ["ray", "pandas", "torch"])
def test_without_ray_train_or_pytorch_it_names_the_command_that_installs_them(module: str) -> None:
    """Without pandas Ray itself is there, as the `ray` extra installs it, but Ray Train is not."""
    said = python(HIDDEN, module)
    assert said.startswith(
        "tuning a TorchTrainer needs Ray Train and PyTorch, which cannot be imported: "
    )
    assert said.endswith("run pip install 'ray[train]' torch\n")


@pytest.mark.thorough
def test_anything_but_a_torch_trainer_is_refused_before_it_is_read() -> None:
    pytest.importorskip("ray.train")
    with pytest.raises(
        RunnerError, match=r"runs a ray\.train\.torch\.TorchTrainer, but was given None"
    ):
        tune_torch_trainer(None, space={}, model="llama-1b", seq_len=8, global_batch_size=8)  # type: ignore[arg-type]
