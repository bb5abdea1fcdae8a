"""The keeper: the process between a runner and a user's program."""
