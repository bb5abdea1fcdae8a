"""Nodes of a Ray cluster that run programs."""
