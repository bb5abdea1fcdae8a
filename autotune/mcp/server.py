"""Creates the server with its tools, and converts errors to tool errors.

An `AutotuneError` becomes a tool error with the rule, the values and the remedy, so that an agent
can fix its call. Any other exception is a bug of autotune: the SDK logs it to standard error, and
the agent only learns that the tool failed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from autotune.errors import AutotuneError
from autotune.extras import require_extra
from autotune.mcp.spec_tools import SpecTools
from autotune.mcp.study_tools import SteeringTools, StudyTools
from autotune.ports import Store

if TYPE_CHECKING:
    from mcp.server import MCPServer

    from autotune.cli.source import Source

INSTRUCTIONS = """autotune finds the fastest stable configuration (tp, pp, dp, micro-batch, precision, recomputation, ...) to train a model on a cluster.
Predictions need no hardware: `catalog` lists what a spec may use, `legal_configs` lists the valid
configs, `plan` ranks those that fit, and `check_config` explains one
config. `review` reads a launch without a spec.
`best_known` finds earlier measurements. `study_result` and `study_trials` read studies. Times are seconds, sizes bytes."""
MAY_SUBMIT = "`submit_study` runs real trials on the service, if the token allows it. `steer_study` pauses, resumes, stops or cancels a study."
READ_ONLY = "Studies are read-only. To submit studies, start this server with the address of a service (--url or AUTOTUNE_URL)."


def make_server(source: Source, *, store: Store | None, may_submit: bool) -> MCPServer[Any]:
    """Create the server for a source of studies. `store`: provides measured constants for predictions; `may_submit`: whether to include the tools that change studies.

    Raises `MissingExtraError` without the `mcp` extra.
    """
    require_extra("mcp", "autotune mcp")
    from mcp_types import ToolAnnotations

    from autotune import __version__
    from autotune.mcp.checking_server import CheckingServer

    server = CheckingServer(
        "autotune",
        instructions=f"{INSTRUCTIONS}\n{MAY_SUBMIT if may_submit else READ_ONLY}",
        version=__version__,
        log_level="WARNING",
    )
    specs, studies, steering = SpecTools(store), StudyTools(source), SteeringTools(source)
    read_tools: tuple[Callable[..., Any], ...] = (
        specs.catalog,
        specs.legal_configs,
        specs.check_config,
        specs.plan,
        specs.review,
        specs.compare_clusters,
        studies.list_studies,
        studies.study_result,
        studies.study_trials,
        studies.failure_log,
        studies.explain,
        studies.best_known,
        studies.export_launch,
    )
    for tool in read_tools:
        server.add_tool(
            _reporting(tool),
            annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
        )
    if may_submit:
        submits = ToolAnnotations(
            read_only_hint=False, destructive_hint=False, idempotent_hint=True
        )
        server.add_tool(_reporting(steering.submit_study), annotations=submits)
        steers = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True)
        server.add_tool(_reporting(steering.steer_study), annotations=steers)
    return server


def serve_stdio(source: Source, *, store: Store | None, may_submit: bool) -> None:
    """Serve over standard input and output until the input ends."""
    make_server(source, store=store, may_submit=may_submit).run("stdio")


def _reporting(tool: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a tool so that errors of the caller become tool errors."""
    from mcp.server.mcpserver.exceptions import ToolError

    @wraps(tool)
    def reporting(*arguments: Any, **named: Any) -> Any:
        try:
            return tool(*arguments, **named)
        except AutotuneError as error:
            raise ToolError(str(error)) from error

    return reporting
