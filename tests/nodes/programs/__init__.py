"""Training scripts as people have them: none knows of us, each is started by torchrun. What they
train is tiny."""
