"""The Ray cluster itself: joined, or started and ended, and how much of it is free."""
