"""A program that misbehaves as told, on the node that is told so; its peers train on until they are
ended.

python misbehaving_program.py --node N --micro-batch M --ranks R --do WHAT [--at NODE]

NODE -1: on every node.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time

FLOOD_MB = 100


def step(number: int, node: int) -> None:
    """A good step."""
    time.sleep(0.05)
    print(f"iteration {number}: loss = {5.0 - 0.01 * number:.4f}", flush=True)
    print(f"iteration {number}: {50 + node:.3f} ms", flush=True)


def steps(count: int, node: int) -> None:
    """So many of them."""
    for number in range(count):
        step(number, node)


def nothing(node: int) -> None:
    """Not a word."""
    time.sleep(3600)


def garbage(node: int) -> None:
    """No text, and a line without end, in place of steps."""
    for _ in range(50):
        os.write(1, os.urandom(20_000))
    os.write(1, b"\xff\x00" * 2_000_000)
    time.sleep(3600)


def noise(node: int) -> None:
    """The same between good steps."""
    for number in range(12):
        os.write(1, b"\n" + os.urandom(5000) + b"\n" + b"\x1b[31m" + b"x" * 1_000_000 + b"\n")
        step(number, node)


def silence(node: int) -> None:
    """After good steps."""
    steps(3, node)
    time.sleep(3600)


def stubborn(node: int) -> None:
    """The same, and deaf to SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    silence(node)


def untrained(node: int) -> None:
    """A good end without training."""
    print("nothing to do: the dataset is empty", flush=True)


def early(node: int) -> None:
    """A bad end after good steps, without a word why."""
    steps(3, node)
    raise SystemExit(1)


def children(node: int) -> None:
    """The same, and leaves two children that hold the log: one in a session of its own and deaf to
    SIGTERM, and one of that."""
    deaf = "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    deaf += "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)', sys.argv[1]], start_new_session=True)\n"
    subprocess.Popen(
        [sys.executable, "-c", deaf + "time.sleep(3600)", __file__], start_new_session=True
    )
    early(node)


def flood(node: int) -> None:
    """More log than anybody reads, and then an exception."""
    steps(3, node)
    for _ in range(FLOOD_MB):
        sys.stdout.write(("y" * 99 + "\n") * 10_000)
    raise ValueError("the last words")


def variable(node: int) -> None:
    """Needs a variable that nobody has set."""
    print(os.environ["TRAIN_DATA"])


def torch(node: int) -> None:
    """Needs a module that its Python does not have."""
    import torch

    print(torch.__version__)
    steps(12, node)


def main() -> None:
    """Does as it is told."""
    kinds = (
        nothing,
        garbage,
        noise,
        silence,
        stubborn,
        untrained,
        early,
        children,
        flood,
        variable,
        torch,
    )
    parser = argparse.ArgumentParser()
    parser.add_argument("--node", type=int, default=0)
    parser.add_argument("--micro-batch", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--do", choices=[kind.__name__ for kind in kinds], default="nothing")
    parser.add_argument("--at", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.at in (arguments.node, -1):
        next(kind for kind in kinds if kind.__name__ == arguments.do)(arguments.node)
    else:
        steps(3, arguments.node)
        time.sleep(3600)  # a peer that waits for it


if __name__ == "__main__":
    main()
