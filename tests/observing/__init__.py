"""Tests of autotune.observing."""
