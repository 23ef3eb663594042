from __future__ import annotations

import asyncio
import errno
import io
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from klamm.broker import otlp_export as module
from klamm.broker.otlp_export import OtlpExport, file_export, http_export
from klamm.properties import SettingsError
from klamm.telemetry.otlp import decode_metrics
from tests.support.by_thread import replace_for_this_thread
from tests.support.otlp import twenty_metrics
from tests.support.processes import CHILD_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PUSH = twenty_metrics()


def framed(push: bytes) -> bytes:
    return len(push).to_bytes(4) + push


class Collector(HTTPServer):
    """An HTTP endpoint that answers its first request with an error, and rejects bodies that contain ``bad``."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str, bytes]] = []
        self.failures = 1
        self.failure = 503
        self.rejection = 400
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(BaseHTTPRequestHandler):
    """Keeps what is posted."""

    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.failures:
            self.server.failures -= 1
            self.send_error(self.server.failure)
            return
        if b"bad" in body:
            self.send_error(self.server.rejection)
            return
        self.server.got.append((self.path, self.headers["Content-Type"], body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DELAY_S", 0.001)


def sent(export: OtlpExport, *pushes: bytes) -> None:
    """Put pushes and close: whatever was not sent by then is sent now."""

    async def run() -> None:
        for push in pushes:
            export.put(push)
        await export.close()

    asyncio.run(run())


def messages(path: Path) -> list[bytes]:
    payloads, data = [], path.read_bytes()
    while data:
        size = int.from_bytes(data[:4])
        payloads.append(data[4 : 4 + size])
        data = data[4 + size :]
    return payloads


def test_file_export_appends_length_prefixed_messages(tmp_path: Path) -> None:
    """K714-06."""
    path = tmp_path / "metrics"
    sent(file_export(path), PUSH, b"two")
    sent(file_export(path), b"three")
    assert messages(path) == [PUSH, b"two", b"three"]


def test_large_export_file_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FILE_BYTES", 3)
    path = tmp_path / "metrics"
    for push in (b"one", b"two", b"three"):
        sent(file_export(path), push)
    assert (messages(path), messages(tmp_path / "metrics.1")) == ([b"three"], [b"two"])


def test_partly_written_push_is_taken_back_before_the_retry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    path, open_file = tmp_path / "metrics.otlp", Path.open
    path.write_bytes(framed(PUSH))
    failures = [errno.ENOSPC, errno.EDQUOT]

    class FullDisk(io.FileIO):
        def write(self, data: Any) -> int:
            super().write(data[: len(data) // 2])
            code = failures.pop()
            raise OSError(code, os.strerror(code))

    def opened(path: Path, mode: str) -> Any:
        return FullDisk(path, mode) if failures and mode == "ab" else open_file(path, mode)

    monkeypatch.setattr(Path, "open", opened)
    export = file_export(path)

    async def run() -> None:
        export.put(PUSH)
        assert export.task is not None
        await export.task

    # when
    asyncio.run(run())
    # then
    assert (path.read_bytes(), failures) == (framed(PUSH) * 2, [])


@pytest.mark.parametrize("lost", [0, 1, len(PUSH), len(PUSH) + 1])
def test_file_with_torn_end_is_rotated_by_the_next_process(tmp_path: Path, lost: int) -> None:
    # given
    earlier = (framed(PUSH) * 2)[: 2 * len(framed(PUSH)) - lost]
    path = tmp_path / "metrics.otlp"
    path.write_bytes(earlier)
    # when
    sent(file_export(path), PUSH, PUSH)
    # then
    rotated = tmp_path / "metrics.otlp.1"
    assert path.read_bytes() == (b"" if lost else earlier) + framed(PUSH) * 2
    assert rotated.exists() == bool(lost)
    assert not lost or rotated.read_bytes() == earlier


def test_pipe_and_open_file_are_appended_to_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An open file such as ``/dev/stdout`` has other content, and is not renamed."""
    # given
    monkeypatch.setattr(module, "MAX_FILE_BYTES", 1)
    pipe, log = tmp_path / "pipe", tmp_path / "log"
    os.mkfifo(pipe)
    log.write_bytes(b"Started")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    # when
    with log.open("ab") as opened:
        for path in (pipe, Path(f"/dev/fd/{opened.fileno()}")):
            sent(file_export(path), PUSH)
    # then
    assert os.read(reader, 1 << 16) == framed(PUSH)
    assert log.read_bytes() == b"Started" + framed(PUSH)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "pipe"]
    os.close(reader)


