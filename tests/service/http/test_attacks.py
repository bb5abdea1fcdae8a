"""Attacks on the service, each refused. RESULTS.md has the table."""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from autotune.errors import SpecError
from autotune.service.http.access import COOKIE
from autotune.service.options import Rate, ServiceOptions
from autotune.service.server import serve
from autotune.spec import StudyStatus
from autotune.store import open_store
from autotune.store.tables import tokens
from autotune.trainers import Option, trainer_names
from autotune.trainers import trainer as trainer_of
from tests.service.running import API, DEADLINE_S, Service, bearer, spec, until
from tests.service.served import served

MANY = Rate(per_s=1000.0, burst=1000)

CHANGES = [
    ("POST", f"{API}/studies"),
    ("POST", f"{API}/plan"),
    ("POST", f"{API}/studies/any/cancel"),
]
READS = [
    ("GET", f"{API}/{path}")
    for path in ("studies", "best", "metrics", "studies/any", "studies/any/events")
]


def kind(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["kind"]


@pytest.mark.parametrize(("method", "path"), CHANGES + READS)
def test_without_a_token_every_request_is_rejected(
    guarded: Service, method: str, path: str
) -> None:
    assert kind(guarded.http.request(method, path)) == (401, "unauthorized")
    assert guarded.http.request(
        method, path, headers=bearer("at_000000000000_" + "x" * 43)
    ).status_code in (401, 429)


def test_health_shows_strangers_only_its_status(guarded: Service) -> None:
    assert set(guarded.http.get(f"{API}/health").json()) == {"status", "version"}
    assert (
        "checks" in guarded.http.get(f"{API}/health", headers=bearer(guarded.token("read"))).json()
    )


@pytest.mark.parametrize(
    "text", ["at__", "at_x_", "Bearer", "at_\x7f_y", "a" * 5000, "at_%00_x", "at_../../_x"]
)
def test_malformed_tokens_are_wrong_tokens(guarded: Service, text: str) -> None:
    assert guarded.http.get(f"{API}/studies", headers=bearer(text)).status_code in (401, 429)


def test_revoked_and_expired_tokens_are_rejected_at_once(guarded: Service) -> None:
    token, text = guarded.store.tokens.create("ann", "admin")
    assert guarded.http.get(f"{API}/studies", headers=bearer(text)).status_code == 200
    guarded.store.tokens.revoke(token.id)
    assert guarded.http.get(f"{API}/studies", headers=bearer(text)).status_code in (401, 429)


def test_an_owner_cannot_control_another_owners_study(guarded: Service) -> None:
    ann, bob, root = (
        bearer(guarded.token(*who))
        for who in (("submit", "ann"), ("submit", "bob"), ("admin", "root"))
    )
    made = guarded.http.post(f"{API}/studies", json=spec(), headers=ann).json()["study"]
    assert made["owner"] == "ann"
    for action in ("pause", "resume", "stop", "cancel"):
        assert kind(guarded.http.post(f"{API}/studies/{made['id']}/{action}", headers=bob)) == (
            403,
            "forbidden",
        )
    assert (
        guarded.http.get(f"{API}/studies/{made['id']}", headers=bob).status_code == 200
    )  # a team shares what it supports
    assert guarded.http.post(f"{API}/studies/{made['id']}/cancel", headers=root).status_code == 200


def test_a_spec_cannot_set_its_owner_and_keys_are_per_owner(guarded: Service) -> None:
    ann, bob = bearer(guarded.token("submit", "ann")), bearer(guarded.token("submit", "bob"))
    assert (
        guarded.http.post(f"{API}/studies", json=spec(owner="bob"), headers=ann).status_code == 422
    )
    key = {"Idempotency-Key": "same"}
    first = guarded.http.post(f"{API}/studies", json=spec(), headers=ann | key).json()["study"][
        "id"
    ]
    assert (
        guarded.http.post(f"{API}/studies", json=spec(), headers=bob | key).json()["study"]["id"]
        != first
    )


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8600",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "",
        "[::1",
        "127.0.0.1:x",
    ],
)
def test_requests_for_other_hosts_are_rejected(service: Service, host: str) -> None:
    assert kind(service.http.get(f"{API}/studies", headers={"Host": host})) == (421, "host")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_pages_of_other_sites_change_nothing(
    service: Service, headers: dict[str, str], method: str, path: str
) -> None:
    assert kind(service.http.request(method, path, headers=headers)) == (403, "csrf")


