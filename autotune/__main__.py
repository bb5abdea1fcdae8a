"""`python -m autotune`: the command line, where its script is not on the path."""

from autotune.cli import main

main()
