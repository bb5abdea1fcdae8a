"""Every operation takes the same parameters with the same defaults in the REST route, both clients,
the local source, the command and the tool for agents.

The client's method is the pattern. What differs on purpose is in `DIFFERENCES`, with the reason.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

import pytest

from autotune import ports
from autotune.cli.commands import annotate, best, export, jobs, plan, review
from autotune.cli.source import LocalSource
from autotune.client import AsyncClient, Client
from autotune.client.operations import Operations
from autotune.mcp.spec_tools import SpecTools
from autotune.mcp.study_tools import SteeringTools, StudyTools
from autotune.results.question import Question
from autotune.service.http.app import ROOT, create_app
from autotune.service.options import ServiceOptions
from autotune.store import MemoryStore

REQUIRED = "required"
Parameters = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation. Several may share a command."""

    method: str
    """of the clients, and of the local source unless `only_served`"""
    route: str
    command: Callable[..., Any] | None = None
    tools: tuple[Callable[..., Any], ...] = ()
    only_served: str = ""
    """why the local source does not have it"""


COMPUTED = "commands compute it themselves, with dry runs and files of this machine"

OPERATIONS = (
    Operation(
        method="submit",
        route="POST /studies",
        command=jobs.submit,
        tools=(SteeringTools.submit_study,),
    ),
    Operation(
        method="studies",
        route="GET /studies",
        command=jobs.list_,
        tools=(StudyTools.list_studies,),
    ),
    Operation(method="observed", route="GET /observed", command=jobs.list_),
    Operation(
        method="status",
        route="GET /studies/{study_id}",
        command=jobs.status,
        tools=(StudyTools.study_result,),
    ),
    Operation(method="record", route="GET /studies/{study_id}/record"),
    Operation(
        method="trials", route="GET /studies/{study_id}/trials", tools=(StudyTools.study_trials,)
    ),
    Operation(method="events", route="GET /studies/{study_id}/events"),
    Operation(
        method="act",
        route="POST /studies/{study_id}/{action}",
        command=jobs.pause,
        tools=(SteeringTools.steer_study,),
    ),
    Operation(method="notes", route="GET /studies/{study_id}/notes", command=annotate.note),
    Operation(method="add_note", route="POST /studies/{study_id}/notes", command=annotate.note),
    Operation(
        method="remove_note",
        route="DELETE /studies/{study_id}/notes/{number}",
        command=annotate.note,
    ),
    Operation(method="tag", route="PATCH /studies/{study_id}/tags", command=annotate.tag),
    Operation(method="deletion", route="GET /studies/{study_id}/deletion", command=annotate.delete),
    Operation(method="delete", route="DELETE /studies/{study_id}", command=annotate.delete),
    Operation(method="best", route="GET /studies/{study_id}/best", command=best.best),
    Operation(
        method="best_across",
        route="GET /best",
        command=best.best,
        tools=(StudyTools.best_known,),
    ),
    Operation(
        method="explain",
        route="GET /studies/{study_id}/explain",
        command=best.explain,
        tools=(StudyTools.explain,),
    ),
    Operation(
        method="export",
        route="GET /studies/{study_id}/export/{trainer}",
        command=export.export,
        tools=(StudyTools.export_launch,),
    ),
    Operation(
        method="plan",
        route="POST /plan",
        command=plan.plan,
        tools=(SpecTools.plan, SpecTools.compare_clusters),
        only_served=COMPUTED,
    ),
    Operation(
        method="review",
        route="POST /review",
        command=review.review,
        tools=(SpecTools.review,),
        only_served=COMPUTED,
    ),
    Operation(method="health", route="GET /health", only_served="only a service has a health"),
)

