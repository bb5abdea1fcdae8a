"""A TrainJob is answered with a JSON patch or no change, and never refused; a stand-in for the API
server calls for it as Kubernetes does."""

from __future__ import annotations

import base64
import copy
import io
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.cli import run
from autotune.errors import SpecError
from autotune.reviews.kubeflow import PLUGIN, recommended
from autotune.reviews.reviewing import review_texts
from tests.shortcuts import file_with

ARGS = [
    "--model_name_or_path=meta-llama/Llama-3.1-8B",
    "--per_device_train_batch_size=1",
    "--gradient_accumulation_steps=8",
    "--gradient_checkpointing=True",
    "--fsdp=full_shard",
    "--block_size=4096",
    "--bf16=True",
]


def job(
    args: list[str] | None = None, *, plugin: str | None = "autotune", **trainer: Any
) -> dict[str, Any]:
    """A TrainJob on 8 GPUs that recomputes, of which there is no need on an H200."""
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "llama", "annotations": {} if plugin is None else {PLUGIN: plugin}},
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {
                "numNodes": 1,
                "numProcPerNode": 8,
                "command": ["python", "run_clm.py"],
                "args": ARGS if args is None else args,
                **trainer,
            },
        },
    }


def applied(document: Any, patch: list[dict[str, Any]]) -> Any:
    """The document with a JSON patch as the API server applies it."""
    done = copy.deepcopy(document)
    for operation in patch:
        *parents, last = [
            part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]
        ]
        place = done
        for part in parents:
            place = place[int(part)] if isinstance(place, list) else place[part]
        if isinstance(place, list) and last == "-":
            assert operation["op"] == "add"
            place.append(operation["value"])
        else:
            key = int(last) if isinstance(place, list) else last
            assert operation["op"] == "replace"
            assert place[key] != operation["value"]
            place[key] = operation["value"]
    return done


@dataclass
class ApiServer:
    """Admits TrainJobs as the API server of Kubernetes does: it asks the webhook, which here is the
    command, and checks what it answers."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def create(
        self, document: dict[str, Any], *, operation: str = "CREATE"
    ) -> tuple[dict[str, Any], list[str]]:
        """(the job as it is stored, warnings)."""
        asked = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
                "kind": {
                    "group": "trainer.kubeflow.org",
                    "version": "v1alpha1",
                    "kind": "TrainJob",
                },
                "operation": operation,
                "object": document,
                "oldObject": None,
                "dryRun": False,
            },
        }
        self.monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(asked)))
        assert run(["review", "--kubeflow", "-", "--cluster", "h200-sxm"]) == 0
        answer = json.loads(self.capsys.readouterr().out)
        assert (answer["apiVersion"], answer["kind"]) == (asked["apiVersion"], asked["kind"])
        response = answer["response"]
        assert response["uid"] == "705ab4f5-6393-11e8-b7cc-42010a800002"
        assert response["allowed"] is True
        if "patch" not in response:
            assert "patchType" not in response
            return document, response.get("warnings", [])
        assert response["patchType"] == "JSONPatch"
        return applied(document, json.loads(base64.b64decode(response["patch"]))), response.get(
            "warnings", []
        )


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> ApiServer:
    return ApiServer(monkeypatch, capsys)


def test_a_job_that_asks_for_it_is_created_with_the_better_arguments(server: ApiServer) -> None:
    before = job()
    after, (warning,) = server.create(before)
    assert "--gradient_checkpointing=False" in after["spec"]["trainer"]["args"]
    changed = [
        (a, b) for a, b in zip(ARGS, after["spec"]["trainer"]["args"], strict=False) if a != b
    ]
    assert all(a.split("=")[0] == b.split("=")[0] for a, b in changed)
    rest = copy.deepcopy(after)
    rest["spec"]["trainer"]["args"] = ARGS
    assert rest == before, "nothing but its arguments changes"
    assert "recompute full -> none" in warning
    found = review_texts({"job.yaml": yaml.safe_dump(after)}, cluster="h200-sxm")
    assert (found.config.recompute, found.config.global_batch_size) == ("none", 64)


@pytest.mark.parametrize(
    ("document", "operation", "words"),
    [
        (job(plugin=None), "CREATE", ""),
        (job(plugin="another"), "CREATE", ""),
        (job(), "UPDATE", "at creation"),
        (job(["--lr=1"]), "CREATE", "the launch lacks"),
        (job(command=["./train"]), "CREATE", "autotune: "),
        ({**job(), "spec": {"runtimeRef": {"name": "torch-distributed"}}}, "CREATE", "autotune: "),
        ({**job(), "spec": None}, "CREATE", "autotune: "),
    ],
)
def test_any_other_job_is_created_as_it_is(
    server: ApiServer, document: dict[str, Any], operation: str, words: str
) -> None:
    after, warnings = server.create(document, operation=operation)
    assert after == document
    assert words in "".join(warnings)
    assert bool(warnings) == bool(words)
    assert all(len(warning) <= 256 for warning in warnings)


def test_a_job_of_a_file_is_answered_with_its_patch_alone(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file_with(tmp_path / "job.yaml", yaml.safe_dump(job(plugin=None)))
    assert run(["review", "--kubeflow", str(path), "--cluster", "h200-sxm"]) == 0
    out, err = capsys.readouterr()
    patch = json.loads(out)
    assert {operation["op"] for operation in patch} <= {"replace", "add"}
    assert (
        "--gradient_checkpointing=False"
        in applied(job(plugin=None), patch)["spec"]["trainer"]["args"]
    )
    assert "predicted" in err


def test_a_job_at_its_best_is_answered_with_no_change() -> None:
    better = applied(job(), recommended(json.dumps(job()), cluster="h200-sxm")[0])
    answer, why = recommended(json.dumps(better), cluster="h200-sxm")
    assert answer == []
    assert "no edit is certain to be faster" in why


def test_an_option_that_the_job_lacks_is_appended_and_behind_a_shell_it_is_left_alone() -> None:
    spaced = [word for each in ARGS for word in each.split("=")]
    for args in (ARGS, spaced):
        answer, _ = recommended(json.dumps(job(args)), cluster="h200-sxm")
        assert answer, args
        found = review_texts(
            {"job.yaml": yaml.safe_dump(applied(job(args), answer))}, cluster="h200-sxm"
        )
        assert found.config.recompute == "none"
    shell = job(
        [" ".join(["torchrun --nproc-per-node=8 run_clm.py", *ARGS])], command=["bash", "-c"]
    )
    answer, _ = recommended(json.dumps(shell), cluster="h200-sxm")
    for operation in answer:
        assert operation["op"] == "replace"


def test_the_arithmetic_of_a_job_is_never_changed() -> None:
    args = [each for each in ARGS if each != "--bf16=True"]
    answer, _ = recommended(json.dumps(job(args)), cluster="h200-sxm")
    assert "bf16" not in json.dumps(answer)
    assert "fp16" not in json.dumps(answer)


@pytest.mark.parametrize("text", ["", "a: [", "kind: Pod", "[1, 2]", '{"kind": "AdmissionReview"}'])
def test_what_is_no_job_is_a_mistake_of_the_command_line(text: str) -> None:
    with pytest.raises(SpecError, match=r"TrainJob|YAML"):
        recommended(text)


def test_the_answer_of_the_documentation_is_what_its_job_gets() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/review.md").read_text()
    shown = re.search(
        r'```yaml title="trainjob.yaml"\n(.*?)```.*?```json\n(.*?)```', page, re.DOTALL
    )
    assert shown
    answer, _ = recommended(shown[1], cluster="h200-sxm")
    assert answer == json.loads(shown[2])
