"""autotune's own training loop."""
