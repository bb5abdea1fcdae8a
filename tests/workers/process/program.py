"""Somebody's training script, as the command trainer meets it: it trains nothing, prints a log, and
misbehaves when told to.

python program.py --steps N --micro-batch M [--accumulation A] [--precision P] [--step-s S]
[--jitter J] [--fault KIND@STEP]
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HELD: list[bytes] = []


def fall(kind: str) -> None:
    """The fault itself."""
    if kind == "exit":
        raise SystemExit(3)
    if kind == "raise":
        raise ValueError("expected scalar type Half but found Float")
    if kind == "oom":
        raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "sleep":
        time.sleep(3600)
    elif kind == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(3600)
    elif kind == "orphan":
        child = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True
        )
        print(f"orphan {child.pid}", flush=True)
    elif kind == "hold":
        HELD.append(b"x" * (200 << 20))
    elif kind == "leave":
        raise SystemExit(0)


def main() -> None:
    """Prints one step after the other."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--micro-batch", type=int, required=True)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--jitter", type=float, default=0.0)
    parser.add_argument("--group", default="", help="file of a memory group to enter")
    parser.add_argument("--fault", default="")
    arguments = parser.parse_args()
    kind, _, at = arguments.fault.partition("@")
    if arguments.group:
        Path(arguments.group).write_text(str(os.getpid()))
    told = (
        name
        for name in os.environ
        if name.startswith("AUTOTUNE_")
        and not name.startswith(("AUTOTUNE_PROBE_", "AUTOTUNE_TRIAL_"))
    )
    print(f"settings {sorted(told)}", flush=True)
    for step in range(arguments.steps):
        if kind and step == int(at):
            fall(kind)
        loss = float("nan") if kind == "nan" and step == int(at) else 5.0 - 0.01 * step
        time.sleep(arguments.step_s)
        # few large micro-batches win
        seconds = arguments.accumulation * (0.008 + 0.002 * arguments.micro_batch)
        seconds *= 1 + arguments.jitter * (step % 5)
        if kind != "silent":
            print(f"iteration {step}: loss = {loss:.4f}", flush=True)
            print(f"iteration {step}: {1000 * seconds:.3f} ms, 1.5 GiB", flush=True)


if __name__ == "__main__":
    main()
