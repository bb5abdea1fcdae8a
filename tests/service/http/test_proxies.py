"""Behind a proxy strangers come from loopback: nobody does anything without a token then. Real
processes, behind a real nginx where there is one, and behind a stand-in that sends what nginx
sends. The service and the file of nginx are those of the page on operations."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from autotune import cli
from autotune.service.http.access import access_summary
from autotune.service.options import ServiceOptions, is_loopback
from autotune.store import open_store
from autotune_workers.process.machine import free_port
from tests.docs.pages import ROOT, blocks, commands
from tests.service.running import API, DEADLINE_S, Service, bearer, spec, until
from tests.service.served import serving

NAME = "tune.example.com"
HOW = "nginx is not installed; run `bash .ci/install-services` (as root) to run these tests"
PLAIN = "server { listen 443 ssl; ssl_certificate x; ssl_certificate_key x; location / { proxy_pass http://127.0.0.1:8600; } }"
"""what people write first: nginx adds no header, and the host that it asks for is the service's
address"""
(DOCUMENTED,) = (
    block.text for block in blocks(ROOT / "docs/operations.md") if block.language == "nginx"
)
WAYS = ("nginx", "stand-in")


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """A proxy, as its clients see it."""

    url: str
    """where it listens"""

    def ask(self, method: str, path: str, *, token: str = "", **more: Any) -> httpx.Response:
        """A request of a stranger, or of the owner of a token."""
        headers = {"Host": NAME, **(bearer(token) if token else {}), **more.pop("headers", {})}
        with httpx.Client(verify=False, timeout=DEADLINE_S, trust_env=False) as client:
            return client.request(method, self.url + path, headers=headers, **more)


def is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


@contextlib.contextmanager
def nginx(configuration: str, folder: Path, backend: str) -> Iterator[Front]:
    """nginx with that server block, except for its ports and files."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None or shutil.which("openssl") is None:
        pytest.skip(HOW)
    folder.mkdir(parents=True, exist_ok=True)
    key, certificate, port = folder / "key.pem", folder / "certificate.pem", free_port("127.0.0.1")
    subprocess.run(
        shlex.split(
            f"openssl req -x509 -newkey rsa:2048 -nodes -subj /CN={NAME} -days 2 -keyout {key} -out {certificate}"
        ),
        check=True,
        capture_output=True,
    )
    text = configuration.replace("http://127.0.0.1:8600", backend).replace(
        "listen 443", f"listen 127.0.0.1:{port}"
    )
    text = re.sub(r"(ssl_certificate) [^;]+;", rf"\1 {certificate};", text)
    text = re.sub(r"(ssl_certificate_key) [^;]+;", rf"\1 {key};", text)
    temporary = " ".join(
        f"{kind}_temp_path {folder / kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder / 'pid'}; error_log {folder / 'log'};\n"
        f"events {{}}\nhttp {{ access_log off; {temporary}\n{text}\n}}\n",
        encoding="utf-8",
    )
    process = subprocess.Popen(
        [program, "-e", str(folder / "log"), "-c", str(folder / "nginx.conf")]
    )
    try:
        until(lambda: process.poll() is not None or is_listening(port))
        assert process.poll() is None, (folder / "log").read_text()
        yield Front(url=f"https://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


class StandIn(socketserver.StreamRequestHandler):
    """Sends one request on with the head that nginx would send
    (`test_the_fake_proxy_sends_the_same_requests_as_nginx`), and the answer back."""

    backend: tuple[str, int]
    documented: bool

    def handle(self) -> None:
        line, *fields = iter(self.rfile.readline, b"\r\n")
        headers = [tuple(field.decode("latin-1").strip().split(": ", 1)) for field in fields]
        given = {name.lower(): value for name, value in headers}
        own = {"Host": f"{self.backend[0]}:{self.backend[1]}"}
        if self.documented:
            own = {
                "Host": given["host"].partition(":")[0],
                "X-Forwarded-For": ", ".join(
                    filter(None, [given.get("x-forwarded-for", ""), "127.0.0.1"])
                ),
                "X-Forwarded-Proto": "https",
            }
        method, path, _ = line.decode("latin-1").split()
        kept = {
            n: v
            for n, v in headers
            if n.lower() not in {"connection", *(name.lower() for name in own)}
        }
        version = "1.1" if self.documented else "1.0"
        lines = [f"{method} {path} HTTP/{version}"]
        lines += [
            f"{name}: {value}" for name, value in {**own, "Connection": "close", **kept}.items()
        ]
        body = self.rfile.read(int(given.get("content-length", "0")))
        with socket.create_connection(self.backend, timeout=DEADLINE_S) as raw:
            raw.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
            with contextlib.suppress(OSError):
                while data := raw.recv(65536):
                    self.wfile.write(data)


@contextlib.contextmanager
def stand_in(configuration: str, folder: Path, backend: str) -> Iterator[Front]:
    place = urlsplit(backend)
    handler = type(
        "Handler",
        (StandIn,),
        {"backend": (place.hostname, place.port), "documented": configuration == DOCUMENTED},
    )
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield Front(url=f"http://127.0.0.1:{server.server_address[1]}")
        finally:
            server.shutdown()
            thread.join()


def front(
    way: str, configuration: str, folder: Path, backend: str
) -> contextlib.AbstractContextManager[Front]:
    return (nginx if way == "nginx" else stand_in)(configuration, folder, backend)


def documented_options() -> list[str]:
    """The options of the page's `serve` behind a proxy."""
    lines = [
        c.line
        for b in blocks(ROOT / "docs/operations.md")
        if b.language == "console"
        for c in commands(b)
    ]
    (line,) = (
        line for line in lines if line.startswith("autotune serve") and "--allowed-host" in line
    )
    options = shlex.split(line.removeprefix("autotune serve"))
    assert options[:2] == ["--runner", "local"]  # `served` gives this itself
    return options[2:]


@pytest.fixture(scope="module")
def unaware(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A service that was told of no outside."""
    with serving(tmp_path_factory.mktemp("unaware")) as (_, said):
        yield said


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The service of the page, with a folder of programs too, and an admin's token."""
    folder = tmp_path_factory.mktemp("told")
    store = open_store(folder / "results.db")
    token = store.tokens.create("ann", "admin")[1]
    store.close()
    (folder / "programs").mkdir()
    (folder / "programs" / "train.py").write_text("print('hello')\n", encoding="utf-8")
    with serving(folder, *documented_options(), "--program-root", str(folder / "programs")) as (
        _,
        said,
    ):
        yield said | {"token": token}


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_a_plain_proxy_pass_admits_no_strangers(
    unaware: dict[str, str], way: str, tmp_path: Path
) -> None:
    url = unaware["url"]
    # of this machine
    assert httpx.get(f"{url}{API}/studies", timeout=DEADLINE_S, trust_env=False).status_code == 200
    with front(way, PLAIN, tmp_path, url) as proxy:
        strangers_are_refused(proxy)
        assert (
            httpx.get(f"{url}{API}/studies", timeout=DEADLINE_S, trust_env=False).json()["studies"]
            == []
        )


@pytest.mark.thorough
@pytest.mark.skipif(os.geteuid() != 0, reason="only root's nginx has workers of another user")
def test_a_proxy_without_headers_is_recognized_by_its_user(
    unaware: dict[str, str], tmp_path: Path
) -> None:
    """HTTP/1.1 and no header of its own: nothing in the request tells it from a client of this
    machine."""
    silent = PLAIN.replace(
        "proxy_pass", 'proxy_http_version 1.1; proxy_set_header Connection ""; proxy_pass'
    )
    with front("nginx", silent, tmp_path, unaware["url"]) as proxy:
        strangers_are_refused(proxy)


@pytest.mark.thorough
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a program of another user")
def test_programs_of_other_users_need_a_token(unaware: dict[str, str]) -> None:
    ask = f"""
import encodings.idna, http.client, os, socket, sys, urllib.error, urllib.request
urllib.request.build_opener()
os.setuid(int(sys.argv[1]))  # once all that it imports is there: another user may not read this Python
try:
    print(urllib.request.urlopen("{unaware["url"]}{API}/studies").status)
except urllib.error.HTTPError as error:
    print(error.status, error.read().decode())
"""
    output = [
        subprocess.run(
            [sys.executable, "-c", ask, user], capture_output=True, text=True, check=True
        ).stdout
        for user in ("0", "65534")
    ]
    assert output[0].strip() == "200"
    assert output[1].startswith("401 ")
    assert "another user of this machine" in output[1]


@pytest.mark.thorough
@pytest.mark.parametrize("configuration", [PLAIN, DOCUMENTED], ids=["plain", "documented"])
@pytest.mark.parametrize("way", WAYS)
def test_the_documented_service_only_admits_tokens(
    told: dict[str, str], way: str, configuration: str, tmp_path: Path
) -> None:
    url, token = told["url"], told["token"]
    with front(way, configuration, tmp_path, url) as proxy:
        strangers_are_refused(proxy)
        assert proxy.ask("GET", f"{API}/studies", token=token).status_code == 200
        made = proxy.ask("POST", f"{API}/studies", token=token, json=spec(name=way))
        assert made.status_code == 201, made.text
        study = made.json()["study"]["id"]
        answer = proxy.ask(
            "GET",
            f"{API}/studies/{study}/events",
            token=token,
            headers={"Accept": "text/event-stream"},
        )
        assert "\nevent: end\n" in answer.text  # the stream reaches its end through the proxy
        assert proxy.ask("POST", f"{API}/studies/{study}/cancel").status_code == 401
        if configuration == DOCUMENTED:
            login = proxy.ask(
                "POST", "/login", data={"token": token}, headers={"Origin": f"https://{NAME}"}
            )
            assert (login.status_code, login.headers["location"]) == (303, "/studies")
            assert "; Secure" in login.headers["set-cookie"]


def strangers_are_refused(proxy: Front) -> None:
    """At reading, submitting, also a program, and at the pages; also where they say who they
    are."""
    program = spec(trainer={"kind": "hf_trainer", "script": "train.py"})
    lies: list[dict[str, str]] = [
        {},
        {"X-Forwarded-For": "127.0.0.1"},
        {"Connection": "x-forwarded-for, via, host"},
    ]
    for headers in lies:
        assert proxy.ask("GET", f"{API}/studies", headers=headers).status_code == 401, headers
        for body in (spec(), program):
            assert (
                proxy.ask("POST", f"{API}/studies", json=body, headers=headers).status_code == 401
            ), headers
        assert proxy.ask("GET", f"{API}/metrics", headers=headers).status_code == 401
        assert "checks" not in proxy.ask("GET", f"{API}/health", headers=headers).json()
        page = proxy.ask("GET", "/studies", headers=headers)
        assert (page.status_code, urlsplit(page.headers["location"]).path) == (303, "/login"), (
            headers
        )


@pytest.mark.thorough
@pytest.mark.parametrize("configuration", [PLAIN, DOCUMENTED], ids=["plain", "documented"])
def test_the_fake_proxy_sends_the_same_requests_as_nginx(
    configuration: str, tmp_path: Path
) -> None:
    heads = []
    for way in WAYS:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            with front(way, configuration, tmp_path / way, f"http://127.0.0.1:{port}") as proxy:
                asking = threading.Thread(
                    target=lambda proxy=proxy: proxy.ask(
                        "GET", "/x?y=1", headers={"X-Forwarded-For": "192.0.2.1"}
                    )
                )
                asking.start()
                raw, _ = listener.accept()
                with raw:
                    head = raw.makefile("rb")
                    lines = [line.decode().strip() for line in iter(head.readline, b"\r\n")]
                    raw.sendall(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
                    head.close()
                asking.join()
        heads.append((lines[0], {line.replace(str(port), "PORT") for line in lines[1:]}))
    assert heads[0] == heads[1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        ["--allowed-host", NAME],
        ["--public-url", f"https://{NAME}"],
        ["--public-url", NAME],
        ["--program-root", "/tmp"],
        ["--require-token"],
        ["--host", "0.0.0.0"],
    ],
    ids=lambda options: options[0],
)
def test_options_for_outside_callers_require_tokens(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        cli.run(
            [
                "serve",
                "--runner",
                "local",
                "--port",
                "0",
                "--store",
                str(tmp_path / "s.db"),
                *options,
            ]
        )
        == 2
    )
    output = capsys.readouterr().err
    assert f"a service with {options[0]}" in output
    assert "autotune token create" in output


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"allowed_hosts": frozenset({"localhost", "127.0.0.1"})},
        {"public_url": "http://localhost:8600"},
    ],
)
def test_a_local_service_requires_no_tokens(options: dict[str, Any]) -> None:
    of_here = ServiceOptions(**options)
    assert of_here.token_reason == ""
    assert "need no token" in access_summary(of_here)


