"""Exit codes of the commands."""

DONE = 0
FAILED = 1
"""the command failed, or nothing is feasible"""
BAD_INPUT = 2
"""the command line, the spec or another argument is wrong"""
UNAVAILABLE = 3
"""a store or service cannot be reached or written now; the same command may succeed later"""
INCONCLUSIVE = 4
"""other processes used the machine, so a measurement was inconclusive; repeat the command on an
idle machine"""
INTERRUPTED = 130
"""stopped by Ctrl-C (128 + SIGINT) or by the end of its job; all measurements are stored"""