def test_no_answer_lets_other_sites_read_it(service: Service) -> None:
    answer = service.http.options(
        f"{API}/studies",
        headers={"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"},
    )
    assert answer.status_code == 405
    found = service.http.get(f"{API}/studies", headers={"Origin": "https://evil.example"}).headers
    assert not [name for name in found if name.startswith("access-control")]
    assert found["x-frame-options"] == "DENY"
    assert "default-src 'none'" in found["content-security-policy"]


def test_a_cookie_alone_changes_nothing(guarded: Service) -> None:
    token = guarded.token("submit")
    cookie = {"Cookie": f"autotune_token={token}"}
    assert guarded.http.get("/studies", headers=cookie).status_code == 200
    assert kind(guarded.http.post(f"{API}/studies", json=spec(), headers=cookie)) == (403, "csrf")
    made = guarded.http.post(f"{API}/studies", json=spec(), headers=bearer(token)).json()["study"][
        "id"
    ]
    form = {"action": "cancel", "form_token": "0" * 64}
    assert guarded.http.post(f"/studies/{made}/act", data=form, headers=cookie).status_code == 403
    assert str(guarded.store.study(made).status) == "QUEUED"
    # an empty header must not pass for a token of a program, which needs no form token
    empty = cookie | {"Authorization": ""}
    assert kind(guarded.http.post(f"{API}/studies", json=spec(), headers=empty)) == (
        401,
        "unauthorized",
    )


def test_tokens_are_in_no_log_answer_or_address(
    guarded: Service, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    token = guarded.token("admin")
    texts = [
        guarded.http.get(path, headers=bearer(token)).text
        for path in (
            f"{API}/studies",
            f"{API}/nothing",
            f"{API}/metrics",
            f"{API}/health",
            "/studies",
        )
    ]
    texts += [guarded.http.get(f"{API}/studies", headers=bearer(token + "x")).text]
    captured = capfd.readouterr()
    ours = [r.getMessage() for r in caplog.records if r.name.startswith(("autotune", "uvicorn"))]
    secret = token.split("_", 2)[2]  # the secret may hold underscores itself
    assert secret not in "".join([*texts, captured.out, captured.err, *ours])
    assert secret not in str(
        [vars(t) if hasattr(t, "__dict__") else t for t in guarded.store.tokens.list()]
    )
    assert secret.encode() not in guarded.path.read_bytes()


@pytest.mark.parametrize(
    "path",
    [
        "/static/../../etc/passwd",
        "/static/%2e%2e/%2e%2e/etc/passwd",
        f"{API}/studies/..%2f..%2fetc%2fpasswd",
        f"{API}/studies/%2e%2e",
        f"{API}/studies/a%00b",
        f"{API}/studies/small/export/..%2f..%2fetc%2fpasswd",
        f"{API}/studies/small/export/__init__",
        f"{API}/studies/small/export/command%00",
    ],
)
def test_addresses_cannot_reach_files(service: Service, path: str) -> None:
    # a client library would tidy the path
    with socket.create_connection(service.address, timeout=DEADLINE_S) as raw:
        raw.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        head = raw.makefile("rb").read()
    assert head.split()[1] in (b"404", b"422")
    assert b"root:" not in head


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("model", {"model": "/etc/passwd"}),
        ("model", {"model": "../../secret/config.json"}),
        ("model", {"model": "http://169.254.169.254/latest/config.json"}),
        ("space", {"space": "../spaces/mine.yaml"}),
        ("space", {"space": "file:///etc/passwd.yaml"}),
        ("data", {"data": "/etc/passwd"}),
        ("data", {"data": "../../etc/passwd"}),
        ("data", {"data": "http://169.254.169.254/latest"}),
        ("data", {"data": "a\0b"}),
        ("runner", {"runner": "os.system"}),
        ("runner.address", {"runner": {"kind": "ray", "address": "ray://evil.example:10001"}}),
        ("runner.trial", {"runner": {"kind": "local", "trial": "os:system"}}),
        ("runner.clock", {"runner": {"kind": "simulated", "clock": "time.time"}}),
        ("runner.runtime_env", {"runner": {"kind": "ray", "runtime_env": {"pip": ["evil"]}}}),
        ("runner.capacity", {"runner": {"kind": "simulated", "capacity": "$(id)"}}),
        (
            "trainer",
            {
                "trainer": {
                    "kind": "command",
                    "argv": ["sh", "-c", "id"],
                    "metrics": {"step": "s (\\d+)"},
                }
            },
        ),
        ("searcher", {"searcher": "os.system"}),
        ("searcher", {"searcher": "optuna:../../x"}),
        ("name", {"name": "../../etc/cron.d/x"}),
        ("name", {"name": "$(reboot)"}),
        ("name", {"name": "<script>alert(1)</script>"}),
        ("seed", {"seed": 1 << 62}),
        ("workload.seq_len", {"workload": {"seq_len": 10**30, "global_batch_size": 64}}),
        ("budget.max_trials", {"budget": {"max_trials": 10**9}}),
        ("enqueue", {"enqueue": ["tp=1"] * 5000}),
    ],
)
def test_specs_reach_no_file_program_or_address(
    service: Service, field: str, changes: dict[str, Any]
) -> None:
    answer = service.http.post(f"{API}/studies", json=spec(**changes))
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert error["field"].startswith(field) or "2^63" in error["message"]
    assert "root:" not in answer.text