@pytest.mark.process
def test_pipe_without_a_reader_does_not_keep_the_process_from_ending(tmp_path: Path) -> None:
    # given
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    program = """
import asyncio, pathlib, sys
from klamm.broker import otlp_export

async def export() -> None:
    export = otlp_export.file_export(pathlib.Path(sys.argv[1]))
    export.put(b"one")
    await export.close()

otlp_export._CLOSE_S = 0.01
with asyncio.Runner() as runner:
    runner.run(export())
"""
    # when
    command = [sys.executable, "-c", program, str(pipe)]
    ended = subprocess.run(command, capture_output=True, check=False, timeout=CHILD_TIMEOUT_S)
    # then
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_link_stays_when_its_file_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    monkeypatch.setattr(module, "MAX_FILE_BYTES", 1)
    link, path = tmp_path / "link", tmp_path / "metrics.otlp"
    link.symlink_to(path)
    export = file_export(link)
    # when
    sent(export, PUSH)
    sent(export, PUSH)
    # then
    assert link.is_symlink()
    assert path.read_bytes() == (tmp_path / "metrics.otlp.1").read_bytes() == framed(PUSH)


async def test_http_export_batches_messages_and_retries_after_error(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    """K714-06."""
    # given
    export = http_export(f"http://127.0.0.1:{collector.server_port}")

    # when
    await exported(export, PUSH, PUSH)
    await export.close()
    # then
    ((path, content_type, body),) = collector.got
    assert (path, content_type) == ("/v1/metrics", "application/x-protobuf")
    assert decode_metrics(body) == [*decode_metrics(PUSH), *decode_metrics(PUSH)]
    assert "HTTP status 503" in caplog.text


async def test_push_is_sent_again_when_no_thread_could_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """One moment at the limit of threads must not end the export, nor the broker's orderly stop."""
    got: list[Sequence[bytes]] = []
    failures = [RuntimeError("can't start new thread")]
    start = threading.Thread.start

    def start_later(thread: threading.Thread) -> None:
        if failures:
            raise failures.pop()
        start(thread)

    replace_for_this_thread(monkeypatch, threading.Thread, "start", start_later)
    export = OtlpExport("here", got.append)
    await exported(export, b"one")
    assert got == [(b"one",)]
    failures.append(RuntimeError("can't start new thread"))
    export.put(b"two")
    await export.close()


async def exported(export: OtlpExport, *pushes: bytes) -> None:
    """Put pushes, and wait until each is sent or dropped."""
    for push in pushes:
        export.put(push)
    task = export.task
    assert task is not None
    async with asyncio.timeout(20):
        await task


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_rejected_push_is_dropped_and_valid_pushes_are_sent(
    status: int, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    """Repeated for ever, it would keep the metrics of all clients from being sent."""
    collector.failures, collector.rejection = 0, status
    export = http_export(f"http://127.0.0.1:{collector.server_port}")
    await exported(export, b"one ", b"bad ", b"two ", b"three ", b"bad ")
    assert b"".join(body for *_, body in collector.got) == b"one two three "
    assert export.dropped == 2
    assert [record.message for record in caplog.records] == [
        f"Client metrics are dropped, because http://127.0.0.1:{collector.server_port} rejects them:"
        f" HTTP status {status}"
    ]


async def test_redirected_push_is_sent_again(collector: Collector) -> None:
    """The endpoint has not taken it."""
    collector.failure = 307
    await exported(http_export(f"http://127.0.0.1:{collector.server_port}"), b"one")
    assert [body for *_, body in collector.got] == [b"one"]


def test_oldest_messages_are_dropped_while_target_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_QUEUED_BYTES", 6)
    got: list[Sequence[bytes]] = []
    export = OtlpExport("nowhere", got.append)
    sent(export, b"one", b"two", b"tri")
    assert (got, export.dropped) == ([(b"two", b"tri")], 1)


@pytest.mark.parametrize(
    "url",
    [
        "collector:4318",
        "ftp://collector/v1",
        "http:///v1/metrics",
        "http://[collector/v1",
        "http://collector:otlp/v1",
        "http://collector:99999/v1",
    ],
)
def test_export_endpoint_must_be_an_http_url(url: str) -> None:
    with pytest.raises(SettingsError, match=r"client\.metrics\.otlp\.endpoint"):
        http_export(url)


def test_malformed_host_is_reported_as_unreachable(caplog: pytest.LogCaptureFixture) -> None:
    """Its error, a ValueError, ended the export for good and the broker's shutdown with it."""

    async def run() -> None:
        export = http_export("http://collector..example/v1/metrics")
        export.put(PUSH)
        async with asyncio.timeout(20):
            while not caplog.records:  # noqa: ASYNC110  # no event tells
                await asyncio.sleep(0.005)
        await export.close()

    asyncio.run(run())
    assert "Client metrics cannot be exported to http://collector..example/v1/metrics" in caplog.text
