"""Finds why a program failed, from its log and NCCL's flight recorder."""