DIFFERENCES: tuple[tuple[str, str, str, str], ...] = (
    # interface, operations, parameters (NEW=OLD where only the name differs), reason
    ("route", "status record trials", "if_none_match", "a header of HTTP: only what has changed"),
    ("route", "events", "last_event_id", "a header of event streams: `after` of a reconnection"),
    ("route", "export", "option=options", "a list of KEY=VALUE, as an address can hold it"),
    ("command", "submit", "key=idempotency_key", "an option is named after what it is"),
    ("command", "submit", "wait no_check", "they say what follows, and change the spec"),
    ("command", "studies observed", "observed", "it selects which of the two is listed"),
    ("command", "studies observed", "id", "`diagnose ID` shows one run"),
    ("command", "status plan", "verbose", "it says how much is printed"),
    ("command", "plan", "sort", "it says in which order rows are printed; programs sort them"),
    ("command", "act", "action", "each action is a command"),
    ("command", "notes add_note remove_note", "remove=number", "one command has all three"),
    ("command", "tag", "tags=add", "they are the command's words"),
    ("command", "deletion delete", "yes", "only a person is asked"),
    ("command", "best best_across", "top", "by default 10 of a target's ranking are printed"),
    ("command", "best best_across", "days=measured_after", "a person says how long ago"),
    ("command", "export", "to=trainer option=options", "the options' names in the contract"),
    ("command", "export", "trainer", "by default the study's own"),
    ("command", "export", "on", "the default is spelled out in the help"),
    ("command", "export", "output", "only a command writes files"),
    ("command", "plan", "train_tokens=tokens", "--tokens on the command line"),
    ("command", "plan", "spec model cluster seq_len batch trainer", "options may replace a spec"),
    ("command", "plan", "no_profile", "a service does no dry runs within a request"),
    ("command", "plan", "gpus", "`clusters` asks the same of any cluster"),
    ("command", "review", "target=files measured=measured_s", "it reads files of this machine"),
    (
        "command",
        "review",
        "train_tokens diff write everything kubeflow",
        "they say what is written, and how",
    ),
    ("tool", "submit", "idempotency_key", "an agent repeats calls, so it must choose a key"),
    ("tool", "studies", "limit", "an agent pays for each row"),
    ("tool", "best_across plan", "top", "an agent pays for each row"),
    ("tool", "trials", "version offset limit", "an agent reads a study in pages"),
    ("tool", "best_across", "model", "an agent asks about one model"),
    ("tool", "explain", "number=trial", "the name in the contract"),
    ("tool", "export", "on", "a job needs the folder that only the command writes"),
    ("tool", "plan", "train_tokens=tokens", "the name in the contract"),
    ("tool", "plan", "clusters", "a tool of its own, where they are required"),
    ("tool", "review", "train_tokens", "days and cost are in its text, which a service leaves out"),
)
PLACES = ("self", "store", "url", "folder", "json", "study", "study_id")
"""what says where a study is and how its answer is printed, which each interface does in its own
way"""
ELSEWHERE = {
    "pause resume stop cancel": "`act`, by a name of its own",
    "wait": "it asks for the status again and again",
    "/health/live /health/ready /metrics": "probes and scrapes",
    "/studies/{study_id}/figures": "`Client.result` draws them",
    "/studies/{study_id}/figures/{name}.csv /studies/{study_id}/figures/{name}.svg": "as above",
    "catalog legal_configs check_config": "they ask neither a store nor a service",
    "failure_log": "one trial of `trials`",
}
"""methods of the client, addresses and tools that are no operation of their own, and why"""


def plain(default: Any) -> Any:
    """A default. Nothing is spelled None, "", () or {}."""
    if default in (inspect.Parameter.empty, ...):
        return REQUIRED
    return default if isinstance(default, bool | int | float) else default or None


def of_function(function: Callable[..., Any]) -> Parameters:
    """Parameters of a method, a command or a tool."""
    names = {**vars(ports), **inspect.unwrap(function).__globals__}
    found: dict[str, Any] = {}
    for parameter in list(inspect.signature(function).parameters.values()):
        if parameter.kind is not parameter.VAR_KEYWORD:
            found[parameter.name] = plain(parameter.default)
        elif function is LocalSource.best_across:
            found |= {field.name: plain(field.default) for field in fields(Question)}
        else:
            (filters,) = eval(str(parameter.annotation), names).__args__
            found |= dict.fromkeys(get_type_hints(filters))
    return without_places(found)


