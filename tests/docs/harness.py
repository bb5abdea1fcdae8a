"""What the pages' commands are run in: one results database for all pages, with one real study in
it, and a folder of its own for each page."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.docs.pages import ROOT, Block, Command, commands

STUDY = "autotune tune laptop --max-trials 4 --new"
"""The tutorial's short study: real trials on Ray. It is run once, before all pages; their other
commands ask for what it found."""
SERVE = "autotune serve --runner local"
"""The pages' service. The tests run it on a free port."""
ADDRESS = "http://127.0.0.1:8600"
"""Where the pages say that the service is."""
LONGEST_S = 1500.0
"""A command that takes longer fails."""


class Harness:
    """Runs blocks of pages. A context manager: it holds the process that forks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(
                [str(ROOT), str(ROOT / "workers"), os.environ.get("PYTHONPATH", "")]
            ),
            "AUTOTUNE_STORE": str(folder / "results.db"),
            "XDG_DATA_HOME": str(folder / "data"),
            "COLUMNS": "140",
        }
        self.ran: set[str] = set()
        self._runner = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("command_runner.py"))],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Harness:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.communicate(timeout=600)

    def page(self, name: str) -> Page:
        """A fresh folder for a page's commands, beside the spaces that ship."""
        folder = self.folder / re.sub(r"\W", "-", name)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "search_spaces").symlink_to(ROOT / "search_spaces")
        return Page(self, folder)

    def fork(self, request: dict[str, Any]) -> tuple[int, str]:
        """Exit code and output of a command line or Python text."""
        assert self._runner.stdin is not None
        print(json.dumps(request), file=self._runner.stdin, flush=True)
        answer = json.loads(self._runner.stdout.readline())
        return answer["code"], answer["output"]


class Page:
    """The state of one page: its folder, what it exported, and where its service really is."""

    def __init__(self, harness: Harness, folder: Path) -> None:
        self.harness, self.folder, self.service_url = harness, folder, ""
        self.environment = dict(harness.environment)

    def run(self, block: Block) -> None:
        """Writes the file that the block shows, or runs its commands or its Python. Fails with page
        and line."""
        if block.title:
            if not block.title.startswith("/"):  # such a file belongs to another machine
                (self.folder / block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "console":
            for command in commands(block):
                self._command(command, block)
        elif block.language == "python":
            text = block.text.replace(ADDRESS, self.service_url or ADDRESS)
            code, output = self.harness.fork(
                {"python": text, "cwd": str(self.folder), "env": self.environment}
            )
            assert code == 0, f"{block.page}:{block.line}\n{output[-3000:]}"

    def _command(self, command: Command, block: Block) -> None:
        line = command.line
        self.harness.ran.add(line)
        if line in (STUDY, SERVE):
            return  # the fixtures have run it
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            if name != "PATH":
                self.environment[name] = value.replace(ADDRESS, self.service_url or ADDRESS)
            return
        if line.startswith("autotune ") and block.kind != "slow":
            request = {
                "argv": shlex.split(line)[1:],
                "cwd": str(self.folder),
                "env": self.environment,
            }
            code, output = self.harness.fork(request)
        else:
            code, output = self.shell(line)
        assert code == command.exit_code, (
            f"{block.page}:{block.line}: {line}\nended with {code}, not {command.exit_code}\n{output[-3000:]}"
        )

    def shell(self, line: str) -> tuple[int, str]:
        """Exit code and output of a line that a shell runs."""
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )
        return done.returncode, done.stdout
