"""`python -m autotune`: the command line, for environments in which its script is not on PATH."""

from autotune.cli import main

main()
