"""What the image's build takes from a checkout, by a real builder where there is one: no passwords,
nothing that was compiled, all that the package needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "dashboards" / "deploy" / "Dockerfile"
IGNORED = ROOT / ".dockerignore"
SECRET = "dashboards/deploy/secrets"


def copied() -> list[str]:
    """The sources that the Dockerfile copies from the checkout."""
    lines = re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE.read_text(), re.MULTILINE)
    return [source for line in lines for source in line.split()[:-1]]


def test_the_build_gets_what_it_copies_and_no_passwords() -> None:
    lines = [line for line in IGNORED.read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == {*copied()}
    assert SECRET in lines[-2:], "a later line would let it in again"
    assert f"{SECRET}/" in (ROOT / ".gitignore").read_text().splitlines()


@pytest.mark.thorough
def test_a_builder_takes_no_passwords_and_nothing_that_was_compiled(tmp_path: Path) -> None:
    if shutil.which("buildah") is None or os.geteuid() != 0:
        pytest.skip("needs buildah and root")
    checkout = tmp_path / "checkout"
    for source in (*copied(), ".dockerignore"):
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
        (checkout / source).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / source, checkout / source)
    (checkout / SECRET).mkdir(exist_ok=True)
    (checkout / SECRET / "postgres_password").write_text("hunter2")
    (checkout / "results.db").write_text("weeks of work")
    (checkout / "autotune" / "__pycache__").mkdir(exist_ok=True)
    (checkout / "autotune" / "__pycache__" / "api.pyc").write_text("compiled")
    copies = re.findall(r"^COPY (?!--from).*$", DOCKERFILE.read_text(), re.MULTILINE)
    (tmp_path / "Dockerfile").write_text("\n".join(["FROM scratch", "WORKDIR /src", *copies]))
    storage = f"--root={tmp_path}/root", f"--runroot={tmp_path}/run", "--storage-driver=vfs"

    def buildah(*words: str) -> str:
        command = ["buildah", *storage, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    file = f"--file={tmp_path}/Dockerfile"
    buildah("bud", "--isolation=chroot", file, "--tag=copied", str(checkout))
    container = buildah("from", "copied")
    try:
        place = Path(buildah("mount", container), "src")
        found = {path.relative_to(place).as_posix() for path in place.rglob("*")}
        assert {*copied()} <= found
        assert not [path for path in found if "secrets/" in path or "__pycache__" in path]
        assert "results.db" not in found
    finally:
        buildah("rm", container)
