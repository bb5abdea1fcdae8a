"""Runs inside somebody's program: needs Python 3.8, and imports nothing but the standard library
until the program has imported torch."""
