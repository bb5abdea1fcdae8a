"""Options that name where a program writes name a folder of the trial's own in trials."""

from __future__ import annotations

import pytest

from autotune.trainers import Launch
from autotune.trainers.output_options import TRIAL_DIR, with_own_outputs


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["t.py", "--output_dir", "out"], ["t.py", "--output_dir", f"{TRIAL_DIR}/output_dir"]),
        (["t.py", "--out-dir=/abs/out", "--lr=1"], ["t.py", f"--out-dir={TRIAL_DIR}/out_dir", "--lr=1"]),
        (["t.py", "--save", "ckpt/7b"], ["t.py", "--save", f"{TRIAL_DIR}/save"]),
        (["t.py", "--save", "--lr", "1"], ["t.py", "--save", "--lr", "1"]),  # a flag
        (["t.py", "--save"], ["t.py", "--save"]),
        (["t.py", "hydra.run.dir=runs/a"], ["t.py", f"hydra.run.dir={TRIAL_DIR}/hydra.run.dir"]),
        (
            ["t.py", "--trainer.default_root_dir=logs"],
            ["t.py", f"--trainer.default_root_dir={TRIAL_DIR}/trainer.default_root_dir"],
        ),
        (["t.py", "training.output_dir=x"], ["t.py", f"training.output_dir={TRIAL_DIR}/training.output_dir"]),
        (["t.py", "--checkpoint_dir", "old"], ["t.py", "--checkpoint_dir", "old"]),  # may be what is loaded
        (
            ["t.py", "fit", "--trainer.max_steps=9"],
            ["t.py", "fit", "--trainer.max_steps=9", f"--trainer.default_root_dir={TRIAL_DIR}"],
        ),
        (["t.py", "--trainer.max_steps=9"], ["t.py", "--trainer.max_steps=9"]),
        (["t.py", "output_dir", "x"], ["t.py", "output_dir", "x"]),  # no option
        (["t.py", f"--out_dir={TRIAL_DIR}"], ["t.py", f"--out_dir={TRIAL_DIR}"]),
    ],
)
def test_each_form(argv: list[str], expected: list[str]) -> None:
    found = with_own_outputs(Launch(argv=tuple(argv)))
    assert list(found.argv) == expected
    assert bool(found.notes) == (argv != expected)
