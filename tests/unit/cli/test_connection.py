"""Java's client properties, and errors as one line."""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
import sys
import threading
from argparse import Namespace
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from klamm import cli
from klamm.cli import connection
from klamm.cli.arguments import ToolParser, add_common
from klamm.cli.connection import connect, guarded, read_client_properties
from klamm.kafka_client.errors import api_error, explain
from klamm.properties import SettingsError
from klamm.protocol.codec import encode
from klamm.protocol.errors import InvalidConfigError, UnsupportedVersionError
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest
from klamm.rollout import store as rollout_store
from klamm.rollout.store import RolloutStore
from tests.support.processes import CHILD_TIMEOUT_S, free_port, wait_until
from tests.support.security import Certificates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import klamm
    from klamm.rollout.record import RolloutRecord


def test_properties_resolve_config_providers(tmp_path: Path) -> None:
    (tmp_path / "secrets.properties").write_text("password=geheim\n")
    (config := tmp_path / "client.properties").write_text(
        "config.providers=file\n"
        "config.providers.file.class=org.apache.kafka.common.config.provider.FileConfigProvider\n"
        f"ssl.key.password=${{file:{tmp_path}/secrets.properties:password}}\n"
    )
    assert read_client_properties(config)["ssl.key.password"] == "geheim"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (f"client.id={'x' * 32_768}", "client.id=x+: expected at most 32,767 bytes, got 32,768"),
        ("request.timeout.ms=soon", "request.timeout.ms=soon: expected a whole number"),
        ("default.api.timeout.ms=soon", "default.api.timeout.ms=soon: expected a whole number"),
        ("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config=Module required;",
         "sasl.jaas.config: expected"),
        ("security.protocol=ssl\nssl.truststore.location=/trust.jks",
         "ssl.truststore.location=/trust.jks: cannot be read: No such file"),
    ],
)  # fmt: skip
def test_unusable_properties_are_named(tmp_path: Path, line: str, complaint: str) -> None:
    (config := tmp_path / "client.properties").write_text(line + "\n")
    with (
        pytest.raises(SettingsError, match=complaint),
        connect(Namespace(bootstrap_server="127.0.0.1:1", command_config=str(config))),
    ):
        pass


def test_misspelt_properties_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (config := tmp_path / "client.properties").write_text(
        "security.protocl=SSL\nssl.truststore.locaton=/a.jks\nssl.keymanager.algorithm=PKIX\nacks=all\nlinger.ms=5\n"
        "ssl.key.password=x\nsasl.oauthbearer.token.endpoint.url=http://a\nbootstrap.servers=a:1\n"
    )
    read_client_properties(config)
    assert capsys.readouterr().err.splitlines() == [
        f"Warning: {config}: security.protocl has no effect; did you mean security.protocol?",
        f"Warning: {config}: ssl.truststore.locaton has no effect; did you mean ssl.truststore.location?",
    ]


