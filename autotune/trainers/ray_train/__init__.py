"""A `TorchTrainer` of Ray Train."""
