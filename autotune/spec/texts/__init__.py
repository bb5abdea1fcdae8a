"""Quantities with units, values as text, usual names of knobs, secrets."""
