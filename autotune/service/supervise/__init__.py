"""Running studies: each in a process of its own, or as a Ray job."""