ONE_OF_EACH_REACH = {
    "deepspeed": [
        ("script", "/bin/sh"),
        ("script_args", ["-c", "id"]),
        ("cwd", "/root"),
        ("python", "/usr/bin/python3"),
        ("settings", {"tensorboard": {"output_path": "/etc/cron.d"}}),
        ("data", "/etc/passwd"),
        ("master_addr", "evil.example"),
        ("master_port", 22),
        ("working_dir", "upload"),
    ],
    "accelerate": [
        ("script", "../../bin/sh"),
        ("script_args", ["id"]),
        ("settings", {"main_process_ip": "evil.example"}),
    ],
    "hf_trainer": [
        ("settings", {"output_dir": "/etc"}),
        ("data", "../../etc/passwd"),
        ("python", "/bin"),
    ],
    "lightning": [
        ("script", "file:///bin/sh"),
        ("layer_class", "os.system"),
        ("batch_key", "trainer.callbacks[0].class_path=os.system"),
        ("data", "/proc/self/environ"),
    ],
    "megatron": [
        ("entrypoint", "/usr/bin/env"),
        ("data_path", "0.5 /etc/passwd 0.5 /etc/shadow"),
        ("tokenizer_type", "--save=/etc"),
        ("tokenizer_model", "https://evil.example/model"),
        ("settings", {"load": "/etc"}),
    ],
    "megatron_bridge": [
        ("recipe", "posix.system"),
        ("python", "/usr"),
        ("settings", {"checkpoint": {"save": "/etc"}}),
    ],
    "nanotron": [
        ("entrypoint", "/bin/sh"),
        ("dataset", "evil/dataset"),
        ("tokenizer", "/etc/passwd"),
    ],
    "torchtitan": [
        ("hf_assets_path", "/etc"),
        ("dataset_path", "/root/.ssh/id_rsa"),
        ("dataset", "c4'); __import__('os').system('id"),
        ("settings", {"experimental": {"custom_import": "os"}}),
    ],
    "native": [("working_dir", "upload")],
}
"""values of trainer options that reach beyond the spec, by trainer"""


