"""The tools in a real session with the SDK's own client: in memory, and over stdin and stdout of
`autotune mcp`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp_types import CallToolResult

from autotune import api
from autotune.cli.source import LocalSource
from autotune.mcp import make_server
from autotune.ports import Store
from autotune.service.options import ServiceOptions
from autotune.spec import ParallelConfig
from autotune.store import MemoryStore
from tests.service.running import Service
from tests.small_studies import spec
from tests.study.test_target import target_spec

READING = {
    "catalog",
    "legal_configs",
    "check_config",
    "plan",
    "review",
    "compare_clusters",
    "list_studies",
    "study_result",
    "study_trials",
    "failure_log",
    "explain",
    "best_known",
    "export_launch",
}
STEERING = {"submit_study", "steer_study"}


@pytest.fixture(scope="module")
def finished() -> Iterator[tuple[Store, str]]:
    """A store with one study that ended."""
    store = MemoryStore()
    yield store, api.tune(spec(budget={"max_trials": 3, "min_gain": 0}), store=store).record.id
    store.close()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Service]:
    """A service that asks everybody for a token and runs no study."""
    with Service(
        tmp_path / "service", options=ServiceOptions(port=0, require_token=True)
    ) as running:
        yield running


def within(server: Any, use: Callable[[Client], Awaitable[Any]]) -> Any:
    """A session with a server in this process, or with the command that `server` names."""

    async def session() -> Any:
        async with Client(server, read_timeout_seconds=120) as client:
            return await use(client)

    return asyncio.run(session())


def ask(store: Store, tool: str, **arguments: Any) -> CallToolResult:
    """One call in a session of its own."""
    server = make_server(LocalSource(store), store=store, may_submit=False)
    return within(server, lambda client: client.call_tool(tool, arguments))


def answer(store: Store, tool: str, **arguments: Any) -> Any:
    """The structured content of one call, which must succeed."""
    result = ask(store, tool, **arguments)
    assert not result.is_error, result.content
    assert result.structured_content is not None
    found = result.structured_content
    return found["result"] if set(found) == {"result"} else found


def test_names_for_specs_are_listed(finished: tuple[Store, str]) -> None:
    names = answer(finished[0], "catalog")
    assert {"gpt2-medium", "llama-8b"} <= set(names["models"])
    assert {"native", "megatron"} <= set(names["trainers"])
    assert "tp" in names["knobs"]


@pytest.mark.thorough
def test_a_study_with_a_target_answers_with_the_targets_ranking() -> None:
    store = MemoryStore()
    study = api.tune(target_spec(budget={"max_trials": 2}), store=store).record.id
    report = answer(store, "study_result", study=study)
    assert report["best"] is None
    target = report["target"]
    assert (target["cluster"], target["num_gpus"], target["at_hand"]) == (
        "h100-sxm-4x8",
        32,
        "h100-sxm-1x8",
    )
    kept = store.study(study).result["target"]["configs"]
    assert [row["config"] for row in target["configs"]] == [
        str(ParallelConfig.from_dict(row["config"])) for row in kept
    ]
    ran = [row["proxies"] for row in kept]
    assert [row["proxies"] for row in target["configs"]] == ran
    assert any(ran)
    assert "2 proxies" in target["known"][0]
    assert answer(store, "check_config", spec=target_spec(), config=target["configs"][0]["config"])[
        "legal"
    ]
    store.close()


def test_valid_configs_are_counted_and_exclusions_explained(finished: tuple[Store, str]) -> None:
    space = answer(
        finished[0], "legal_configs", spec=spec(space={"tp": [1, 2, 4, 3], "precision": ["bf16"]})
    )
    assert space["legal"] == 3
    assert space["knobs"]["tp"] == [1, 2, 4]
    assert space["fixed"] == {}
    assert sum(space["excluded"].values()) > 0
    illegal = answer(finished[0], "check_config", spec=spec(space={"tp": [1, 3]}), config="tp=3")
    assert illegal["legal"] is False
    assert "tp" in illegal["reason"]
    assert illegal["predicted"] is None


def test_a_config_in_an_answer_is_a_valid_argument(finished: tuple[Store, str]) -> None:
    plan = answer(finished[0], "plan", spec=spec(), top=2)
    assert [row["rank"] for row in plan["configs"]] == [1, 2]
    first = plan["configs"][0]
    checked = answer(finished[0], "check_config", spec=spec(), config=first["config"])
    assert checked["legal"]
    assert checked["fits"]
    assert checked["config"] == first["config"]
    assert checked["predicted"] == first["predicted"]
    assert sum(checked["memory_parts_bytes"].values()) == pytest.approx(
        checked["predicted"]["peak_memory_bytes"], rel=1e-2
    )


def test_a_launch_is_reviewed_from_its_text(finished: tuple[Store, str]) -> None:
    text = "torchrun --nproc_per_node 8 t.py --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 1 --gradient_accumulation_steps 16 --gradient_checkpointing True --fsdp full_shard --block_size 4096 --bf16 True\n"
    found = answer(finished[0], "review", files={"run.sh": text}, cluster="h200-sxm")
    assert found["fits"]
    assert "recompute full -> none" in found["text"]
    assert found["edits"][0]["line"] == 1
    assert "--cluster" in answer(finished[0], "review", files={"run.sh": text})["missing"][0]


def test_a_plan_in_which_nothing_fits_has_remedies(finished: tuple[Store, str]) -> None:
    asked = spec(
        model="llama-70b",
        workload={"seq_len": 8192, "global_batch_size": 64},
        space={"precision": ["fp32"]},
    )
    plan = answer(finished[0], "plan", spec=asked)
    assert plan["configs"] == []
    assert "would need" in plan["nearest_miss"]
    assert plan["remedies"]


def test_assumptions_about_a_model_are_in_the_answers(finished: tuple[Store, str]) -> None:
    asked = spec(
        model="gemma-3-1b",
        workload={"seq_len": 2048, "global_batch_size": 64},
        space={"precision": ["bf16"]},
    )
    for found in (
        answer(finished[0], "plan", spec=asked),
        answer(finished[0], "check_config", spec=asked, config="micro_batch_size=1"),
    ):
        (said,) = found["assumed"]
        assert "all 2,048 tokens" in said
        assert "to 512" in said
    assert answer(finished[0], "plan", spec=spec())["assumed"] == []


def test_clusters_are_compared(finished: tuple[Store, str]) -> None:
    rows = answer(
        finished[0],
        "compare_clusters",
        spec=spec(),
        clusters=["h100-sxm", "a100-80gb"],
        train_tokens=1e9,
    )
    assert [row["num_gpus"] for row in rows] == [8, 8]
    assert rows[0]["days"] < rows[1]["days"]
    both = spec(space={"tp": [1], "precision": ["bf16", "fp8"]})
    rows = answer(finished[0], "compare_clusters", spec=both, clusters=["h100-sxm", "a100-80gb"])
    assert [row["lacking"] for row in rows] == [[], ["fp8"]]


def test_results_are_read(finished: tuple[Store, str]) -> None:
    store, study = finished
    result = api.result_of(store, study)
    report = answer(store, "study_result", study=study)
    assert report["best"]["config"] == str(result.best.config)
    assert report["speedup"] == result.speedup
    assert report["status"] == "COMPLETED"
    assert [s["id"] for s in answer(store, "list_studies", status="completed")] == [study]
    numbers = [t["number"] for t in answer(store, "study_trials", study=study, offset=1, limit=2)]
    assert numbers == [1, 2]
    assert report["best"] in answer(store, "study_trials", study=study), (
        "all tools give one figure for a config"
    )
    assert answer(store, "explain", study=study)
    launch = answer(store, "export_launch", study=study, trainer="megatron")
    assert "--tensor-model-parallel-size" in " ".join(launch["argv"])
    known = answer(store, "best_known", model="llama-8b", cluster="h100-sxm-1x8")
    assert known["source"] == "cost_model"
    assert known["configs"][0]["tokens_per_s"] is None


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("plan", {"spec": spec(modle="gpt2-medium")}, "model"),
        ("plan", {"spec": spec(model={"hf": "/etc/passwd"})}, "path"),
        ("check_config", {"spec": spec(), "config": "tensor=2"}, "tensor"),
        ("study_result", {"study": "none"}, "none"),
        ("list_studies", {"status": "sleeping"}, "stopping"),
        ("plan", {"spec": spec(), "top": 1000}, "100"),
        ("export_launch", {"study": "small", "trainer": "megatrn"}, "megatron"),
        ("failure_log", {"study": "small", "number": 0}, "did not fail"),
        ("failure_log", {"study": "small", "number": 99}, "no trial 99"),
        ("plan", {"spec": spec(), "tops": 2}, "plan has no argument 'tops'; did you mean top?"),
        ("catalog", {"kind": "models"}, "catalog has no argument 'kind'; arguments: none"),
        ("check_config", {"spec": spec()}, "config is required, but is missing"),
        (
            "plan",
            {"spec": spec(), "top": "x"},
            "top must be a whole number, but is 'x'",
        ),
        (
            "compare_clusters",
            {"spec": spec(), "clusters": ["h100-sxm"], "train_tokens": 1e300},
            "less than or equal to",
        ),
    ],
)
def test_mistakes_are_tool_errors_with_a_remedy(
    finished: tuple[Store, str], tool: str, arguments: dict[str, Any], words: str
) -> None:
    result = ask(finished[0], tool, **arguments)
    assert result.is_error
    assert words in result.content[0].text


def test_a_store_is_read_and_never_changed(finished: tuple[Store, str]) -> None:
    store, _ = finished

    async def use(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == READING
        assert all(
            tool.annotations.read_only_hint and tool.output_schema for tool in tools.values()
        )
        assert "duration of an optimizer step in seconds" in str(
            tools["check_config"].output_schema
        ), "fields are described"
        refused = await client.call_tool("submit_study", {"spec": spec(), "idempotency_key": "k"})
        assert refused.is_error

    within(make_server(LocalSource(store), store=store, may_submit=False), use)
    assert len(store.studies()) == 1


def test_an_agent_submits_over_stdin_and_stdout_as_its_token_allows(
    guarded: Service, tmp_path: Path
) -> None:
    async def use(client: Client) -> None:
        assert {tool.name for tool in (await client.list_tools()).tools} == READING | STEERING
        plan = await client.call_tool("plan", {"spec": spec(), "top": 1})
        assert plan.structured_content["configs"][0]["rank"] == 1
        made = await client.call_tool(
            "submit_study", {"spec": spec(name="by-agent"), "idempotency_key": "agent-1"}
        )
        assert not made.is_error, made.content
        again = await client.call_tool(
            "submit_study", {"spec": spec(name="by-agent"), "idempotency_key": "agent-1"}
        )
        assert again.structured_content["id"] == made.structured_content["id"]
        paused = await client.call_tool("steer_study", {"study": "by-agent", "action": "pause"})
        assert paused.structured_content["status"] == "PAUSED"

    names = ("PATH", "PYTHONPATH", "HOME")
    environment = {name: os.environ[name] for name in names if name in os.environ}
    command = StdioServerParameters(
        command=sys.executable,
        args=["-c", "from autotune.cli import main; main()", "mcp"],
        env={**environment, "AUTOTUNE_URL": guarded.url, "AUTOTUNE_TOKEN": guarded.token("submit")},
        cwd=tmp_path,
    )
    within(command, use)


def test_a_token_that_may_only_read_submits_nothing(guarded: Service) -> None:
    with guarded.client(guarded.token("read")) as source:
        server = make_server(source, store=None, may_submit=True)
        asked = {"spec": spec(), "idempotency_key": "agent-2"}
        refused = within(server, lambda client: client.call_tool("submit_study", asked))
    assert refused.is_error
    assert "scope" in refused.content[0].text
    assert guarded.store.studies() == []


def test_the_documentation_lists_every_tool() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "agents.md").read_text(encoding="utf-8")
    listed = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    assert listed == READING | STEERING