@pytest.mark.thorough
def test_the_start_prints_the_access_rules(unaware: dict[str, str], told: dict[str, str]) -> None:
    assert "need no token" in unaware["access"]
    assert (
        f"every caller needs a token, even on this machine (--allowed-host {NAME})"
        in told["access"]
    )


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Forwarded-For": "127.0.0.1"},
        {"X-Forwarded-Proto": "https"},
        {"X-Forwarded-Host": "localhost"},
        {"X-Forwarded-Anything": "1"},
        {"Forwarded": "for=127.0.0.1"},
        {"Via": "1.1 proxy"},
        {"X-Real-IP": "127.0.0.1"},
        {"CF-Connecting-IP": "127.0.0.1"},
        {"Tailscale-User-Login": "a@example.com"},
        {"X-Original-Host": "localhost"},
    ],
    ids=lambda headers: next(iter(headers)),
)
def test_a_proxy_header_makes_a_request_untrusted(
    service: Service, headers: dict[str, str]
) -> None:
    answer = service.http.get(f"{API}/studies", headers=headers)
    assert answer.status_code == 401
    assert "came through a proxy" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("localhost.", 200),
        ("127.0.0.1:8600", 200),
        ("127.8.8.8", 200),
        ("[::1]:80", 200),
        ("[::ffff:127.0.0.1]", 200),
        ("[::ffff:192.0.2.1]", 421),
        ("localhost.example.com", 421),
        ("127.0.0.1.example.com", 421),
        ("127.1", 421),
        ("0.0.0.0", 421),
    ],
)
def test_hosts_of_this_machine_are_trusted(service: Service, host: str, status: int) -> None:
    assert service.http.get(f"{API}/studies", headers={"Host": host}).status_code == status


