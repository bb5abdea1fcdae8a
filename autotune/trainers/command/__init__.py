"""The command trainer: any program."""
