"""The commands of the service: `serve`; `token create`, `list`, `revoke` and `audit`; and `mcp`,
which serves agents."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from autotune.cli.output import JsonOption, StoreOption, UrlOption, emit, note, print_table


def serve(
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option("--port", help="Port to listen on. Use 0 for any free port."),
    ] = 8600,
    store: StoreOption = None,
    max_studies: Annotated[
        int,
        typer.Option(
            "--max-studies",
            min=0,
            max=10_000,
            help="Maximum number of studies running at once on this host.",
        ),
    ] = 4,
    max_waiting: Annotated[
        int,
        typer.Option(
            "--max-waiting", min=1, max=10_000, help="Maximum number of waiting studies per owner."
        ),
    ] = 1000,
    runner: Annotated[
        str,
        typer.Option(
            "--runner",
            help="ray: run each study as a Ray job. local: run each study as a process on this machine, without Ray; specs may then use only the runners local and simulated.",
        ),
    ] = "ray",
    ray: Annotated[
        str,
        typer.Option(
            "--ray",
            metavar="URL",
            help="Ray dashboard of the cluster to join. Default: start Ray on this machine.",
        ),
    ] = "",
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-host",
            help="Additional host name that requests may use, such as a proxy's; may be repeated. Implies --require-token.",
        ),
    ] = None,
    public_url: Annotated[
        str,
        typer.Option(
            "--public-url",
            help="Public URL of the web pages, shown in the Ray dashboard. A non-local URL implies --require-token.",
        ),
    ] = "",
    require_token: Annotated[
        bool, typer.Option("--require-token", help="Require a token on this machine too.")
    ] = False,
    data_root: Annotated[
        list[Path] | None,
        typer.Option(
            "--data-root", help="Folder with files that specs may use as `data`; may be repeated."
        ),
    ] = None,
    program_root: Annotated[
        list[Path] | None,
        typer.Option(
            "--program-root",
            help="Folder with programs that callers with the `run` scope may use as a trainer's script; may be repeated. Implies --require-token. Default: none.",
        ),
    ] = None,
    program_user: Annotated[
        str,
        typer.Option(
            "--program-user",
            help="Run training programs as this user (requires root). Implies --require-token. Default: the service's own user.",
        ),
    ] = "",
    program_env: Annotated[
        list[str] | None,
        typer.Option(
            "--program-env",
            metavar="NAME",
            help="Environment variable to pass on to training programs; may be repeated.",
        ),
    ] = None,
    print_monitoring: Annotated[
        bool,
        typer.Option(
            "--print-monitoring",
            help="Print a Prometheus configuration for this machine, and exit.",
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Run the service: API, web pages and submitted studies.

    The service runs until Ctrl-C. Callers on other machines need a token (`autotune token create`).
    """
    from autotune.extras import require_extra

    require_extra("service", "the service")
    from autotune.service.http.access import access_summary
    from autotune.service.options import RUNNER_OPTIONS, ServiceOptions
    from autotune.service.server import serve as serve_until_stopped
    from autotune.spec.checks import one_of

    if print_monitoring:
        from autotune import assets
        from autotune.service.metrics.scrape_targets import prometheus_configuration

        print(prometheus_configuration(), end="")
        note(
            "save this as prometheus.yml and run: prometheus --config.file=prometheus.yml --web.listen-address=127.0.0.1:9090"
        )
        note(f"the Grafana dashboard is {assets.dashboards() / 'grafana' / 'autotune.json'}")
        return
    one_of("--runner", runner, ("ray", "local"))
    runners = {
        name: options
        for name, options in RUNNER_OPTIONS.items()
        if runner == "ray" or name != "ray"
    }
    options = ServiceOptions(
        host=host,
        port=port,
        max_studies=max_studies,
        max_queued_per_owner=max_waiting,
        way="ray" if runner == "ray" else "process",
        ray_address=ray,
        allowed_hosts=frozenset(allowed_host or ()),
        public_url=public_url,
        require_token=require_token,
        data_roots=tuple(data_root or ()),
        program_roots=tuple(program_root or ()),
        program_user=program_user,
        program_environment=tuple(program_env or ()),
        runners=runners,
    )

    def ready(url: str) -> None:
        access = access_summary(options)
        if json:
            emit({"url": url, "access": access})
        note(access)
        note(
            f"autotune is serving at {url}. Ctrl-C stops the service; running studies continue at the next start"
        )

    serve_until_stopped(options, store_url=store, on_ready=ready)


