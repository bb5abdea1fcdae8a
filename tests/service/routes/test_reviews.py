"""Reviews over HTTP: from texts alone, whatever they name."""

from __future__ import annotations

import html
import re
from pathlib import Path

import yaml

from tests.service.running import API, Service


def test_a_launch_is_reviewed_from_texts_alone(service: Service, tmp_path: Path) -> None:
    launch = "torchrun --nproc_per_node 8 {} --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 1 --gradient_accumulation_steps 16 --gradient_checkpointing True --fsdp full_shard --block_size 4096 --bf16 True\n"
    asked = {"files": {"run.sh": launch.format("t.py")}, "cluster": "h200-sxm"}
    found = service.http.post(f"{API}/review", json=asked).json()
    assert found["fits"] is True
    assert found["edits"][0]["lines"][0]["file"] == "run.sh"
    secret = tmp_path / "secret.py"
    secret.write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--only-known-here', default=3)\n"
    )
    spelled = [
        str(secret),
        str(secret).replace("/", '/""', 1),
        f"$'{str(secret).replace('/', chr(92) + 'x2f')}'",
    ]
    for path in spelled:
        answer = service.http.post(
            f"{API}/review", json={**asked, "files": {"run.sh": launch.format(path)}}
        )
        assert answer.status_code < 500
        assert "only-known-here" not in answer.text.replace("_", "-")
    spec_text = 'model: {hf: "\\x2fetc\\x2fhostname"}\ncluster: h100-sxm-1x8\nworkload: {seq_len: 128, global_batch_size: 8}\n'
    assert (
        service.http.post(f"{API}/review", json={"files": {"study.yaml": spec_text}}).status_code
        == 422
    )
    for body in (
        {"files": {}},
        {"files": {"../a.sh": "x"}},
        {"files": {"a.sh": "echo"}},
        {"filez": {}},
    ):
        answer = service.http.post(f"{API}/review", json=body)
        assert answer.status_code == 422
        assert answer.json()["error"]["message"]


LAUNCH = """#!/bin/bash
torchrun --nproc_per_node=8 run_clm.py --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 1 \\
    --gradient_accumulation_steps 16 --gradient_checkpointing True --fsdp full_shard --bf16 True
"""


def test_a_new_study_starts_with_a_review_whose_button_makes_the_spec(
    service: Service,
) -> None:
    page = service.http.get("/submit").text
    fields = {
        name: found[1]
        for name in ("form_token", "number")
        if (found := re.search(rf'name="{name}" value="([0-9a-f]+)"', page))
    }
    before = len(service.store.studies())

    def sent(**more: str) -> str:
        answer = service.http.post("/submit/review", data={**fields, "launch": LAUNCH, **more})
        assert answer.status_code == 200
        return html.unescape(answer.text)

    assert "missing: the GPUs to train on" in sent(seq_len="4096")
    fields_texts = {"cluster": "h200-sxm", "seq_len": "4096"}
    text = sent(**fields_texts)
    for part in (
        "llama-8b (8.03G) on 8 x h200-sxm",
        "fits: ",
        "recompute full -> none",
        "--gradient_checkpointing False",
    ):
        assert part in text
    assert "my-first-study" in text, "the spec below stays until its button is pressed"
    tuned = re.search(
        r'<textarea id="spec"[^>]*>\n(.*?)</textarea>', sent(**fields_texts, tune="1"), re.DOTALL
    )
    assert tuned
    spec = yaml.safe_load(tuned[1])
    assert (spec["model"], spec["cluster"]) == ("meta-llama/Llama-3.1-8B", "h200-sxm-1x8")
    assert spec["workload"] == {"seq_len": 4096, "global_batch_size": 128, "loop": "hf_trainer"}
    assert "per_device_train_batch_size" in str(spec["trainer"])
    for wrong, words in (
        ({"seq_len": "many"}, "whole number"),
        ({"cluster": "x9"}, "x9"),
        ({"launch": "echo", "cluster": ""}, "does not start a recognizable Python program"),
    ):
        assert words in sent(**{**fields_texts, **wrong})
        assert 'class="problems"' in sent(**{**fields_texts, **wrong})
    assert len(service.store.studies()) == before


def test_a_spec_that_the_service_rejects_shows_where_to_run_it(service: Service) -> None:
    token = re.search(r'name="form_token" value="([0-9a-f]+)"', service.http.get("/submit").text)
    assert token

    def tuned(launch: str) -> str:
        fields = {"launch": launch, "cluster": "h100-sxm-1x8", "seq_len": "4096", "tune": "1"}
        answer = service.http.post("/submit/review", data={"form_token": token[1], **fields})
        return html.unescape(answer.text)

    own_program = tuned(LAUNCH)
    assert (
        "does not run trials of the trainer <code>command</code>, which starts your own program"
        in own_program
    )
    assert "run <code>autotune tune study.yaml</code> where your program is" in own_program
    torchtitan = tuned(
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\n'
        "seq_len = 8192\n[parallelism]\ntensor_parallel_degree = 2\n"
    )
    assert "then submit the spec." in torchtitan
    assert "This service does not run trials" not in torchtitan
