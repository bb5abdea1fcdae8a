"""One file per step, named after the version that it leads to. A step never changes after a
release."""
