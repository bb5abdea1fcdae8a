"""Running studies: each in its own process, or as a Ray job."""
