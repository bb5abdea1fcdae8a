"""Program that a step starts on each of its nodes, as `python3 -I -c TEXT PORT`: connects to the
runner, receives the keeper's code and becomes the keeper. Needs only Python 3.10 and its standard
library.

    node -> runner   {"token": T, "node": NAME, "step": NUMBER, "address": A, "port": P, "environment": {...}}
    runner -> node   number of bytes that follow, as a line; {PATH: TEXT, ...}        then messages as in `process.keeper`

The token is passed in an environment variable, which no other user can read. `address`: of this
node for the others, with a port that is free there.
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
"""seconds without TCP traffic after which the runner counts as lost"""


def main(port: int) -> None:
    """Runs the keeper until it has ended."""
    token = os.environ.pop(TOKEN)
    channel = connected(port)
    keep_alive(channel, SILENT_S)
    address = channel.getsockname()[0]
    with socket.socket() as listener:
        listener.bind((address, 0))
        meeting_port = listener.getsockname()[1]
    greeting = {
        "token": token,
        "node": os.environ["SLURMD_NODENAME"],
        "step": os.environ["SLURM_STEP_ID"],
        "address": address,
        "port": meeting_port,
        "environment": dict(os.environ),
    }
    channel.sendall(json.dumps(greeting).encode() + b"\n")
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
    """Receives exactly `size` bytes, because what follows is for the keeper. Ends the process if
    the connection closes."""
    text = b""
    while len(text) < size:
        chunk = channel.recv(size - len(text))
        if not chunk:
            sys.exit("the runner closed the connection")
        text += chunk
    return text


def connected(port: int) -> socket.socket:
    """A connection to the runner, on the node that started this step. Ends the process if there is
    none."""
    has_several_nodes = os.environ.get("SLURM_STEP_NUM_NODES", "1") != "1"
    tried = []
    for host in filter(
        None, (os.environ.get("SLURM_LAUNCH_NODE_IPADDR"), os.environ.get("SLURM_SUBMIT_HOST"))
    ):
        with contextlib.suppress(OSError):
            address = socket.gethostbyname(host)
            if has_several_nodes and address.startswith("127."):
                continue  # each node would reach itself
            tried.append(address)
            connection = socket.create_connection((address, port), CONNECT_S)
            connection.settimeout(None)
            return connection
    sys.exit(
        f"{socket.gethostname()} cannot reach the runner on port {port} of {' or '.join(tried) or 'the first node'}"
    )


def keep_alive(channel: socket.socket, silent_s: int) -> None:
    """Makes the system detect that the other machine is gone."""
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, silent_s // 2)
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, silent_s // 6))
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    main(int(sys.argv[1]))
