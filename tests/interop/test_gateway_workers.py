"""A gateway of several processes: connections are dealt evenly, metrics are added, a lost process is replaced."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import urllib.request
from typing import TYPE_CHECKING
from urllib.error import HTTPError

import pytest
from confluent_kafka import Producer

import klamm
from klamm.admin import AdminClient
from klamm.embedded.server_process import BrokerStartError
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tests.support.processes import free_port, wait_until
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def metrics() -> str:
    """Address of the gateway's metrics. Only the end of a long log is kept, so it cannot be read from there."""
    return f"127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def gateway(klamm_session_broker: klamm.Broker, metrics: str) -> Iterator[klamm.Gateway]:
    config = {"processes": 2, "metrics.listen": metrics}
    with klamm.Gateway(klamm_session_broker.bootstrap_servers, config=config) as gateway:
        yield gateway


def fetched(metrics: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{metrics}{path}", timeout=30) as answer:
        text: str = answer.read().decode()
        return text


def metric(metrics: str, name: str) -> float:
    page = fetched(metrics, "/metrics")
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.MULTILINE))


def is_ready(metrics: str) -> bool:
    """Return whether all processes take connections."""
    with contextlib.suppress(HTTPError):
        return fetched(metrics, "/ready") == "OK\n"
    return False


def children(pid: int | None) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def served_sockets(pid: int) -> int:
    """Return the number of sockets of a process."""
    count = 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            count += os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:")
    return count


def test_connections_are_spread_evenly_and_counted_together(gateway: klamm.Gateway, metrics: str) -> None:
    wait_until(lambda: metric(metrics, "klamm_gateway_connections") == 0, timeout_s=60, what="none of another test")
    workers = children(gateway.pid)
    clients = [WireClient(gateway.bootstrap_servers) for _ in range(10)]
    try:
        for client in clients:
            assert client.ask(ApiVersionsRequest(), ApiVersionsResponse, 2).error_code == 0
        wait_until(lambda: metric(metrics, "klamm_gateway_connections") == 10, timeout_s=60, what="ten connections")
        busy = {worker: served_sockets(worker) for worker in workers}
    finally:
        for client in clients:
            client.close()
    wait_until(lambda: metric(metrics, "klamm_gateway_connections") == 0, timeout_s=60, what="none left")
    # two sockets of each connection, to the client and to the broker
    wait_until(
        lambda: all(8 <= busy[worker] - served_sockets(worker) <= 12 for worker in workers),
        timeout_s=60,
        what="the end of ten connections of two processes",
    )


def test_client_connected_to_both_processes_is_listed_once(gateway: klamm.Gateway, metrics: str) -> None:
    clients = [WireClient(gateway.bootstrap_servers, client_id="in-both") for _ in range(4)]
    try:
        for client in clients:
            assert client.ask(ApiVersionsRequest(), ApiVersionsResponse, 2).error_code == 0
        row = 'in-both</td><td class="word">127.0.0.1</td><td class="number">4</td>'
        wait_until(lambda: row in fetched(metrics, "/"), timeout_s=60, what="one row with four connections")
        wait_until(
            lambda: json.loads(fetched(metrics, "/gateway.json"))["silent_processes"] == 0,
            timeout_s=60,
            what="both processes to report",
        )
        assert json.loads(fetched(metrics, "/policies.json"))["configured"] == []
    finally:
        for client in clients:
            client.close()