@pytest.fixture(scope="module")
def running_programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Lets callers with the scope run name programs of plain file names; everybody needs a
    token."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "train.py").write_text("print('trains')")
    (folder / "data").mkdir()
    (folder / "data" / "corpus.bin").write_bytes(b"tokens")
    (folder / "link.py").symlink_to("/bin/sh")
    (folder / "venv" / "bin").mkdir(parents=True)
    (folder / "venv" / "bin" / "python").symlink_to("/usr/bin/python3")
    options = ServiceOptions(
        port=0,
        require_token=True,
        program_roots=(folder,),
        data_roots=(folder / "data",),
        write_rate=MANY,
    )
    with Service(tmp_path_factory.mktemp("running"), options=options) as running:
        yield running


@pytest.mark.thorough
@pytest.mark.parametrize("trainer", sorted(ONE_OF_EACH_REACH))
def test_options_of_a_trainer_reach_no_program_file_or_address(
    service: Service, running_programs: Service, trainer: str
) -> None:
    """Refused with every scope where the service has no program folder, and with the submit scope
    where it has one."""
    submit = bearer(running_programs.token("submit"))
    for name, value in ONE_OF_EACH_REACH[trainer]:
        asked = spec(trainer={"kind": trainer, name: value})
        answer = service.http.post(f"{API}/studies", json=asked)  # this machine's user: all scopes
        assert answer.status_code == 422, answer.text
        assert answer.json()["error"]["field"].startswith(f"trainer.{name}"), answer.text
        answer = running_programs.http.post(f"{API}/studies", json=asked, headers=submit)
        assert answer.status_code in (403, 422), answer.text
        assert answer.json()["error"]["field"].startswith(f"trainer.{name}"), answer.text
        assert "root:" not in answer.text
    assert running_programs.store.studies(status=StudyStatus.QUEUED) == []


@pytest.mark.parametrize(
    "text",
    ["/bin/sh", "../../../bin/sh", "link.py", "absent.py", "venv/bin/python/../../../../x", "a\0b"],
)
def test_the_scope_run_allows_only_programs_in_the_program_folder(
    running_programs: Service, text: str
) -> None:
    run = bearer(running_programs.token("run"))
    asked = spec(trainer={"kind": "deepspeed", "script": text})
    answer = running_programs.http.post(f"{API}/studies", json=asked, headers=run)
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "trainer.script")
    for refused in ({"python": "/usr/bin/python3"}, {"cwd": "/"}, {"data": "/etc/passwd"}):
        asked = spec(trainer={"kind": "deepspeed", "script": "train.py", **refused})
        answer = running_programs.http.post(f"{API}/studies", json=asked, headers=run)
        assert (answer.status_code, answer.json()["error"]["field"]) == (
            422,
            f"trainer.{next(iter(refused))}",
        )


def test_a_program_needs_the_scope_run_and_is_stored_by_its_resolved_path(
    running_programs: Service,
) -> None:
    (folder,) = running_programs.options.program_roots
    options = {"script": "train.py", "script_args": ["--flag"], "python": "venv", "data": "corpus"}
    asked = spec(trainer={"kind": "deepspeed", **options})
    submit, run = (bearer(running_programs.token(scope)) for scope in ("submit", "run"))
    assert kind(running_programs.http.post(f"{API}/studies", json=asked, headers=submit)) == (
        403,
        "forbidden",
    )
    assert kind(running_programs.http.post(f"{API}/plan", json=asked, headers=submit)) == (
        403,
        "forbidden",
    )
    made = running_programs.http.post(f"{API}/studies", json=asked, headers=run)
    assert made.status_code == 201, made.text
    stored = running_programs.store.study(made.json()["study"]["id"]).study.trainer_options
    wanted = {
        "script": str(folder / "train.py"),
        "python": str(folder / "venv"),
        "data": str(folder / "data" / "corpus"),
    }
    assert {name: stored[name] for name in wanted} == wanted
    assert stored["script_args"] == ["--flag"]
    running_programs.http.post(f"{API}/studies/{made.json()['study']['id']}/cancel", headers=run)


def test_every_option_of_every_trainer_declares_its_reach() -> None:
    silent = [
        f"{name}.{o.name}"
        for name in trainer_names()
        for o in trainer_of(name).options
        if o.reach is None
    ]
    assert silent == []


