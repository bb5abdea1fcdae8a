"""Installed size and start-up time of the package without extras: `python -m
research.installation`.

Installs the checkout with `constraints.txt` into a virtual environment of its own, adds up the
files on disk (without pip and setuptools, which the environment brings), and runs each line in a
fresh process. Times are the least of `ROUNDS`: processor time, in seconds. What an extra adds is
read from the metadata of the environment that runs this, where all extras are installed: its
packages and theirs, less the package's own.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from autotune.extras import MODULES

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 8
SPEC = "{model: gpt2-medium, cluster: h100-sxm-1x8, workload: {seq_len: 1024, global_batch_size: 512}, space: dense-single-node}"
LINES = (
    ("python", "-c", "pass"),
    ("python", "-c", "import autotune"),
    ("python", "-c", "from autotune import Client"),
    ("autotune", "--help"),
    ("autotune", "models"),
    ("autotune", "plan", "spec.yaml"),
)


def main() -> None:
    """Prints both tables."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
        binaries = folder / "venv" / "bin"
        install = [
            str(binaries / "pip"),
            "install",
            "--quiet",
            "--constraint",
            str(ROOT / "constraints.txt"),
            str(ROOT),
        ]
        subprocess.run(install, check=True)
        (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
        sizes = {
            entry.name: _bytes(entry)
            for entry in site.iterdir()
            if not entry.name.startswith(("pip", "setuptools"))
        }
        print(
            f"{sum(sizes.values()) / 1e6:.0f} MB, without the modules {', '.join(m for of in MODULES.values() for m in of)}"
        )
        for name, size in sorted(sizes.items(), key=lambda item: -item[1])[:8]:
            print(f"  {size / 1e6:5.0f} MB  {name}")
        for extra in MODULES:
            print(f"  {_added_bytes(extra) / 1e6:5.0f} MB  more with autotune-parallel[{extra}]")
        (folder / "spec.yaml").write_text(SPEC)
        for program, *arguments in LINES:
            seconds = min(
                _processor_s([str(binaries / program), *arguments], folder) for _ in range(ROUNDS)
            )
            print(f"  {seconds:5.2f} s  {program} {' '.join(arguments)}")


def _bytes(entry: Path) -> int:
    """Size of a file, or of all files below a folder."""
    files = [entry] if entry.is_file() else [path for path in entry.rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files)


def _added_bytes(extra: str) -> int:
    """Size of the installed packages that the extra brings and the package itself does not."""
    names = _packages(Requirement(f"autotune-parallel[{extra}]")) - _packages(
        Requirement("autotune-parallel")
    )
    files = [file.locate() for name in names for file in metadata.files(name) or ()]
    return sum(os.path.getsize(file) for file in files if os.path.isfile(file))


def _packages(requirement: Requirement) -> set[str]:
    """Names of the package and of all that it needs, as far as they are installed."""
    seen: set[str] = set()
    waiting = [requirement]
    while waiting:
        asked = waiting.pop()
        for extra in ("", *asked.extras):
            if f"{asked.name}[{extra}]" in seen:
                continue
            seen.add(f"{asked.name}[{extra}]")
            try:
                needed = [Requirement(line) for line in metadata.requires(asked.name) or ()]
            except metadata.PackageNotFoundError:
                continue
            waiting += [
                one for one in needed if one.marker is None or one.marker.evaluate({"extra": extra})
            ]
    return {
        metadata.metadata(name)["Name"]
        for one in seen
        if _is_installed(name := one.partition("[")[0])
    }


def _is_installed(name: str) -> bool:
    return next(iter(metadata.distributions(name=name)), None) is not None


def _processor_s(argv: list[str], folder: Path) -> float:
    """User and system time of one run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "AUTOTUNE_STORE": str(folder / "results.db")}
    subprocess.run(argv, cwd=folder, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
