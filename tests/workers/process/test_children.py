"""Rank processes find the packages that their runner was imported from, and nothing in their place."""

from __future__ import annotations

import os
import subprocess
import sys

from autotune_workers.process.children import rank_environment


def test_a_rank_imports_the_packages_of_its_runner_and_no_folder_hides_another_package() -> None:
    code = "import autotune_workers, autotune, sys, importlib.util as u; print(u.find_spec('ray').origin)"
    environment = rank_environment({"PYTHONSAFEPATH": "1"}, host="127.0.0.1")
    first = environment["PYTHONPATH"].split(os.pathsep)[0]
    assert os.path.isdir(os.path.join(first, "autotune")) or os.path.isdir(os.path.join(first, "autotune_workers"))
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert "autotune_workers" not in done.stdout, "the subpackage `ray` must not be found as the package ray"