def test_an_option_without_a_declared_reach_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from autotune.service.http.specs import allowed_study

    deepspeed = trainer_of("deepspeed")
    secret = Option(name="secret", meaning="of a trainer of somebody else's")
    monkeypatch.setattr(type(deepspeed), "options", (*deepspeed.options, secret))
    options = ServiceOptions(program_roots=(Path("/"),))
    with pytest.raises(SpecError, match="does not declare whether it refers"):
        allowed_study(spec(trainer={"kind": "deepspeed", "secret": "x"}), options, may_run=True)


def test_data_must_be_in_its_folder_for_every_form_of_the_path(tmp_path: Path) -> None:
    root, secret = tmp_path / "data", tmp_path / "secret.txt"
    root.mkdir()
    secret.write_text("secret")
    (root / "good.txt").write_text("text to train on")
    (root / "link.txt").symlink_to(secret)
    (root / "loop").symlink_to(root / "loop")
    os.mkfifo(root / "pipe")
    options = ServiceOptions(port=0, data_roots=(root,))
    with Service(tmp_path / "service", options=options) as service:
        for text in (
            "link.txt",
            "../secret.txt",
            str(secret),
            "loop",
            "pipe",
            ".",
            "",
            "x" * 900,
            "~/secret.txt",
        ):
            answer = service.http.post(f"{API}/studies", json=spec(data=text))
            assert (answer.status_code, answer.json()["error"]["field"]) == (422, "data")
            assert "secret.txt" not in answer.text
        made = service.http.post(f"{API}/studies", json=spec(data="good.txt")).json()["study"]["id"]
        assert service.store.study(made).study.data == str((root / "good.txt").resolve())
        assert (
            service.http.post(f"{API}/studies", json=spec(data=str(root / "good.txt"))).status_code
            == 201
        )


def test_large_bodies_are_rejected(guarded: Service) -> None:
    admin = bearer(guarded.token("admin"))
    answer = guarded.http.post(f"{API}/studies", content=b"x" * 20_001, headers=admin)
    assert kind(answer) == (413, "too_large")

    def endless() -> Any:  # chunked: no Content-Length to look at
        for _ in range(100):
            yield b"y" * 1000

    answer = guarded.http.post(f"{API}/studies", content=endless(), headers=admin)
    assert kind(answer) == (413, "too_large")


