"""Tests of autotune.trainers.readers."""
