"""A gateway in front of a klamm broker with three node ids: clients, addresses, bad input, restarts."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import sys
import threading
import time
import urllib.request
from typing import TYPE_CHECKING, Self
from urllib.error import HTTPError

import pytest
from kafka import KafkaConsumer, KafkaProducer

import klamm
from klamm.admin import AdminClient, NewTopic
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.support.processes import free_port, start_process, wait_until
from tests.support.relay_rig import SERVED
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def upstream() -> Iterator[klamm.Broker]:
    with klamm.Broker(brokers=3, control=True) as broker:
        yield broker


@pytest.fixture(scope="module")
def metrics() -> str:
    """Address of the gateway's metrics. Only the end of a long log is kept, so it cannot be read from there."""
    return f"127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def gateway(upstream: klamm.Broker, metrics: str) -> Iterator[klamm.Gateway]:
    with klamm.Gateway(upstream.bootstrap_servers, config={"metrics.listen": metrics}) as gateway:
        yield gateway


def scraped(metrics: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{metrics}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def connected(gateway: klamm.Gateway) -> socket.socket:
    host, _, port = gateway.bootstrap_servers.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def closed_by_peer(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_clients_produce_and_consume_in_a_group(upstream: klamm.Broker, gateway: klamm.Gateway) -> None:
    with AdminClient(gateway.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name="flow", num_partitions=6)]).all().result()
    producer = KafkaProducer(bootstrap_servers=gateway.bootstrap_servers, linger_ms=5)
    for number in range(500):
        producer.send("flow", b"%d" % number)
    producer.flush(60)
    producer.close()
    consumer = KafkaConsumer(
        "flow",
        bootstrap_servers=gateway.bootstrap_servers,
        group_id="flow",
        auto_offset_reset="earliest",
        consumer_timeout_ms=300_000,
    )
    assert {int(next(consumer).value) for _ in range(500)} == set(range(500))
    consumer.close()
    assert sum(len(upstream.records("flow", partition=partition)) for partition in range(6)) == 500


def test_node_ids_are_kept_and_addresses_are_the_gateways(upstream: klamm.Broker, gateway: klamm.Gateway) -> None:
    host, _, base = gateway.bootstrap_servers.rpartition(":")
    with AdminClient(gateway.bootstrap_servers) as admin:
        seen = admin.describe_cluster().result()
    with AdminClient(upstream.bootstrap_servers) as admin:
        real = admin.describe_cluster().result()
    assert [(node.id, node.host, node.port) for node in seen.nodes] == [
        (node.id, host, int(base) + node.id) for node in real.nodes
    ]
    assert (seen.cluster_id, seen.controller_id, seen.features) == (real.cluster_id, real.controller_id, real.features)


def test_api_versions_are_the_intersection_of_gateway_and_upstream(
    upstream: klamm.Broker, gateway: klamm.Gateway
) -> None:
    answers = []
    for address in (upstream.bootstrap_servers.split(",")[0], gateway.bootstrap_servers):
        with WireClient(address) as client:
            answers.append(client.ask(ApiVersionsRequest(), ApiVersionsResponse, 2))
    real, seen = ({api.api_key: (api.min_version, api.max_version) for api in answer.api_keys} for answer in answers)
    for key, (first, last) in real.items():
        lowest, highest = max(first, SERVED[key][0]), min(last, SERVED[key][1])
        assert seen.pop(key) == (lowest, highest)
    assert seen == {}


def test_unsupported_api_versions_version_is_answered(gateway: klamm.Gateway) -> None:
    with WireClient(gateway.bootstrap_servers) as client:
        client.send(ApiVersionsRequest(), 2)
        client.receive(ApiVersionsResponse, 2)
    with connected(gateway) as connection:
        connection.sendall((10).to_bytes(4) + b"\0\x12\0\x63\0\0\0\7\xff\xff")
        answer = connection.recv(100)
    assert answer[:4] == (len(answer) - 4).to_bytes(4)
    assert answer[4:10] == b"\0\0\0\7\0\x23"


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"\xff\xff\xff\xff", id="negative size"),
        pytest.param(b"\x7f\xff\xff\xff\0\3\0\1\0\0\0\0\0\0", id="size beyond the limit"),
        pytest.param(b"\0\0\0\1\0", id="shorter than a header"),
        pytest.param(b"\0\0\0\x0a\0\7\0\0\0\0\0\0\xff\xff", id="an API between brokers"),
        pytest.param(b"\0\0\0\x0a\0\1\0\x10\0\0\0\0\xff\xff", id="a version that carries addresses"),
        pytest.param(b"\0\0\0\x0a\0\3\0\1\0\0\0\0\xff\xfe", id="client id of length -2"),
        pytest.param(b"\0\0\0\x0a\0\3\0\1\0\0\0\0\0\x09", id="client id beyond the frame"),
        pytest.param(b"\0\0\0\x0a\0\0\0\3\0\0\0\0\xff\xff", id="Produce without acks"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="HTTP"),
    ],
)
def test_malformed_request_closes_only_its_connection(gateway: klamm.Gateway, frame: bytes) -> None:
    with WireClient(gateway.bootstrap_servers) as other, connected(gateway) as connection:
        connection.sendall(frame + bytes(30))
        assert closed_by_peer(connection)
        assert other.ask(ApiVersionsRequest(), ApiVersionsResponse, 2).error_code == 0


