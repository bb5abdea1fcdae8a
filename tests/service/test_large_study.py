"""The page of a study with more trials than its figures are waited for."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.service.pages.study_page import MOST_WAITED_FOR
from autotune.service.pages.trial_table import PAGE
from tests.benchmarks.large_study import large_study
from tests.service.running import Service


@pytest.mark.slow
def test_the_figures_of_a_large_study_come_after_its_page(tmp_path: Path) -> None:
    with Service(tmp_path) as service:
        study = large_study(service.store, MOST_WAITED_FOR + 100)
        page = service.http.get(f"/studies/{study}").text
        assert f'data-from="/studies/{study}/figures"' in page
        assert "/static/live.js" in page
        assert "<svg" not in page
        assert page.count(f'<a href="/studies/{study}/trials/') == PAGE
        part = service.http.get(f"/studies/{study}/figures").text
        assert part.count("<figure") >= 10
        again = service.http.get(f"/studies/{study}").text  # they are drawn now
        assert again.count("<figure") == part.count("<figure")
        assert "data-from" not in again
