"""The actor of a node and its keeper, with a real program and without Ray: what the owner hears,
whom the actor obeys, how the program ends."""

from __future__ import annotations

import io
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune_workers.gang.wire import Message
from autotune_workers.process.machine import is_alive
from autotune_workers.process.program.places import ProgramOrder
from autotune_workers.ray.nodes import host as module
from autotune_workers.ray.nodes.host import NodeHost

COUNT = """
import pathlib, time
def count(*numbers):
    for i in range(*numbers): print(i, 'x' * 60, flush=i % 100 == 99)
go, done = pathlib.Path('GO'), pathlib.Path('DONE')
count(2500)
while not go.exists(): time.sleep(0.01)
count(2500, 5000)
done.touch()
"""
SLEEP = "import time; print('up', flush=True); time.sleep(600)"


def order(code: str) -> ProgramOrder:
    return ProgramOrder(argv=(sys.executable, "-c", code))


@pytest.fixture
def host() -> Iterator[Any]:
    host: Any = object.__new__(NodeHost)
    host._address, host._environment, host._package, host._lease_s = (
        "127.0.0.1",
        {"COLOUR": "red"},
        [],
        None,
    )
    host._prepare("owner")
    try:
        yield host
    finally:
        host._abandon()


def begin(host: Any, asked: ProgramOrder) -> None:
    """The first attempt."""
    host.prepare("owner", 1)
    host.begin("owner", 1, asked)


def send_along(host: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, *files: str) -> None:
    """Empty files of a folder, which is unpacked below `folder`."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in files:
            archive.writestr(name, "")
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setattr("ray.get", lambda reference: reference)
    host._package = [packed.getvalue()]


class Owner:
    """Listens as `RayNode` does."""

    def __init__(self, host: Any) -> None:
        self.host, self.heard = host, 0

    def until(self, event: str) -> list[Message]:
        """All messages to the first one of this kind."""
        messages: list[Message] = []
        end_s = time.monotonic() + 300.0
        while time.monotonic() < end_s:
            for message in self.host.listen("owner", self.heard):
                self.heard = message["number"]
                messages.append(message)
                if message["event"] == event:
                    return messages
        pytest.fail(f"no {event}: {messages}")


def test_each_attempt_has_its_own_port_and_messages(host: Any) -> None:
    owner = Owner(host)
    host.prepare("owner", 1)
    (ready,) = owner.until("ready")
    assert ready["address"] == "127.0.0.1"
    host.begin("owner", 1, order("import os; print(os.environ['COLOUR'])"))
    messages = owner.until("ended")
    assert [line for m in messages if m["event"] == "lines" for _, line in m["lines"]] == ["red"]
    assert messages[-1]["code"] == 0
    assert {m["attempt"] for m in messages} == {1}
    host.prepare("owner", 2)
    (again,) = owner.until("ready")
    assert again["attempt"] == 2
    assert again["port"] != ready["port"]
    host.begin("owner", 1, order(SLEEP))
    host.end("owner")
    assert host.listen("owner", owner.heard) == [], "an order of an earlier attempt is late"


def test_a_long_log_comes_in_few_messages_without_a_gap(
    host: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_UNHEARD", 2)
    go, done = tmp_path / "go", tmp_path / "done"
    owner = Owner(host)
    begin(host, order(COUNT.replace("GO", str(go)).replace("DONE", str(done))))
    kept = settled(lambda: host._log.unheard)
    go.touch()
    settled(lambda: 3 + done.exists(), least=4)
    assert settled(lambda: host._log.unheard) == kept, "while nobody listens the log is kept back"
    messages = owner.until("ended")
    lines = [line for m in messages if m["event"] == "lines" for _, line in m["lines"]]
    assert [int(line.split()[0]) for line in lines] == list(range(5000))


def settled(value: Callable[[], int], least: int = 3) -> int:
    """The value when it has grown to `least` and not changed for a second."""
    before = -1
    while (now := value()) != before or now < least:
        before = now
        time.sleep(1.0)
    return now


def test_a_missing_program_is_refused_with_its_node(host: Any) -> None:
    begin(host, ProgramOrder(argv=("/nowhere/bin/python",)))
    reason = Owner(host).until("refused")[-1]["reason"]
    assert reason.startswith("node 127.0.0.1: there is no program '/nowhere/bin/python'")


def test_a_folder_that_cannot_be_unpacked_is_refused_and_nothing_of_it_stays(
    host: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_along(host, tmp_path, monkeypatch, "first.py", "x" * 300)  # longer than names may be
    begin(host, order(SLEEP))
    assert "File name too long" in Owner(host).until("refused")[-1]["reason"]
    assert list(tmp_path.iterdir()) == []


def test_of_a_keeper_that_cannot_be_started_no_folder_stays(
    host: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*, detached: bool) -> None:
        raise OSError("no process is left")

    send_along(host, tmp_path, monkeypatch)
    monkeypatch.setattr(module, "KeeperProcess", refuse)
    begin(host, order(SLEEP))
    assert "no process is left" in Owner(host).until("refused")[-1]["reason"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", ["end", "prepare", "abandon"])
def test_the_program_ends_when_its_owner_wants_it_or_is_gone(host: Any, how: str) -> None:
    owner = Owner(host)
    begin(host, order(SLEEP))
    pid = owner.until("lines")[1]["pid"]
    assert is_alive(pid)
    host.end("stranger")
    host.prepare("stranger", 2)
    assert is_alive(pid), "a stranger is not obeyed"
    {
        "end": lambda: host.end("owner"),
        "prepare": lambda: host.prepare("owner", 2),
        "abandon": host._abandon,
    }[how]()
    assert owner.until("ended")[-1]["left"] == []
    assert not is_alive(pid)