def test_requests_before_a_malformed_one_are_answered(gateway: klamm.Gateway) -> None:
    metadata = b"\0\0\0\x0e\0\3\0\1\0\0\0\7\xff\xff\xff\xff\xff\xff"
    with connected(gateway) as connection:
        connection.sendall(metadata + b"\xff\xff\xff\xff")
        with connection.makefile("rb") as stream:
            size = int.from_bytes(stream.read(4))
            assert stream.read(size)[:4] == b"\0\0\0\7"
            assert stream.read() == b""


def test_many_requests_sent_at_once_are_answered_in_order(gateway: klamm.Gateway) -> None:
    count = 3000
    frames = b"".join(
        b"\0\0\0\x0e\0\3\0\1" + number.to_bytes(4) + b"\xff\xff\0\0\0\0"
        if number % 3
        else b"\0\0\0\x0a\0\x12\0\0" + number.to_bytes(4) + b"\xff\xff"
        for number in range(count)
    )
    with connected(gateway) as connection, connection.makefile("rb") as stream:
        connection.sendall(frames)
        for number in range(count):
            answer = stream.read(int.from_bytes(stream.read(4)))
            assert int.from_bytes(answer[:4]) == number


def test_client_that_does_not_read_responses_is_not_read_from(gateway: klamm.Gateway, metrics: str) -> None:
    request = b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff" * 1000
    with connected(gateway) as connection, WireClient(gateway.bootstrap_servers) as other:
        connection.setblocking(False)
        sent, deadline = 0, time.monotonic() + 60
        blocked_since = None
        while time.monotonic() < deadline and (blocked_since is None or time.monotonic() - blocked_since < 0.5):
            try:
                sent += connection.send(request)
                blocked_since = None
            except BlockingIOError:
                blocked_since = blocked_since or time.monotonic()
                assert other.ask(ApiVersionsRequest(), ApiVersionsResponse, 2).error_code == 0
        assert blocked_since is not None, f"{sent} bytes of requests were taken"
        kept = scraped(metrics, "/metrics")[1].partition('klamm_gateway_kept_bytes{kind="unread"} ')[2].split()[0]
        assert int(kept) < 2_000_000


def test_metrics_count_requests_by_api_and_client_id(gateway: klamm.Gateway, metrics: str) -> None:
    with WireClient(gateway.bootstrap_servers, client_id="counted") as client:
        client.ask(MetadataRequest(topics=[]), MetadataResponse, 1)
        page = scraped(metrics, "/metrics")[1]
    assert 'klamm_gateway_requests_total{api="METADATA",client_id="counted"} 1\n' in page
    assert "klamm_gateway_upstream_reachable 1\n" in page
    assert scraped(metrics, "/ready") == (200, "OK\n")
    assert scraped(metrics, "/live") == (200, "OK\n")


def test_admin_only_serves_no_records(upstream: klamm.Broker, make_klamm_gateway: Callable[..., klamm.Gateway]) -> None:
    gateway = make_klamm_gateway(upstream.bootstrap_servers, admin_only=True)
    with WireClient(gateway.bootstrap_servers) as client:
        keys = {api.api_key for api in client.ask(ApiVersionsRequest(), ApiVersionsResponse, 2).api_keys}
    assert {3, 19, 32, 44} <= keys
    assert not keys & {0, 1}
    with AdminClient(gateway.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name="by-admin", num_partitions=1)]).all().result()
    assert upstream.records("by-admin") == []


def test_clients_reconnect_after_restart_of_upstream_or_gateway(
    make_klamm_broker: Callable[..., klamm.Broker], make_klamm_gateway: Callable[..., klamm.Gateway]
) -> None:
    broker = make_klamm_broker(brokers=2)
    gateway = make_klamm_gateway(broker.bootstrap_servers)
    producer = KafkaProducer(bootstrap_servers=gateway.bootstrap_servers, retries=100, retry_backoff_ms=50)
    producer.send("again", b"1").get(60)
    broker.kill()
    broker.start()
    producer.send("again", b"2").get(60)
    gateway.kill()
    gateway.start()
    producer.send("again", b"3").get(60)
    gateway.restart()
    producer.send("again", b"4").get(60)
    producer.close()
    assert [record.value for record in broker.records("again")] == [b"1", b"2", b"3", b"4"]


