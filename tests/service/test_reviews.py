"""Reviews over HTTP: from texts alone, whatever they name."""

from __future__ import annotations

from pathlib import Path

from tests.service.running import API, Service


def test_a_launch_is_reviewed_from_texts_alone(service: Service, tmp_path: Path) -> None:
    launch = "torchrun --nproc_per_node 8 {} --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 1 --gradient_accumulation_steps 16 --gradient_checkpointing True --fsdp full_shard --block_size 4096 --bf16 True\n"
    asked = {"files": {"run.sh": launch.format("t.py")}, "cluster": "h100-sxm"}
    found = service.http.post(f"{API}/review", json=asked).json()
    assert found["fits"] is True
    assert found["edits"][0]["lines"][0]["file"] == "run.sh"
    secret = tmp_path / "secret.py"
    secret.write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--only-known-here', default=3)\n"
    )
    spelled = [str(secret), str(secret).replace("/", '/""', 1), f"$'{str(secret).replace('/', chr(92) + 'x2f')}'"]
    for path in spelled:
        answer = service.http.post(f"{API}/review", json={**asked, "files": {"run.sh": launch.format(path)}})
        assert answer.status_code < 500
        assert "only-known-here" not in answer.text.replace("_", "-")
    spec_text = (
        'model: {hf: "\\x2fetc\\x2fhostname"}\ncluster: h100-sxm-1x8\nworkload: {seq_len: 128, global_batch_size: 8}\n'
    )
    refused = service.http.post(f"{API}/review", json={"files": {"study.yaml": spec_text}})
    assert refused.status_code == 422
    for body in ({"files": {}}, {"files": {"../a.sh": "x"}}, {"files": {"a.sh": "echo"}}, {"filez": {}}):
        answer = service.http.post(f"{API}/review", json=body)
        assert answer.status_code == 422
        assert answer.json()["error"]["message"]
