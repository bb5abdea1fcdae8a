"""Training scripts as people have them, each with the spec that tunes it as it is. None knows of
autotune; what they train is tiny."""
