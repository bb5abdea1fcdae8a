"""Megatron-Bridge, with what it shares with Megatron-LM in `autotune.trainers.megatron`."""