@pytest.mark.thorough
def test_a_slow_client_is_disconnected(guarded: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    from autotune.service import server

    monkeypatch.setattr(server, "HEAD_TIMEOUT_S", 3.0)
    half_head = b"GET /api/v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
    half_body = b"POST /api/v1/studies HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 50\r\n\r\n{"
    raws = [socket.create_connection(guarded.address, timeout=DEADLINE_S) for _ in range(40)]
    try:
        for number, raw in enumerate(raws):
            raw.sendall(half_head if number % 2 else half_body)
        # the others are served meanwhile
        assert guarded.http.get(f"{API}/health").status_code == 200
        heads = [raw.makefile("rb").read() for raw in raws]  # returns when the service closes
    finally:
        for raw in raws:
            raw.close()
    assert all(not head or head.split()[1] == b"408" for head in heads)


def test_a_long_head_is_rejected(service: Service) -> None:
    with socket.create_connection(service.address, timeout=DEADLINE_S) as raw:
        raw.sendall(b"GET /api/v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: " + b"a" * 70_000)
        head = raw.makefile("rb").read()
    assert head.split()[1] in (b"400", b"431")


def test_too_frequent_requests_must_wait(tmp_path: Path) -> None:
    options = ServiceOptions(
        port=0, rate=Rate(per_s=0.01, burst=5), write_rate=Rate(per_s=0.01, burst=2)
    )
    with Service(tmp_path, options=options) as service:
        answers = [service.http.get(f"{API}/studies") for _ in range(6)]
        assert [a.status_code for a in answers] == [200] * 5 + [429]
        assert int(answers[-1].headers["retry-after"]) >= 1
        other = bearer(service.token("read"))
        # each caller has its own
        assert service.http.get(f"{API}/studies", headers=other).status_code == 200


@pytest.mark.thorough
def test_guessing_tokens_is_slowed_but_locks_nobody_out(tmp_path: Path) -> None:
    options = ServiceOptions(port=0, require_token=True, refusal_rate=Rate(per_s=0.001, burst=3))
    with Service(tmp_path, options=options) as service:
        # never seen before
        good = [bearer(service.token(scope)) for scope in ("read", "submit", "run", "admin")]
        codes = [
            service.http.get(f"{API}/studies", headers=bearer(f"at_{n:012x}_guess")).status_code
            for n in range(6)
        ]
        assert codes == [401] * 3 + [429] * 3
        login = {"data": {"token": "at_0_guess"}, "headers": {"Sec-Fetch-Site": "same-origin"}}
        assert service.http.post("/login", **login).status_code == 429
        for _ in range(3):
            assert [service.http.get(f"{API}/studies", headers=g).status_code for g in good] == [
                200
            ] * 4
        cookie = {"Cookie": f"{COOKIE}={service.token('read')}"}
        assert service.http.get("/studies", headers=cookie).status_code == 200
        assert service.http.post("/login", data={"token": service.token("read")}).status_code == 303


@pytest.mark.thorough
def test_valid_tokens_work_after_a_restart_while_strangers_guess(tmp_path: Path) -> None:
    """One of them is of an earlier release, whose slow hash is still in the store."""
    store: Any = open_store(tmp_path / "results.db")
    good = [store.tokens.create(scope, scope)[1] for scope in ("read", "submit", "run", "admin")]
    with store.database.write() as connection:
        name, secret = good[-1].split("_", 2)[1:]
        salt = connection.execute(tokens.select().where(tokens.c.id == name)).one().salt
        old = hashlib.scrypt(secret.encode(), salt=salt, n=1 << 14, r=8, p=1, dklen=32)
        connection.execute(tokens.update().where(tokens.c.id == name).values(hash=old))
    store.close()
    done = threading.Event()
    with (
        served(tmp_path, "--require-token") as (_, url),
        httpx.Client(base_url=url, timeout=DEADLINE_S) as http,
    ):
        refused: list[int] = []

        def guess() -> None:
            for number in itertools.count():
                if done.is_set():
                    return
                answer = http.post("/login", data={"token": f"at_{number:012x}_x"})
                refused.append(answer.status_code)

        strangers = [threading.Thread(target=guess) for _ in range(2)]
        for stranger in strangers:
            stranger.start()
        try:
            until(lambda: 429 in refused)
            for _ in range(5):
                codes = [
                    http.get(f"{API}/studies", headers=bearer(token)).status_code for token in good
                ]
                assert codes == [200] * 4
        finally:
            done.set()
            for stranger in strangers:
                stranger.join()
    assert set(refused) == {401, 429}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_outside_callers_need_a_token(host: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="token"):
        serve(ServiceOptions(host=host, port=0), store_url=str(tmp_path / "s.db"))


def test_a_yaml_alias_bomb_is_rejected(service: Service) -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"{b}: &{b} [{', '.join(['*' + a] * 9)}]"
        for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    began = time.monotonic()
    answer = service.http.post(
        f"{API}/studies", content="\n".join(lines), headers={"Content-Type": "application/yaml"}
    )
    assert answer.status_code == 422
    assert time.monotonic() - began < 60  # followed to its end it would take years


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['id']",
        "model: !!python/object/apply:subprocess.check_output [['id']]",
        "model: !!python/name:os.system",
        "x: !!binary gASVJQAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOUjAJpZJSFlFKULg==",
    ],
)
def test_yaml_tags_create_no_objects(service: Service, text: str) -> None:
    answer = service.http.post(
        f"{API}/studies", content=text, headers={"Content-Type": "application/yaml"}
    )
    assert answer.status_code == 422
    assert "uid=" not in answer.text


def test_pickles_are_not_specs(service: Service) -> None:
    import pickle

    for media in (
        "application/json",
        "application/yaml",
        "application/octet-stream",
        "application/x-python-pickle",
    ):
        answer = service.http.post(
            f"{API}/studies",
            content=pickle.dumps(spec(), protocol=4),
            headers={"Content-Type": media},
        )
        assert answer.status_code in (415, 422)