def of_route(document: Mapping[str, Any], route: str) -> Parameters:
    """Parameters of an address in the OpenAPI document: in its path, query, headers and body. A
    spec is one parameter."""
    method, path = route.split()
    asked = document["paths"][ROOT + path][method.lower()]
    found: dict[str, Any] = {}
    for given in asked.get("parameters", ()):
        default = REQUIRED if given["required"] else given["schema"].get("default")
        found[given["name"].replace("-", "_").lower()] = plain(default)
    if "requestBody" in asked:
        content = asked["requestBody"]["content"]["application/json"]
        name = content["schema"]["$ref"].rpartition("/")[2]
        body = document["components"]["schemas"][name]
        known = {"spec": {}} if name == "StudyDocument" else body["properties"]
        required = known if name == "StudyDocument" else body.get("required", ())
        for key, schema in known.items():
            found[key] = REQUIRED if key in required else plain(schema.get("default"))
    return without_places(found)


def without_places(found: Parameters) -> Parameters:
    return {name: default for name, default in found.items() if name not in PLACES}


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    """The OpenAPI document of a service."""
    store = MemoryStore()
    with closing(store):
        return create_app(store, ServiceOptions(port=0)).openapi()


def check(
    interface: str, operations: Iterable[str], pattern: Parameters, found: Parameters
) -> None:
    """The parameters are those of the pattern, but for what the table says, all of which must be
    so."""
    rows = [
        row for row in DIFFERENCES if row[0] == interface and set(operations) & {*row[1].split()}
    ]
    words = [word for row in rows for word in row[2].split()]
    renamed = dict(word.split("=") for word in words if "=" in word)
    assert renamed.keys() <= found.keys(), f"{interface} of {operations}: stale in DIFFERENCES"
    found = {renamed.get(name, name): default for name, default in found.items()}
    differing = {
        name
        for name in pattern.keys() | found.keys()
        if pattern.get(name, "absent") != found.get(name, "absent")
    }
    reported = {word for word in words if "=" not in word}
    assert differing == reported, f"{interface} of {operations}"


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.method)
def test_parameters_are_the_same_everywhere(
    operation: Operation, described: dict[str, Any]
) -> None:
    pattern = of_function(getattr(Client, operation.method))
    assert of_function(getattr(AsyncClient, operation.method)) == pattern
    assert hasattr(LocalSource, operation.method) != bool(operation.only_served)
    if not operation.only_served:
        check(
            "source",
            [operation.method],
            pattern,
            of_function(getattr(LocalSource, operation.method)),
        )
    check("route", [operation.method], pattern, of_route(described, operation.route))
    if operation.tools:
        found: dict[str, Any] = {}
        for tool in operation.tools:
            found |= of_function(tool)
        check("tool", [operation.method], pattern, found)
    if operation.command is not None:
        sharing = [other for other in OPERATIONS if other.command is operation.command]
        shared: dict[str, Any] = {}
        for other in sharing:
            shared |= of_function(getattr(Client, other.method))
        if len(sharing) > 1:  # each needs only its own
            shared = {name: None if value == REQUIRED else value for name, value in shared.items()}
        check(
            "command", [other.method for other in sharing], shared, of_function(operation.command)
        )


def test_every_method_address_and_tool_is_compared_or_explained(described: dict[str, Any]) -> None:
    explained = {word for words in ELSEWHERE for word in words.split()}
    methods = {name for name in vars(Operations) if not name.startswith("_") and name != "url"}
    addresses = {path.removeprefix(ROOT) for path in described["paths"]}
    tools = {
        name
        for kind in (SpecTools, StudyTools, SteeringTools)
        for name in vars(kind)
        if not name.startswith("_")
    }
    compared = {operation.method for operation in OPERATIONS}
    compared |= {operation.route.split()[1] for operation in OPERATIONS}
    compared |= {tool.__name__ for operation in OPERATIONS for tool in operation.tools}
    assert (methods | addresses | tools) - compared == explained