def test_gateway_starts_from_saved_topology_without_upstream(
    tmp_path: Path, make_klamm_broker: Callable[..., klamm.Broker], make_klamm_gateway: Callable[..., klamm.Gateway]
) -> None:
    broker = make_klamm_broker()
    metrics = f"127.0.0.1:{free_port()}"
    gateway = make_klamm_gateway(broker.bootstrap_servers, data_dir=tmp_path, config={"metrics.listen": metrics})
    address = gateway.bootstrap_servers
    gateway.stop()
    broker.kill()
    gateway.start()
    assert gateway.bootstrap_servers == address
    assert scraped(metrics, "/ready") == (503, "the upstream cannot be reached\n")
    with connected(gateway) as connection:
        connection.sendall(b"\0")  # before that, a gateway does not connect to its upstream
        assert closed_by_peer(connection)
    broker.start()
    wait_until(lambda: _answers(address), timeout_s=60, what="the gateway to reach the upstream")
    assert list(json.loads((tmp_path / "topology.json").read_text())["nodes"]) == ["1"]


def test_gateway_waiting_for_upstream_stops_on_sigterm_and_reloads_on_sighup(tmp_path: Path) -> None:
    arguments = ["--upstream", f"127.0.0.1:{free_port()}", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path)]
    process = start_process([sys.executable, "-m", "klamm.gateway.main", *arguments], log=tmp_path / "log")
    try:
        wait_until(
            lambda: "trying again" in (tmp_path / "log").read_text(), timeout_s=60, what="a first attempt to connect"
        )
        process.send_signal(signal.SIGHUP)  # systemctl reload
        wait_until(lambda: "no policies to reload" in (tmp_path / "log").read_text(), timeout_s=60, what="a reload")
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in (tmp_path / "log").read_text()


def _answers(address: str) -> bool:
    try:
        with WireClient(address) as client:
            return client.ask(ApiVersionsRequest(), ApiVersionsResponse, 2).error_code == 0
    except OSError:
        return False


def test_requests_in_flight_are_answered_when_the_gateway_stops(
    upstream: klamm.Broker, make_klamm_gateway: Callable[..., klamm.Gateway]
) -> None:
    gateway = make_klamm_gateway(upstream.bootstrap_servers)
    with WireClient(gateway.bootstrap_servers) as client:
        client.ask(ApiVersionsRequest(), ApiVersionsResponse, 2)
        client.send(MetadataRequest(topics=[]), 1)
        gateway.stop()
        assert client.receive(MetadataResponse, 1).brokers
    assert "Traceback" not in gateway.log_text()


class OddUpstream:
    """Server whose answers are as a test wants them, by the correlation id of the request. A context manager."""

    def __init__(self, answers: dict[int, bytes]) -> None:
        self._answers = answers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as stream:
            while len(size := stream.read(4)) == 4:
                frame = stream.read(int.from_bytes(size))
                connection.sendall(self._answers.get(int.from_bytes(frame[4:8]), b""))


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", id="HTTP"),
        pytest.param(b"\0\0\0\x08\0\0\0\x63abcd", id="the response to another request"),
        pytest.param(b"\0\0\0\x06\0\0\0\7\xff\xff", id="Metadata that ends early"),
        pytest.param(b"\0\0\0\x08\0\0\0\7\x7f\xff\xff\xff", id="Metadata with too many brokers"),
        pytest.param(b"\x7f\xff\xff\xff\0\0\0\7", id="two gigabytes of Metadata"),
        pytest.param(b"\xff\xff\xff\xff\0\0\0\7", id="a negative size"),
    ],
)
def test_garbage_from_upstream_closes_only_that_connection(
    garbage: bytes, odd_gateway: tuple[klamm.Gateway, dict[int, bytes]]
) -> None:
    gateway, answers = odd_gateway
    heartbeat = b"\0\0\0\x0a\0\x0c\0\0\0\0\0\x08\xff\xff"
    answers[7], answers[8] = garbage, b"\0\0\0\x06\0\0\0\x08\0\0"
    with connected(gateway) as bad, connected(gateway) as good:
        bad.sendall(b"\0\0\0\x0e\0\3\0\1\0\0\0\7\xff\xff\0\0\0\0")
        assert closed_by_peer(bad)
        good.sendall(heartbeat)
        assert good.recv(100) == answers[8]


@pytest.fixture(scope="module")
def odd_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[klamm.Gateway, dict[int, bytes]]]:
    """A gateway that knows the address of its upstream from the file alone."""
    directory = tmp_path_factory.mktemp("odd")
    answers: dict[int, bytes] = {}
    with OddUpstream(answers) as upstream:
        nodes = {"0": ["127.0.0.1", upstream.port]}
        (directory / "topology.json").write_text(json.dumps({"cluster_id": None, "nodes": nodes}))
        with klamm.Gateway(f"127.0.0.1:{upstream.port}", data_dir=directory) as gateway:
            yield gateway, answers
