"""The Ray cluster: joining, starting and ending it, and its free capacity."""
