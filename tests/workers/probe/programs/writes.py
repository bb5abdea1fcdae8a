"""Writes, appends to, replaces and removes files, in the ways in which programs do."""

import os
import shutil
import sys
from pathlib import Path

Path("new.txt").write_text("new")
Path("cut.txt").write_text("cut")
with open("cut.txt", "a") as again:
    again.write(" twice")
with open("longer.txt", "a") as log:
    log.write("more")
with open("in-place.bin", "r+b") as file:
    file.write(b"X")
Path("next").write_text("next")
os.replace("next", "replaced.txt")
os.remove("removed.txt")
shutil.rmtree("checkpoints")
os.makedirs("checkpoints/step-2")
Path("checkpoints/step-2/model.bin").write_text("two")
Path(os.environ["AUTOTUNE_TRIAL_DIR"], "mine.txt").write_text("the trial's own")
print(Path("read.txt").read_text())
sys.stdout.flush()
