"""A launch is pasted in a real browser, its verdict is read, and one button makes the study that
tunes it."""

from __future__ import annotations

from typing import Any

from tests.browser.chromium import go
from tests.browser.test_buttons import logged_in
from tests.service.running import Service

LAUNCH = """#!/bin/bash
torchrun --nproc_per_node=8 run_clm.py --model_name_or_path meta-llama/Llama-3.1-8B \\
    --per_device_train_batch_size 1 --gradient_accumulation_steps 16 --block_size 4096 \\
    --gradient_checkpointing True --fsdp full_shard --bf16 True
"""


def test_a_pasted_launch_is_judged_and_tuned(browser: Any, tuning: Service) -> None:
    with logged_in(browser, tuning, tuning.token("submit")) as (seen, page):
        go(page, "/submit")
        page.get_by_label("Script, command").fill(LAUNCH)
        page.get_by_role("button", name="Review").click()
        page.get_by_text("missing: the GPUs to train on").wait_for()
        page.get_by_label("GPUs (--cluster)").fill("h200-sxm")
        page.get_by_role("button", name="Review").click()
        page.get_by_text("fits: ").wait_for()
        assert "--gradient_checkpointing False" in page.inner_text("#reviewed")
        assert page.get_by_label("Script, command").input_value() == LAUNCH
        page.get_by_role("button", name="Tune it").click()
        page.get_by_text("The spec below tunes the launch").wait_for()
        assert "meta-llama/Llama-3.1-8B" in page.get_by_label("Spec, in YAML").input_value()
        # the spec is checked as any other that stands there
        page.locator("#checked section").wait_for()
        assert seen.complaints == []
