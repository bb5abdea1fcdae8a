"""Tests of autotune.onboarding."""

import pytest

pytest.register_assert_rewrite("tests.onboarding.drafting")