@pytest.mark.long
def test_invalid_rules_file_is_reported_after_failed_reload(klamm_session_broker: klamm.Broker, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("rules: [{name: few, partitions: {max: 4}}]")
    metrics = f"127.0.0.1:{free_port()}"
    config = {
        "processes": 2,
        "metrics.listen": metrics,
        "create.topic.policy.class.name": "klamm.policy.rules:RulesPolicy",
        "policy.rules.file": str(rules),
        "policy.reload.interval.ms": 20,
    }
    with klamm.Gateway(klamm_session_broker.bootstrap_servers, config=config):
        wait_until(lambda: is_ready(metrics), timeout_s=60, what="two processes to be ready")
        assert "klamm_policy_last_reload_successful 1" in fetched(metrics, "/metrics")
        rules.write_text("rules: [{name: few}]")
        remark = "OK, but the policies were not reloaded: "
        wait_until(lambda: fetched(metrics, "/ready").startswith(remark), timeout_s=60, what="the failed reload")
        assert "rules[0]: the rule checks nothing" in fetched(metrics, "/ready")
        wait_until(
            lambda: "klamm_policy_last_reload_successful 0" in fetched(metrics, "/metrics"),
            timeout_s=60,
            what="the metrics of both processes",
        )
        assert "The policies were not reloaded" in fetched(metrics, "/")


def test_killed_process_is_replaced_and_clients_reconnect(gateway: klamm.Gateway, metrics: str) -> None:
    producer = Producer({"bootstrap.servers": gateway.bootstrap_servers, "log_level": 0})
    producer.produce("through-workers", b"before")
    assert producer.flush(60) == 0
    before = children(gateway.pid)
    # when
    for worker in before:
        os.kill(worker, signal.SIGKILL)
    producer.produce("through-workers", b"after")
    # then
    assert producer.flush(60) == 0
    wait_until(
        lambda: len(set(children(gateway.pid)) - set(before)) == 2 and is_ready(metrics),
        timeout_s=60,
        what="new processes",
    )
    with AdminClient(gateway.bootstrap_servers) as admin:
        assert admin.describe_cluster().result().nodes


def test_worker_start_failure_is_reported(
    klamm_session_broker: klamm.Broker, make_klamm_gateway: Callable[..., klamm.Gateway]
) -> None:
    config = {"processes": 2, "create.topic.policy.class.name": "no.such:Policy"}
    with pytest.raises(BrokerStartError, match=r"no\.such"):
        make_klamm_gateway(klamm_session_broker.bootstrap_servers, config=config)


def test_requests_in_flight_are_answered_when_the_gateway_stops(
    klamm_session_broker: klamm.Broker, make_klamm_gateway: Callable[..., klamm.Gateway]
) -> None:
    metrics = f"127.0.0.1:{free_port()}"
    config = {"processes": 2, "metrics.listen": metrics}
    gateway = make_klamm_gateway(klamm_session_broker.bootstrap_servers, config=config)
    workers = children(gateway.pid)
    host, _, port = gateway.bootstrap_servers.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        # given: a Fetch that the broker answers late, because there is nothing to fetch
        body = b"\xff\xff\xff\xff" + (4000).to_bytes(4) + (1).to_bytes(4) + (1000).to_bytes(4) + b"\0" + bytes(4)
        fetch = b"\0\1\0\4\0\0\0\7\xff\xff" + body
        connection.sendall(len(fetch).to_bytes(4) + fetch)
        wait_until(lambda: metric(metrics, "klamm_gateway_requests_total") == 1, timeout_s=60, what="a request")
        # when
        gateway.stop()
        # then
        with connection.makefile("rb") as stream:
            answers = stream.read()
    assert answers[4:8] == b"\0\0\0\7"
    assert not [worker for worker in workers if os.path.exists(f"/proc/{worker}")]


@pytest.mark.long
def test_workers_start_from_saved_topology_without_upstream(
    make_klamm_gateway: Callable[..., klamm.Gateway], tmp_path: Path
) -> None:
    for folder in (tmp_path, tmp_path / "worker-0", tmp_path / "worker-1"):
        folder.mkdir(exist_ok=True)
        (folder / "topology.json").write_text('{"cluster_id": null, "nodes": {"1": ["127.0.0.1", 1]}}')
    gateway = make_klamm_gateway("127.0.0.1:1", data_dir=tmp_path, config={"processes": 2})
    assert len(children(gateway.pid)) == 2
    host, _, port = gateway.bootstrap_servers.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(b"\0")  # before that, a gateway does not connect to its upstream
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    assert "broker 0 at 127.0.0.1:1" in gateway.log_text()
