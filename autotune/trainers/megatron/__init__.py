"""Megatron-LM, and what Megatron-Bridge shares with it."""
