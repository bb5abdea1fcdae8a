"""Rank processes find the packages that their runner was imported from, and nothing in their
place."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from autotune_workers.process.children import rank_environment
from autotune_workers.process.machine import interface_of


def test_a_rank_imports_the_packages_of_its_runner_and_no_folder_hides_another_package() -> None:
    code = "import autotune_workers, autotune, sys, importlib.util as u; print(u.find_spec('ray').origin)"
    environment = rank_environment({"PYTHONSAFEPATH": "1"}, host="127.0.0.1")
    first = environment["PYTHONPATH"].split(os.pathsep)[0]
    assert os.path.isdir(os.path.join(first, "autotune")) or os.path.isdir(
        os.path.join(first, "autotune_workers")
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert "autotune_workers" not in done.stdout, (
        "the subpackage `ray` must not be found as the package ray"
    )


def test_gloo_is_told_the_interface_that_holds_the_address_of_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert rank_environment({}, host="127.0.0.1")["GLOO_SOCKET_IFNAME"] == "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            # sends nothing; chooses the address by which others are reached
            asking.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        address = asking.getsockname()[0]
    assert rank_environment({}, host=address)["GLOO_SOCKET_IFNAME"] == interface_of(address) != "lo"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "of-the-user")
    assert rank_environment({}, host=address)["GLOO_SOCKET_IFNAME"] == "of-the-user"
