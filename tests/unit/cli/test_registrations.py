"""``klamm registrations report``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import klamm.admin
from klamm.cli import registrations
from klamm.dataframes.errors import ReadingError
from klamm.registration_report import main, report
from klamm.registration_report.restarts import reason_of


@pytest.mark.process
def test_report_gets_cluster_and_all_flags(
    klamm_broker: klamm.Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # given
    calls: list[tuple[str, dict[str, Any]]] = []

    def run(bootstrap_servers: str, _: Any, **how: Any) -> int:
        calls.append((bootstrap_servers, how))
        return 0

    monkeypatch.setattr(main, "run_report", run)
    (config := tmp_path / "client.properties").write_text("client.id=me")
    # when
    going_on = ["--follow", "--checkpoint", "c", "--late", "2 hours", "--command-config", str(config)]
    flags = ["--user", "alice", "--key", "acks", "--window", "1 hour", "--html", "r.html", "--parquet", "r"]
    code = registrations.main(
        ["report", "--bootstrap-server", klamm_broker.bootstrap_servers, "-o", "json", *flags, *going_on]
    )
    # then
    how = {
        "output_format": "json",
        "scope": report.Scope(user="alice", config="acks", window="1 hour"),
        "parquet": Path("r"),
        "html": Path("r.html"),
        "following": report.Following(every_s=10.0, checkpoint=Path("c"), late="2 hours"),
        "properties": {"client.id": "me"},
        "sightings": None,
    }
    assert (code, calls) == (0, [(klamm_broker.bootstrap_servers, how)])


@pytest.mark.process
@pytest.mark.parametrize("flags", [("--cluster", "dev"), ("--profile", "dev"), ()])
def test_report_takes_servers_and_properties_of_profile(
    flags: tuple[str, ...], klamm_broker: klamm.Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KLAMM_BOOTSTRAP_SERVER", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (home := tmp_path / "klamm").mkdir()
    servers = klamm_broker.bootstrap_servers
    (home / "config.toml").write_text(
        f'default = "dev"\n[clusters.dev]\nbootstrap_server = "{servers}"\ncommand_config = "dev.properties"\n'
    )
    (home / "dev.properties").write_text("client.id=me")
    calls: list[tuple[str, Any]] = []

    def run(bootstrap_servers: str, _: Any, **how: Any) -> int:
        calls.append((bootstrap_servers, how["properties"]))
        return 0

    monkeypatch.setattr(main, "run_report", run)
    assert registrations.main(["report", *flags]) == 0
    assert calls == [(servers, {"client.id": "me"})]


def client(
    client_id: str, registered: list[str] | None, software: str = "librdkafka", kinds: tuple[str, ...] = ("producer",)
) -> dict[str, Any]:
    return {
        "principal": "User:alice",
        "client_id": client_id,
        "software_name": software,
        "software_version": "2.6",
        "last_seen_ms": 5,
        "registered": registered,
        "kinds": list(kinds),
    }


def test_unregistered_clients_differ_from_clients_without_configs() -> None:
    # given
    clients = [client("old", None), client("new", ["acks"]), client("newest", [])]
    tools = [client("klamm-admin", None), client("report", None, "klamm"), client("", None, "unknown")]
    # when
    others = [client("admin", None, kinds=("admin",)), client("idle", None, kinds=())]
    unregistered = registrations.sightings([*clients, *tools, *others])
    # then
    old = report.Sighting(
        user="alice", client_id="old", software="librdkafka", version="2.6", seen_ms=5, kinds=("producer",)
    )
    assert unregistered == [old]


def test_unavailable_broker_keeps_last_clients(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given
    answers: dict[str, list[dict[str, Any]] | OSError] = {"a:1": [client("x", None)], "b:2": [client("y", None)]}

    def fetch(address: str) -> list[dict[str, Any]]:
        answer = answers[address]
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(registrations, "fetch", fetch)
    ask = registrations.sightings_of(list(answers))
    # when
    answers["a:1"] = [client("z", None)]
    answers["b:2"] = ConnectionError("refused")
    # then
    assert [sighting.client_id for sighting in ask()] == ["z", "y"]
    assert "b:2: refused" in capsys.readouterr().err


@pytest.mark.parametrize("error", [ConnectionError("refused"), TimeoutError("no answer within 15 s")])
def test_unavailable_cluster_is_named(
    error: OSError, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given
    def no_cluster(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(klamm.admin.AdminClient, "from_properties", no_cluster)
    # when
    code = registrations.main(["report", "--bootstrap-server", "127.0.0.1:9092"])
    # then
    assert code == 1
    assert capsys.readouterr().err == f"klamm registrations: 127.0.0.1:9092: {error}\n"


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["report"],
        ["report", "--bootstrap-server", "a:1", "-o", "yaml"],
        ["report", "--bootstrap-server", "a:1", "--checkpoint", "c"],
        ["report", "--bootstrap-server", "a:1", "--follow", "--every", "0"],
        ["report", "--bootstrap-server", "a:1", "--follow", "--every", "nan"],
        ["report", "--bootstrap-server", "a:1", "--html", "no/such/directory/page.html"],
    ],
)
def test_wrong_usage_ends_with_exit_code_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        registrations.main(words)
    assert exit_info.value.code == 2


@pytest.mark.process
def test_unreadable_records_are_reported_in_one_line(
    klamm_broker: klamm.Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given
    def run(*_: object, **__: object) -> int:
        raise ReadingError("t-0: reading it is not allowed")

    monkeypatch.setattr(main, "run_report", run)
    # when
    code = registrations.main(["report", "--bootstrap-server", klamm_broker.bootstrap_servers])
    # then
    assert (code, capsys.readouterr().err) == (1, "klamm registrations: t-0: reading it is not allowed\n")


def test_failed_task_reports_its_error() -> None:
    trace = "Job aborted\nTraceback:\n  File x\nklamm.dataframes.errors.ReadingError: t-0: gone\n\tat org.apache.spark"
    assert reason_of(trace) == "t-0: gone"
    assert reason_of("Out of something\n at y") == "Out of something"
