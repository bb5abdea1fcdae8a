"""A program that trains in a process that it starts."""

import subprocess
import sys

sys.exit(subprocess.run([sys.executable, *sys.argv[1:]]).returncode)