def create(
    scope: Annotated[
        str,
        typer.Option(
            "--scope",
            help="One of: read; submit (also submit and control your own studies); run (also submit programs in the service's program folders); admin (also control all studies).",
        ),
    ] = "submit",
    owner: Annotated[
        str,
        typer.Option(
            "--owner",
            help="Owner of the token and of the studies submitted with it. Default: your user name.",
        ),
    ] = "",
    expires: Annotated[
        str,
        typer.Option(
            "--expires", metavar="TIME", help="Lifetime, e.g. 90d or 12h. Default: unlimited."
        ),
    ] = "",
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Create a token and print it. The token is shown only once."""
    from autotune.cli.quantities import time_span_s
    from autotune.settings import user_name
    from autotune.store import open_store

    owner = owner or user_name()
    lifetime_s = time_span_s(expires, "--expires") if expires else None
    with closing(open_store(store)) as database:
        token, text = database.tokens.create(owner, scope, expires_in_s=lifetime_s)
        database.record_audit(
            "command line", "token.create", token.id, {"owner": owner, "scope": scope}
        )
    if json:
        emit({"token": text, **_token_document(token)})
        return
    note(
        f"token {token.id} for {token.owner}, scope {token.scope}; copy it now, it will not be shown again:"
    )
    print(text)


def list_(store: StoreOption = None, json: JsonOption = False) -> None:
    """List tokens, without their secrets."""
    from autotune.store import open_store

    with closing(open_store(store, create=False)) as database:
        tokens = [_token_document(token) for token in database.tokens.list()]
    if json:
        emit({"tokens": tokens})
        return
    if not tokens:
        note("this store has no tokens; choose another store with --store")
        return
    names = ("id", "owner", "scope", "created_at", "expires_at", "revoked_at")
    rows = [[str(token[name] or "")[:19].replace("T", " ") for name in names] for token in tokens]
    print_table([name.removesuffix("_at") for name in names], rows)


def revoke(
    token: Annotated[
        str, typer.Argument(metavar="ID", help="Id of the token, from `autotune token list`.")
    ],
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Revoke a token. The service rejects the token from then on."""
    from autotune.store import open_store

    with closing(open_store(store, create=False)) as database:
        revoked = database.tokens.revoke(token)
        database.record_audit("command line", "token.revoke", revoked.id)
    if json:
        emit({"token": _token_document(revoked)})
    else:
        note(f"token {revoked.id} of {revoked.owner} is revoked")


def audit(
    after: Annotated[
        int | None,
        typer.Option(
            "--after", min=0, help="Show lines after this number. Default: the newest lines."
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=1000, help="Number of lines to show.")
    ] = 100,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """List who did what, and which requests were rejected.

    The list shows the newest lines, oldest first.
    """
    from autotune.store import open_store

    with closing(open_store(store, create=False)) as database:
        events = database.audit_events(after=after, limit=limit)
    names = ("sequence", "at", "actor", "action", "subject", "data")
    lines = [
        {name: getattr(event, name) for name in names}
        | {"at": event.at.isoformat(), "data": dict(event.data)}
        for event in events
    ]
    if json:
        emit({"audit": lines})
        return
    if not lines:
        note("the audit log is empty")
        return
    rows = []
    for line in lines:
        details = " ".join(f"{key}={value}" for key, value in line["data"].items())
        rows.append(
            [
                str(line["sequence"]),
                line["at"][:19].replace("T", " "),
                line["actor"],
                line["action"],
                line["subject"],
                details,
            ]
        )
    print_table(("number", *names[1:]), rows)


def mcp(store: StoreOption = None, url: UrlOption = None, json: JsonOption = False) -> None:
    """Serve tools for agents (Model Context Protocol) over stdin and stdout.

    Agents can query valid configs, memory and predictions, and read results. With --url or AUTOTUNE_URL they can also submit studies to that service, if
    the token in AUTOTUNE_TOKEN allows it. --json affects only errors before the server starts.
    """
    from autotune.cli.source import LocalSource, open_source
    from autotune.extras import require_extra

    require_extra("mcp", "autotune mcp")
    from autotune.mcp import serve_stdio

    with open_source(store, url, missing="created") as source:
        local = source.store if isinstance(source, LocalSource) else None
        serve_stdio(source, store=local, may_submit=local is None)


def _token_document(token: Any) -> dict[str, Any]:
    """Return a token's public fields, with times in ISO 8601."""
    times = {name: getattr(token, name) for name in ("created_at", "expires_at", "revoked_at")}
    return {
        "id": token.id,
        "owner": token.owner,
        "scope": token.scope,
        **{name: at.isoformat() if at else None for name, at in times.items()},
    }
