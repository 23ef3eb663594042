"""klamm produce ends if the cluster does not respond."""

from __future__ import annotations

import fcntl
import re
import signal
import socket
import subprocess
import sys
import termios
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest
from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError

from klamm import cli
from klamm.admin import AdminClient, OffsetSpec, TopicPartition
from klamm.cli import produce
from klamm.cli.connection import RequestError
from klamm.cli.console import sender
from klamm.cli.console.line_reader import Line
from klamm.cli.console.sender import RecordSender
from klamm.cli.console.settings import read_pairs
from tests.support.long_tests import long_only
from tests.support.processes import CHILD_TIMEOUT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import klamm

LINE = Line(key=None, value=b"v", headers=[])


class Producer:
    """Producer whose records are neither acknowledged nor expire."""

    def __init__(self, **_: Any) -> None:
        self.config = {"delivery_timeout_ms": 10}

    def send(self, *_: Any, **__: Any) -> Producer:
        return self

    def add_callback(self, _: Callable[..., object]) -> None:
        pass

    add_errback = add_callback

    def flush(self, timeout: float | None = None) -> None:
        assert timeout is not None, "would wait forever"
        raise KafkaTimeoutError("Timeout waiting for future")

    def close(self, timeout: float | None = None) -> None:
        self.flush(timeout)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "KafkaProducer", Producer)
    monkeypatch.setattr(sender, "_MARGIN_S", 0.0)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("waits", [False, True])
def test_wait_for_acknowledgements_times_out(waits: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with RecordSender("t", {}, max_bytes=1000, output="human", waits=waits) as used:
        used.send(LINE)
    assert used.failed == 1 + waits
    assert capsys.readouterr().err == (1 + waits) * (
        "Some records could not be sent: they were not acknowledged within 0.01 s\n"
    )


@pytest.mark.usefixtures("silent")
def test_wait_for_memory_times_out() -> None:
    with RecordSender("t", {}, max_bytes=1, output="human", waits=False) as used:
        used.send(LINE)
        with pytest.raises(RequestError, match=r"No record was acknowledged within 0\.01 s"):
            used.send(LINE)


@pytest.mark.process
def test_internal_topic_is_named_as_the_reason(
    klamm_session_broker: klamm.Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"bootstrap_servers": klamm_session_broker.bootstrap_servers}
    with RecordSender("__consumer_offsets", settings, max_bytes=1000, output="human", waits=True) as used:
        used.send(LINE)
    assert used.failed == 1
    assert "The topic is internal: only brokers write to it" in capsys.readouterr().err


@pytest.mark.process
def test_rejected_record_has_the_error_of_the_client(
    klamm_session_broker: klamm.Broker, klamm_topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"bootstrap_servers": klamm_session_broker.bootstrap_servers, "max_request_size": 50}
    with RecordSender(klamm_topic, settings, max_bytes=1000, output="human", waits=True) as used:
        used.send(Line(key=None, value=b"v" * 100, headers=[]))
    assert used.failed == 1
    assert "max_request_size" in capsys.readouterr().err


@pytest.mark.process
def test_socket_buffer_size_is_a_socket_option(
    klamm_session_broker: klamm.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: list[tuple[int, int, int]] = []

    def end(_: str, settings: Mapping[str, Any], **__: Any) -> None:
        options.extend(settings["socket_options"])
        raise RequestError("The settings are known")

    monkeypatch.setattr(sender, "RecordSender", end)
    words = ["produce", "--bootstrap-server", klamm_session_broker.bootstrap_servers, "--topic", "t"]
    assert cli.main([*words, "--socket-buffer-size", "4096"]) == 1
    assert options == [*KafkaProducer.DEFAULT_CONFIG["socket_options"], (socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)]


@pytest.mark.parametrize(
    ("words", "delivery_timeout_ms"),
    [
        ("", 120_000),
        ("--request-timeout-ms 120000", 121_000),
        ("--timeout 100000", 130_000),
        ("--producer-property linger.ms=100000 --producer-property request.timeout.ms=50000", 150_000),
        ("--request-timeout-ms 120000 --producer-property delivery.timeout.ms=121500", 121_500),
    ],
)
def test_delivery_timeout_covers_linger_and_request(words: str, delivery_timeout_ms: int) -> None:
    # given
    options = produce.parser().parse_args(["--bootstrap-server", "127.0.0.1:1", "--topic", "t", *words.split()])
    properties = read_pairs(None, options.producer_property, "--producer-property")
    # when
    settings = produce._settings(options, properties)
    # then
    assert settings["delivery_timeout_ms"] == delivery_timeout_ms


def is_pending(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has yet to receive a signal that was sent to it."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    (pending,) = re.findall(r"^ShdPnd:\s*(\w+)$", status, re.MULTILINE)
    return bool(int(pending, 16) >> (number - 1) & 1)


@pytest.mark.process
@pytest.mark.parametrize("flags", [[], *long_only(["--sync"], ["--max-memory-bytes", "1"])])
def test_second_interrupt_drops_pending_records(
    flags: list[str], klamm_topic: str, klamm_session_broker: klamm.Broker
) -> None:
    words = ["produce", "--bootstrap-server", klamm_session_broker.bootstrap_servers, "--topic", klamm_topic, *flags]
    with subprocess.Popen(
        [sys.executable, "-m", "klamm.cli", *words], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        with klamm_session_broker.inject("Produce", no_answer=True, topic=klamm_topic, times=None) as fault:
            process.stdin.write(b"v\nw\n")
            process.stdin.flush()
            wait_until(lambda: fault.count > 0, timeout_s=30, what="the record")
            # when
            process.send_signal(signal.SIGINT)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1.5)
            # Two signals that reach a process while it stands still are one.
            wait_until(lambda: not is_pending(process.pid, signal.SIGINT), timeout_s=30, what="the first signal")
            process.send_signal(signal.SIGINT)
            process.wait(CHILD_TIMEOUT_S)
            # then
            code, messages = process.returncode, process.stderr.read().splitlines()
            # A broker that is held up at the start is reported.
            assert (code, [each for each in messages if not each.startswith(b"No answer yet")]) == (130, [])


def unread_bytes(pipe: IO[bytes]) -> int:
    """Return the number of bytes that were written to a pipe and not read yet."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_termination_sends_buffered_records(
    number: signal.Signals, klamm_topic: str, klamm_session_broker: klamm.Broker
) -> None:
    # given
    servers = klamm_session_broker.bootstrap_servers
    words = ["produce", "--bootstrap-server", servers, "--topic", klamm_topic, "--timeout", "60000"]
    inherited = signal.signal(number, signal.default_int_handler)  # nohup lets SIGHUP be ignored
    try:
        process = subprocess.Popen([sys.executable, "-m", "klamm.cli", *words], stdin=subprocess.PIPE)
    finally:
        signal.signal(number, inherited)
    with process:
        lines = process.stdin
        assert lines is not None
        lines.write(b"v\n")
        lines.flush()
        wait_until(lambda: unread_bytes(lines) == 0, timeout_s=30, what="the line to be read")
        # when
        process.send_signal(number)
        # then
        assert process.wait(CHILD_TIMEOUT_S) == 128 + number
    with AdminClient(servers) as admin:
        partition = TopicPartition(klamm_topic, 0)
        assert admin.list_offsets({partition: OffsetSpec.LATEST}).all().result()[partition].offset == 1
