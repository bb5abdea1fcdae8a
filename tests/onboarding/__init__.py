"""Tests of autotune.onboarding."""
