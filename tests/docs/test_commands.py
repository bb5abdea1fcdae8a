"""Every command and every Python text of README and site is run as it stands, or the page says why
not."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from autotune_workers.process.machine import free_port
from tests.docs.harness import SERVE, STUDY, Harness
from tests.docs.pages import ROOT, Block, blocks, commands, page_paths
from tests.matrix import sampled

PAGES = {path.relative_to(ROOT).as_posix(): blocks(path) for path in page_paths()}
KINDS = ("fast", "slow", "service", "none")
RUN = ("console", "python")
"""Languages of blocks that are run; all others are shown."""


def with_kind(*kinds: str) -> list[Any]:
    """The pages that have such blocks; those of the README are always run."""
    found = [
        name
        for name, has in PAGES.items()
        if any(b.kind in kinds and b.language in RUN for b in has)
    ]
    return sampled(found, [name for name in found if name == "README.md"])


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    with Harness(tmp_path_factory.mktemp("documentation")) as harness:
        yield harness


@pytest.fixture(scope="module")
def studied(harness: Harness) -> Harness:
    """With the one real study that all pages ask about."""
    code, output = harness.page("study").shell(STUDY)
    assert code == 0, output[-4000:]
    return harness


@pytest.fixture(scope="module")
def service(harness: Harness) -> Iterator[str]:
    """The address of a real service on the pages' results database."""
    port = free_port("127.0.0.1")
    folder = harness.page("service").folder
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen(
            [*SERVE.split(), "--port", str(port)],
            cwd=folder,
            env=harness.environment,
            stdout=log,
            stderr=log,
        )
        url = f"http://127.0.0.1:{port}"
        try:
            for _ in range(9000):
                try:
                    httpx.get(f"{url}/api/v1/health", timeout=5, trust_env=False).raise_for_status()
                    break
                except httpx.HTTPError:
                    assert process.poll() is None, (folder / "serve.log").read_text()
                    time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            process.wait(600)


@pytest.mark.parametrize("name", with_kind("fast"))
def test_the_commands_of_a_page_work_in_their_order(studied: Harness, name: str) -> None:
    page = studied.page(name)
    for block in PAGES[name]:
        if block.kind == "fast":
            page.run(block)


@pytest.mark.parametrize("name", with_kind("service"))
def test_the_commands_of_a_page_work_against_a_service(
    harness: Harness, service: str, name: str
) -> None:
    page = harness.page(f"{name} with a service")
    page.service_url = service
    for block in PAGES[name]:
        if block.kind == "service" or block.title:
            page.run(block)


@pytest.mark.slow
@pytest.mark.parametrize("name", with_kind("slow"))
def test_the_long_commands_of_a_page_work(studied: Harness, name: str) -> None:
    page = studied.page(f"{name} at length")
    for block in PAGES[name]:
        if block.kind in ("fast", "slow") or block.title:
            page.run(block)


def test_the_readme_shows_what_plan_prints(harness: Harness) -> None:
    (table,) = (
        block.text
        for block in PAGES["README.md"]
        if block.language == "text" and "| rank |" in block.text
    )
    (line,) = (
        c.line
        for b in console_blocks()
        if b.page == "README.md" and b.kind != "none"
        for c in commands(b)
        if " plan " in c.line
    )
    page = harness.page("plan of the readme")
    environment = {
        **harness.environment,
        "AUTOTUNE_STORE": str(page.folder / "empty.db"),
        "COLUMNS": "160",
    }
    code, output = harness.fork(
        {"argv": line.split()[1:], "cwd": str(page.folder), "env": environment}
    )
    assert code == 0, output
    # piped: cells with tabs between them
    printed = {tuple(row.split("\t")) for row in output.splitlines()}
    rows = [row for row in table.splitlines() if "tokens/s" not in row and "---" not in row]
    assert len(rows) == 4  # three ranks and the baseline
    for row in rows:
        assert tuple(cell.strip() for cell in row.strip()[1:-1].split("|")) in printed, (
            f"README shows {row}, but plan prints\n{output}"
        )


@pytest.mark.parametrize("name", PAGES)
def test_what_is_not_run_says_why_in_its_marker(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    for block in PAGES[name]:
        assert block.kind in KINDS, (
            f"{name}:{block.line}: {block.marker!r} must be one of run: slow, run: service, not run: REASON"
        )
        if block.kind == "none":
            assert len(block.marker) > len("not run: "), (
                f"{name}:{block.line}: a reason must stand there"
            )
    text = re.sub(r"(?m)^\|.*\n", "", text)  # the style page lists such words in a table
    assert not re.search(r"(?i)\btests\b[^.]*\bdo not run\b", text), (
        f"{name}: the reason belongs into the marker, not into the text"
    )


def test_no_block_escapes_the_collection() -> None:
    for name, found in PAGES.items():
        fences = len(
            re.findall(r"^```\w+", (ROOT / name).read_text(encoding="utf-8"), flags=re.MULTILINE)
        )
        assert fences == len(found), f"{name}: {fences} fences, but {len(found)} blocks were read"


def test_no_command_hides_in_a_block_of_another_language() -> None:
    for name, found in PAGES.items():
        for block in found:
            if block.language in ("bash", "sh", "shell"):
                pytest.fail(
                    f"{name}:{block.line}: write commands as console blocks, so that they are run"
                )


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for block in console_blocks():
        for command in commands(block):
            if command.line.startswith("make "):
                target = command.line.split()[1]
                assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), (
                    f"{block.page}:{block.line}: {target}"
                )


def test_the_tutorial_has_the_study_that_the_pages_share() -> None:
    assert STUDY in [command.line for block in console_blocks() for command in commands(block)]


def test_every_command_of_the_program_is_in_some_page() -> None:
    from autotune.cli import application

    named = {
        name
        for found in PAGES.values()
        for block in found
        if block.language == "console"
        for name in _names(block)
    }
    groups = {info.name for info in application().registered_groups}
    known = {
        info.name or info.callback.__name__ for info in application().registered_commands
    } | groups
    assert known - named == set(), "commands that no page shows"


def _names(block: Block) -> list[str]:
    return [
        command.line.split()[1]
        for command in commands(block)
        if command.line.startswith("autotune ")
    ]


def console_blocks() -> list[Block]:
    return [block for found in PAGES.values() for block in found if block.language == "console"]


@pytest.mark.thorough
def test_specs_that_pages_show_are_valid(tmp_path: Path) -> None:
    import yaml

    from autotune.detect import local_cluster
    from autotune.schema import parse_study
    from autotune.spec import ModelSpec

    def built(model: ModelSpec) -> ModelSpec:
        """A module of the reader's own: its code is not run here."""
        return replace(model, num_layers=4)

    shown = [
        b
        for found in PAGES.values()
        for b in found
        if b.language == "yaml" and "workload:" in b.text
    ]
    assert shown
    for block in shown:
        parse_study(
            yaml.safe_load(block.text), base=tmp_path, local_cluster=local_cluster, inspect=built
        )
        if block.page.startswith("docs/trainers/"):
            assert len(block.text.splitlines()) <= 15, (
                f"{block.page}:{block.line}: a spec of a trainer's page is short"
            )
