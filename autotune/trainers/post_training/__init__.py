"""What trainers of post-training share."""
