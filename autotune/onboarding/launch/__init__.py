"""A launch script or a command: the program that it starts, and how."""
