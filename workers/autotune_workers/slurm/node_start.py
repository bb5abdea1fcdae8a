"""What a step starts on each of its nodes, as `python3 -I -c TEXT PORT`: connects to the runner,
receives the keeper and becomes it. Python 3.10 and its standard library are enough.

    node -> runner   {"token": T, "node": NAME, "step": NUMBER, "address": A, "port": P, "environment": {...}}
    runner -> node   how many bytes follow, as a line; {PATH: TEXT, ...}        then both speak as in `process.keeper`

The token comes as a variable, which no other user can read. `address`: of this node for the others,
with a port that is free there.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path

TOKEN = "AUTOTUNE_KEEPER_TOKEN"
CONNECT_S = 20.0
SILENT_S = 30
"""after which a runner whose machine is gone is given up"""


def main(port: int) -> None:
    """Until the keeper has ended."""
    token = os.environ.pop(TOKEN)
    channel = connected(port)
    keep_alive(channel, SILENT_S)
    address = channel.getsockname()[0]
    with socket.socket() as free:
        free.bind((address, 0))
        meeting_port = free.getsockname()[1]
    said = {
        "token": token,
        "node": os.environ["SLURMD_NODENAME"],
        "step": os.environ["SLURM_STEP_ID"],
        "address": address,
        "port": meeting_port,
        "environment": dict(os.environ),
    }
    channel.sendall(json.dumps(said).encode() + b"\n")
    size = b""
    while not size.endswith(b"\n"):
        size += received(channel, 1)
    files = json.loads(received(channel, int(size)))
    folder = tempfile.mkdtemp(prefix="autotune-keeper-")
    try:
        for path, code in files.items():
            file = os.path.join(folder, path)
            os.makedirs(os.path.dirname(file), exist_ok=True)
            with open(file, "w", encoding="utf-8") as opened:
                opened.write(code)
        sys.path.insert(0, folder)
        sys.argv = ["autotune-keeper", "--fd", str(channel.detach())]
        from autotune.temporary_folders import hold, remove_abandoned
        from autotune_workers.process.keeper import keeper

        hold(Path(folder))
        remove_abandoned("keeper")
        keeper.main()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def received(channel: socket.socket, size: int) -> bytes:
    """So many bytes and no more: what follows is for the keeper."""
    text = b""
    while len(text) < size:
        chunk = channel.recv(size - len(text))
        if not chunk:
            sys.exit("the runner closed the connection")
        text += chunk
    return text


def connected(port: int) -> socket.socket:
    """A connection to the runner, on the node that started this step. Ends the process where there
    is none."""
    several = os.environ.get("SLURM_STEP_NUM_NODES", "1") != "1"
    tried = []
    for host in filter(
        None, (os.environ.get("SLURM_LAUNCH_NODE_IPADDR"), os.environ.get("SLURM_SUBMIT_HOST"))
    ):
        with contextlib.suppress(OSError):
            address = socket.gethostbyname(host)
            if several and address.startswith("127."):
                continue  # every node would take it for its own
            tried.append(address)
            made = socket.create_connection((address, port), CONNECT_S)
            made.settimeout(None)
            return made
    sys.exit(
        f"{socket.gethostname()} cannot reach the runner on port {port} of {' or '.join(tried) or 'the first node'}"
    )


def keep_alive(channel: socket.socket, silent_s: int) -> None:
    """Has the system find out when the other machine is gone."""
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, silent_s // 2)
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, silent_s // 6))
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    main(int(sys.argv[1]))
