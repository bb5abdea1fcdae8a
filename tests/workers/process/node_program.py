"""One node's part of a program over several nodes, without any launcher: it prints a log, and one
node of it misbehaves when told to.

python node_program.py --node N --micro-batch M [--step-s S] [--fault KIND@NODE]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import time

STEPS = 12


def fall(kind: str) -> None:
    """`exit`: it fails; `kill`: it kills its keeper."""
    if kind == "exit":
        print("ValueError: the cause", flush=True)
        raise SystemExit(1)
    os.kill(os.getppid(), signal.SIGKILL)  # its keeper
    time.sleep(3600)


def meet(node: int) -> None:
    """Returns once both nodes are there, as ranks do that make a process group."""
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if node == 0:
        with socket.create_server(place) as server:
            server.accept()[0].close()
        return
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection(place).close()
            return
        time.sleep(0.02)


def main() -> None:
    """Prints one step after the other; a peer of a node that failed sees a broken connection."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--node", type=int, required=True)
    parser.add_argument("--micro-batch", type=int, required=True)
    parser.add_argument("--step-s", type=float, default=0.05)
    parser.add_argument("--fault", default="")
    arguments = parser.parse_args()
    kind, _, where = arguments.fault.partition("@")
    is_mine = bool(kind) and arguments.node == int(where)
    told = sorted(
        f"{k}={v}"
        for k, v in os.environ.items()
        if k.startswith(("PET_", "MASTER_", "NODE_", "GLOO_"))
    )
    print(f"told {told}", flush=True)
    meet(arguments.node)
    for step in range(STEPS):
        if is_mine and step == 3:
            fall(kind)
        if kind == "exit" and step == 3:
            print("RuntimeError: Connection reset by peer", flush=True)
            raise SystemExit(1)
        if kind and step == 5:
            time.sleep(3600)  # waits for its peer
        time.sleep(arguments.step_s)
        print(f"iteration {step}: loss = {5.0 - 0.01 * step:.4f}", flush=True)
        print(f"iteration {step}: {10 + arguments.node:.3f} ms", flush=True)


if __name__ == "__main__":
    main()
