"""The peak memory of a rank: states, activations, logits and loss."""
