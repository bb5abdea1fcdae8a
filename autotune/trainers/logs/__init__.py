"""Logs of programs as step metrics: formats, patterns and rates."""
