"""Ranks on a Ray cluster."""
