"""`autotune mcp`: tools for agents over the Model Context Protocol."""

from __future__ import annotations

from autotune.cli.output import JsonOption, StoreOption, UrlOption


def mcp(store: StoreOption = None, url: UrlOption = None, json: JsonOption = False) -> None:
    """Serve tools for agents (Model Context Protocol) over stdin and stdout.

    Agents can query valid configs, memory and predictions, and read results. With --url or AUTOTUNE_URL they can also submit studies to that service, if
    the token in AUTOTUNE_TOKEN allows it. --json affects only errors before the server starts.
    """
    from autotune.cli.source import LocalSource, open_source
    from autotune.extras import require_extra

    require_extra("mcp", "autotune mcp")
    from autotune.mcp import serve_stdio

    with open_source(store, url) as source:
        local = source.store if isinstance(source, LocalSource) else None
        serve_stdio(source, store=local, may_submit=local is None)
