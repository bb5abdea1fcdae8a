"""The exit codes of the commands."""

DONE = 0
FAILED = 1
"""the command failed, or nothing is feasible"""
BAD_INPUT = 2
"""the command line, the spec or another argument is wrong"""
AWAY = 3
"""a store or service is unavailable: it cannot be reached, or not be written now; the same command
may succeed later"""
INCONCLUSIVE = 4
"""a check could not tell, because other processes used the machine; the same command may tell on an
idle one"""
INTERRUPTED = 130
"""stopped by Ctrl-C (128 + SIGINT) or by the end of its job; all measurements are stored"""
