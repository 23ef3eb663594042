"""``klamm clients``: the table of connected clients, and one line per change."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from klamm.cli import clients
from tests.support.by_thread import replace_for_this_thread
from tests.support.processes import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator


def client(**facts: Any) -> dict[str, Any]:
    return {
        "principal": "User:alice",
        "client_id": "app",
        "software_name": "klamm-kafka-python",
        "software_version": "1.0",
        "host": "10.0.0.1",
        "kinds": ["producer"],
        "connections": 2,
        "last_seen_ms": 1_700_000_000_000,
        "registered": ["acks"],
        "effective": {"acks": "all"},
        "told": {"acks": "all"},
        "told_at_ms": 1_700_000_000_000,
        "ignored": [],
        "standing": "in line",
        **facts,
    }


PLAIN = client(
    client_id="old", software_name="librdkafka", registered=None, ignored=["acks"], standing="ignores", told=None
)
GONE = client(client_id="gone", connections=0)


class Broker(HTTPServer):
    answer: bytes = json.dumps({"version": 0, "at_ms": 1, "clients": [client(), PLAIN, GONE]}).encode()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Broker)
        is_clients_page = self.path == "/clients.json"
        self.send_response(200 if is_clients_page else 404)
        self.end_headers()
        self.wfile.write(self.server.answer if is_clients_page else b"")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def address(broker: Broker) -> str:
    return f"127.0.0.1:{broker.server_port}"


def test_list_shows_followed_and_ignored_configs(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    # when
    code = clients.main(["list", "--metrics", address(broker)])
    # then
    assert code == 0
    _, follows, ignores, summary = capsys.readouterr().out.splitlines()
    assert " ".join(follows.split()) == (
        "User:alice app producer klamm-kafka-python 1.0 10.0.0.1 x2 2023-11-14 22:13:20 [acks] acks=all - in line"
    )
    assert "unknown (never registered)" in ignores
    assert ignores.endswith("ignores acks")
    assert summary == "2 clients: 1 in line, 1 ignores"


def test_missing_gateway_process_fails_list(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    broker.answer = json.dumps({"version": 0, "at_ms": 1, "clients": [client()], "silent_processes": 1}).encode()
    assert clients.main(["list", "--metrics", address(broker)]) == 1
    assert "1 of its processes did not report" in capsys.readouterr().err


def test_list_is_limited_to_clients_out_of_line(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    # when
    code = clients.main(["list", "--metrics", address(broker), "--pending"])
    # then
    assert code == 0
    heading, ignores, summary = capsys.readouterr().out.splitlines()
    assert (heading.split()[0], ignores.split()[1], summary) == ("PRINCIPAL", "old", "2 clients: 1 in line, 1 ignores")
    # when
    code = clients.main(["list", "--metrics", address(broker), "--pending", "--client", "app"])
    # then
    assert (code, capsys.readouterr().out) == (0, "1 client: 1 in line\n")


def test_wait_returns_when_all_clients_follow(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    # given
    waiting = ["list", "--metrics", address(broker), "--interval", "0.01", "--wait"]
    assert clients.main([*waiting, "0.05"]) == clients.EXIT_NOT_IN_LINE, "one ignores a config"
    assert clients.main([*waiting, "0.05", "--user", "bob"]) == clients.EXIT_NOT_IN_LINE, "there is no such client"
    assert clients.main([*waiting, "30", "--client", "app"]) == 0
    # when
    behind = json.dumps({"version": 0, "at_ms": 1, "clients": [client(standing="pending")]}).encode()
    in_line, broker.answer = Broker.answer.replace(b'"ignores"', b'"in line"'), behind
    timer = threading.Timer(0.1, setattr, (broker, "answer", in_line))
    timer.start()
    capsys.readouterr()
    # then
    assert clients.main([*waiting, "30"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 clients: 2 in line"
    timer.join()


def test_disconnected_clients_are_shown_on_request(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    # when
    clients.main(["list", "--metrics", address(broker), "--gone", "--client", "gone", "-o", "json"])
    # then
    assert [client_entry["client_id"] for client_entry in json.loads(capsys.readouterr().out)] == ["gone"]


@pytest.mark.parametrize("user", ["alice", "User:alice"])
def test_user_is_selected_by_name_or_principal(broker: Broker, user: str, capsys: pytest.CaptureFixture[str]) -> None:
    clients.main(["list", "--metrics", address(broker), "--user", user, "-o", "json"])
    assert [client_entry["client_id"] for client_entry in json.loads(capsys.readouterr().out)] == ["app", "old"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--user", "Alcie"), "No client of user 'Alcie' is known; did you mean alice?"),
        (("--user", "bob"), "No client of user 'bob' is known."),
        (
            ("--user", "alice", "--client", "ap"),
            "No client of user 'alice' with the client id 'ap' is known; did you mean app?",
        ),
        (("--client", "gone"), "No client is connected; --gone shows those that left."),
    ],
)
def test_empty_list_has_reason(
    broker: Broker, words: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert clients.main(["list", "--metrics", address(broker), *words]) == 0
    assert capsys.readouterr().out == f"{line}\n"


def test_unavailable_broker_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    # when
    code = clients.main(["list", "--metrics", "127.0.0.1:1"])
    # then
    assert code == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("answer", [b"<html>", b"{}", b"[]"])
def test_other_server_is_reported_in_one_line(
    broker: Broker, answer: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    # given
    broker.answer = answer
    # when
    code = clients.main(["list", "--metrics", address(broker)])
    # then
    assert code == 1
    assert "returned no list of clients" in capsys.readouterr().err


def test_watch_reports_connects_changes_and_disconnects() -> None:
    # given
    printed: clients.PrintedClients = {}
    name = "User:alice app (klamm-kafka-python 1.0, 10.0.0.1)"
    # then
    assert clients.changed(printed, [client()]) == [f"+ {name}: acks=all; in line"]
    assert clients.changed(printed, [client()]) == []
    assert clients.changed(printed, [client(effective={"acks": "1"}, standing="pending")]) == [
        f"~ {name}: acks=all; in line -> acks=1; pending"
    ]
    assert clients.changed(printed, []) == [f"- {name}"]


def test_clients_with_common_name_prefix_are_distinct() -> None:
    printed: clients.PrintedClients = {}
    both = [client(client_id="x" * 100 + end) for end in "ab"]
    assert len(clients.changed(printed, both)) == 2
    assert clients.changed(printed, both) == []


def test_client_names_are_escaped(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    # given
    odd = client(client_id="a\nUser:root\x1b[2J" + "x" * 3_000, registered=["acks", "\r"])
    broker.answer = json.dumps({"clients": [odd]}).encode()
    # when
    clients.main(["list", "--metrics", address(broker)])
    # then
    _, line, _ = capsys.readouterr().out.splitlines()
    assert line.startswith(r"User:alice  a\nUser:root\x1b[2Jxxx")
    assert len(line) < 300


def test_watch_continues_after_broker_restart(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given
    good, answers = broker.answer, [b"<html>", b"<html>", b"good", b"stop"]

    def pass_time(_: float) -> None:
        answer = answers.pop(0)
        if answer == b"stop":
            raise KeyboardInterrupt
        broker.answer = good if answer == b"good" else answer

    replace_for_this_thread(monkeypatch, time, "sleep", pass_time)
    # when
    with contextlib.suppress(KeyboardInterrupt):
        clients.main(["watch", "--metrics", address(broker), "--interval", "5"])
    # then
    captured = capsys.readouterr()
    assert [line[0] for line in captured.out.splitlines()] == ["+", "+"]
    assert captured.err.count("returned no list of clients") == 1
    assert "retrying every 5 s" in captured.err


@pytest.mark.parametrize("words", [[], ["list"], ["list", "--metrics", "a:1", "--interval", "0"]])
def test_wrong_usage_ends_with_exit_code_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        clients.main(words)
    assert exit_info.value.code == 2


def test_unresponsive_address_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    address = f"127.0.0.1:{free_port()}"
    assert clients.main(["list", "--metrics", address]) == 1
    assert capsys.readouterr().err == f"klamm clients: {address} does not answer: Connection refused\n"


def test_timeout_flag_limits_wait_for_silent_listener(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert clients.main(["list", "--metrics", address, "--timeout", "50"]) == 1
    assert capsys.readouterr().err == f"klamm clients: {address} does not answer: timed out\n"


def test_line_of_another_protocol_is_shown_without_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    def greet() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"SSH-2.0-server\r\n")
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1024):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        thread = threading.Thread(target=greet)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert clients.main(["list", "--metrics", address]) == 1
        thread.join()
    assert capsys.readouterr().err == f"klamm clients: {address} does not answer with HTTP: SSH-2.0-server\n"


@pytest.mark.parametrize("address", ["[", "a[b]:1", " ", "h:x", "h:99999"])
def test_invalid_address_is_reported(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert clients.main(["list", "--metrics", address]) == 2
    assert capsys.readouterr().err == f"klamm clients: --metrics {address}: expected HOST:PORT\n"