@pytest.mark.parametrize("value", ["a\nb", "x" * 70_000, "\x1b[2J"])
@pytest.mark.parametrize(
    "words", [["topics", "--list", "--timeout"], ["configs", "--describe", "--output"], ["plan", "--max-deletes"]]
)
def test_wrong_value_is_reported_in_one_short_line(
    words: list[str], value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main([*words, value])
    error = capsys.readouterr().err
    assert error.endswith("--help)\n")
    assert error[:-1].isprintable()
    assert len(error) < 2200


def test_errors_are_one_line_with_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    # given
    def fail() -> int:
        raise InvalidConfigError("one\ntwo")

    # then
    assert guarded("klamm configs", fail) == 1
    assert capsys.readouterr().err == "klamm configs: one two\n"


def test_invalid_utf_8_argument_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded("klamm configs", lambda: len("user \udcff".encode())) == 1
    assert capsys.readouterr().err == "klamm configs: 'user \\udcff' holds bytes that are not text in this locale\n"


def test_value_that_does_not_fit_a_request_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    request = FindCoordinatorRequest(key="g" * 40_000, key_type=0)
    assert guarded("klamm groups", lambda: len(encode(request, 3))) == 1
    assert capsys.readouterr().err.startswith("klamm groups: FindCoordinatorRequest v3 cannot be written: a value does")


def test_too_old_broker_has_own_message() -> None:
    assert explain(UnsupportedVersionError("x")) == "The cluster does not support this request: x"
    assert explain(TimeoutError()) == "TimeoutError"


@pytest.mark.parametrize(
    ("servers", "complaint"),
    [
        ("nowhere", "--bootstrap-server nowhere: 'nowhere': expected HOST:PORT"),
        ("", "--bootstrap-server : '': expected HOST:PORT"),
        ("a:1,b:99999", "'b:99999': expected HOST:PORT"),
        ("no-such-host.invalid:9092", "--bootstrap-server no-such-host.invalid:9092: the host name cannot be resolved"),
    ],
)
def test_invalid_servers_are_rejected_at_once(servers: str, complaint: str) -> None:
    with pytest.raises(SettingsError) as rejected, connect(Namespace(bootstrap_server=servers, command_config=None)):
        pass
    assert complaint in str(rejected.value)


def test_error_code_without_message_is_described() -> None:
    assert explain(api_error(29)) == "Topic authorization failed (TOPIC_AUTHORIZATION_FAILED)"
    assert explain(InvalidConfigError("x is wrong")) == "x is wrong"


def test_unresponsive_servers_are_named(tmp_path: Path) -> None:
    hasty = tmp_path / "hasty.properties"
    hasty.write_text("default.api.timeout.ms=1000\n")
    servers = f"127.0.0.1:{free_port()}"
    with connect(Namespace(bootstrap_server=servers, command_config=str(hasty))) as admin:
        failures = [admin.describe_cluster().exception(), admin.list_groups().exception()]
    for failure in failures:
        assert isinstance(failure, TimeoutError)
        assert re.match(f"No broker at {servers} responded within 1000 ms: {servers}: Connection refused", str(failure))


def _read_only(accepted: socket.socket) -> None:
    while accepted.recv(1000):
        pass


@pytest.mark.process
def test_server_that_never_answers_has_a_hint() -> None:
    with (
        listener(_read_only) as server,
        connect(Namespace(bootstrap_server=server, command_config=None, api_timeout_ms=1500)) as admin,
    ):
        error = admin.describe_cluster().exception()
    assert str(error) == (
        f"No broker at {server} responded within 1500 ms: no answer and no error; check that it is a Kafka listener,"
        " and that security.protocol matches it"
    )


def _close(accepted: socket.socket) -> None:
    accepted.recv(1000)


@pytest.mark.process
def test_server_that_closes_each_connection_has_a_hint() -> None:
    with (
        listener(_close) as server,
        connect(Namespace(bootstrap_server=server, command_config=None, api_timeout_ms=1_500)) as admin,
    ):
        error = admin.describe_cluster().exception()
    assert str(error) == (
        f"No broker at {server} responded within 1500 ms: {server}: The broker closed the connection;"
        " check that security.protocol matches its listener"
    )


def test_timeout_flag_overrides_properties(tmp_path: Path) -> None:
    (patient := tmp_path / "patient.properties").write_text("default.api.timeout.ms=60000\n")
    parser = ToolParser(prog="klamm", description="")
    add_common(parser)
    servers = f"127.0.0.1:{free_port()}"
    flags = ["--bootstrap-server", servers, "--command-config", str(patient), "--timeout", "50"]
    with connect(parser.parse_args(flags)) as admin:
        failure = admin.describe_cluster().exception()
    assert str(failure).startswith(f"No broker at {servers} responded within 50 ms")


@pytest.mark.parametrize(
    "words",
    [
        ["consume", "--topic", "t", "--timeout", "50"],
        ["produce", "--topic", "t", "--command-property", "default.api.timeout.ms=50"],
        ["registrations", "report", "--timeout", "50"],
    ],
    ids=lambda words: words[0],
)
def test_commands_limit_the_time_to_the_first_answer(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    servers = f"127.0.0.1:{free_port()}"
    assert cli.main([*words, "--bootstrap-server", servers]) == 1
    assert f"No broker at {servers} responded within 50 ms" in capsys.readouterr().err


def test_timeout_flag_limits_attempts_to_read_records_of_roll_outs(monkeypatch: pytest.MonkeyPatch) -> None:
    limits_s = []

    class Store(RolloutStore):
        def records(self) -> Sequence[RolloutRecord]:
            limits_s.append(self._patience_s)
            return ()

    monkeypatch.setattr(rollout_store, "RolloutStore", Store)
    command = ["rollout", "list", "--bootstrap-server", f"127.0.0.1:{free_port()}"]
    assert (cli.main(command), cli.main([*command, "--timeout", "50"])) == (0, 0)
    assert limits_s == [60, 0.05]


def test_unknown_flag_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["topics", "--list", "--boostrap-server=localhost:9092", "--command-confg", "file"])
    assert capsys.readouterr().err == (
        "klamm topics: unrecognized arguments: --boostrap-server=localhost:9092 --command-confg file; did you mean"
        " --bootstrap-server? (see klamm topics --help)\n"
    )


def test_silence_is_explained_while_servers_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given: nobody listens on the first port, and no Kafka on the second one
    monkeypatch.setattr(connection, "_SILENCE_S", 0.1)
    (hasty := tmp_path / "hasty.properties").write_text("default.api.timeout.ms=1500\n")
    with socket.create_server(("127.0.0.1", 0)) as mute:
        servers = (f"127.0.0.1:{free_port()}", f"127.0.0.1:{mute.getsockname()[1]}")
        # when
        options = Namespace(bootstrap_server=",".join(servers), command_config=str(hasty))
        with connect(options) as admin:
            failure = admin.describe_cluster().exception()
            report = report_of_silence(capsys)
    # then
    assert isinstance(failure, TimeoutError)
    assert not str(failure).endswith(": ")
    assert report == (
        f"No answer yet, trying for 1.5 s in all (default.api.timeout.ms): {servers[0]}: connection refused;"
        f" {servers[1]}: connected, but no answer to a Kafka request (does security.protocol match the listener?)\n"
    )


def report_of_silence(capsys: pytest.CaptureFixture[str]) -> str:
    """Wait for the line on stderr, which a thread writes while the client is open, and return it."""
    lines: list[str] = []

    def is_written() -> bool:
        lines.append(capsys.readouterr().err)
        return lines[-1] != ""

    wait_until(is_written, timeout_s=30, what="the line on stderr")
    return lines[-1]


@contextmanager
def listener(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serve one connection after the other with a function; yield the address. All connections end with it."""
    connections: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):  # the server has ended
                while True:
                    accepted, _ = server.accept()
                    connections.append(accepted)
                    with accepted, suppress(OSError):
                        answer(accepted)

        (thread := threading.Thread(target=serve)).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        for each in (server, *connections):
            with suppress(OSError):  # it is closed
                each.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.process
def test_silence_of_a_tls_listener_names_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given
    monkeypatch.setattr(connection, "_SILENCE_S", 0.1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Certificates.create(tmp_path).issue("broker", "/CN=broker"))
    # when
    with (
        listener(lambda accepted: context.wrap_socket(accepted, server_side=True).close()) as server,
        connect(Namespace(bootstrap_server=server, command_config=None, api_timeout_ms=1500)) as admin,
    ):
        assert isinstance(admin.describe_cluster().exception(), TimeoutError)
        report = report_of_silence(capsys)
    # then
    hint = "the server speaks TLS: set security.protocol=SSL or SASL_SSL in --command-config"
    assert report == f"No answer yet, trying for 1.5 s in all (--timeout): {server}: {hint}\n"


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        (b"\x15\x03\x03\x00\x02\x02\x46", "TLS: set security.protocol=SSL or SASL_SSL"),
        (b"HTTP/1.1 400 Bad Request\r\n", "HTTP: is this the port of a Kafka listener?"),
    ],
)
def test_answer_of_another_protocol_is_named(answer: bytes, name: str) -> None:
    with (
        listener(lambda accepted: accepted.sendall(answer) if accepted.recv(1) else None) as server,
        connect(Namespace(bootstrap_server=server, command_config=None, api_timeout_ms=1_500)) as admin,
    ):
        failure = admin.describe_cluster().exception()
    assert str(failure).endswith(f"The answer looks like {name}")


@pytest.mark.process
def test_responding_server_prints_nothing(
    klamm_session_broker: klamm.Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(connection, "_SILENCE_S", 60.0)  # a busy broker may take longer than usual
    options = Namespace(bootstrap_server=klamm_session_broker.bootstrap_servers, command_config=None)
    with connect(options) as admin:
        admin.describe_cluster().result()
        monkeypatch.undo()
        connection.report_silence(admin, [options.bootstrap_server], "60 s", uses_tls=False)
    assert capsys.readouterr().err == ""


@pytest.mark.process
@pytest.mark.parametrize("lines", [1, 100_000], ids=["at the flush", "at the write"])
def test_closed_pipe_keeps_the_messages_and_the_exit_code_of_a_result(lines: int) -> None:
    command = [sys.executable, "-c", "import sys, klamm.cli as cli\nfrom klamm.cli.connection import guarded\n"
               "from klamm.cli.output import print_error, print_result\n"
               "def work():\n"
               f"    print_result('human', None, lambda: ['line'] * {lines})\n"
               "    print_error('reason')\n"
               "    return 3\n"
               "cli._run = lambda _: guarded('klamm', work)\n"
               "sys.stdin.read()\n"
               "sys.exit(cli.main([]))"]  # fmt: skip
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.close()
        assert (process.wait(CHILD_TIMEOUT_S), process.stderr.read()) == (3, b"reason\n")


@pytest.mark.process
def test_closed_pipe_is_no_failure() -> None:
    command = [sys.executable, "-c", "import sys, klamm.cli as cli\nfrom klamm.cli.connection import guarded\n"
               "cli._run = lambda _: guarded('klamm', lambda: print('line\\n' * 100_000) or 0)\n"
               "sys.exit(cli.main([]))"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert (process.wait(CHILD_TIMEOUT_S), process.stderr.read()) == (0, b"")
