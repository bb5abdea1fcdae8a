"""TRL's GRPO."""
