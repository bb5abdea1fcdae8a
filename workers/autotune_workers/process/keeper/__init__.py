"""The keeper: the process between a runner and somebody's program."""