def test_an_allowed_host_without_a_proxys_header_is_not_trusted(tmp_path: Path) -> None:
    with Service(
        tmp_path, options=ServiceOptions(port=0, allowed_hosts=frozenset({NAME}))
    ) as service:
        for host in (NAME, "localhost"):
            assert service.http.get(f"{API}/studies", headers={"Host": host}).status_code == 401, (
                host
            )


def test_old_http_is_not_trusted(service: Service) -> None:
    connection = HTTPConnection(*service.address, timeout=DEADLINE_S)
    connection._http_vsn, connection._http_vsn_str = 10, "HTTP/1.0"  # type: ignore[attr-defined]
    connection.request("GET", f"{API}/studies", headers={"Host": "127.0.0.1"})
    answer = connection.getresponse()
    assert (answer.status, json.load(answer)["error"]["kind"]) == (401, "unauthorized")
    connection.close()


def test_only_loopback_addresses_are_local() -> None:
    assert all(
        map(
            is_loopback,
            ("localhost", "127.0.0.1", "::1", "[::1]", "::ffff:127.0.0.1", "localhost."),
        )
    )
    assert not any(
        map(
            is_loopback,
            ("", "172.17.0.1", "0.0.0.0", "::", "::ffff:10.0.0.1", "unix:/x", "example.com"),
        )
    )
