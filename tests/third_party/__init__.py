"""A package of somebody else that extends autotune, and its tests."""
