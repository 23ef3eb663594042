"""The Prometheus metrics of a running broker."""

from __future__ import annotations

import http.client
import re
import socket
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import klamm
from klamm.admin import AdminClient, NewTopic
from klamm.embedded.server_process import BrokerStartError
from klamm.protocol.errors import PolicyViolationError
from tests.support.processes import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RULES = """
rules:
  - name: names
    naming: "[a-z]+"
"""


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def broker(port: int, tmp_path: Path) -> Iterator[klamm.Broker]:
    (tmp_path / "rules.yaml").write_text(RULES)
    config = {
        "metrics.listen": f"127.0.0.1:{port}",
        "create.topic.policy.class.name": "klamm.policy.rules:RulesPolicy",
        "policy.rules.file": str(tmp_path / "rules.yaml"),
    }
    with klamm.Broker(config=config) as broker:
        yield broker


def get(port: int, path: str = "/metrics", method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def samples(page: str) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in (line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    }


def test_metrics_page_counts_requests_and_decisions(broker: klamm.Broker, port: int) -> None:
    # given
    with AdminClient(broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name="orders", num_partitions=3, configs={"flush.ms": "5"})]).all().result()
        with pytest.raises(PolicyViolationError, match="does not match"):
            admin.create_topics([NewTopic(name="LOUD")]).all().result()
        # when
        status, page = get(port)
    # then
    assert status == 200
    metrics = samples(page)
    assert metrics['klamm_requests_total{api="CREATE_TOPICS"}'] == 2
    assert metrics['klamm_request_errors_total{api="CREATE_TOPICS",error="POLICY_VIOLATION"}'] == 1
    assert metrics['klamm_request_duration_seconds_bucket{api="CREATE_TOPICS",le="+Inf"}'] == 2
    assert metrics['klamm_policy_decisions_total{policy="create.topic",mode="enforce",action="allow"}'] == 1
    assert metrics['klamm_policy_decisions_total{policy="create.topic",mode="enforce",action="deny"}'] == 1
    assert metrics['klamm_config_changes_total{resource_type="TOPIC"}'] == 1
    assert (metrics["klamm_topics"], metrics["klamm_partitions"]) == (1, 3)
    assert metrics["klamm_connections"] >= 1
    assert metrics["klamm_received_bytes_total"] > 100
    assert metrics["klamm_sent_bytes_total"] > 100
    assert all(re.fullmatch(r"[a-z_]+(\{([a-z_]+=\"[^\"]*\",?)+\})?", name) for name in metrics)


def test_http_errors_and_malformed_requests_are_answered(broker: klamm.Broker, port: int) -> None:
    assert broker.is_running
    assert get(port, "/nothing")[0] == 404
    assert get(port, method="POST")[0] == 405
    assert get(port, "/metrics?x=1", method="HEAD") == (200, "")
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(b"hello\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400")
    # The listener closes with bytes unread, and the kernel may then send a reset.
    with suppress(ConnectionError), socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(b"x" * 100_000)
        assert connection.recv(100) == b""
    assert get(port)[0] == 200


def test_metrics_are_imported_only_if_configured() -> None:
    code = "import sys, klamm.broker.main; print(any(name.startswith('klamm.broker.metrics') for name in sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout == "False\n"


def test_invalid_metrics_address_fails_broker_start() -> None:
    with (
        pytest.raises(BrokerStartError, match=r"metrics\.listen 'nowhere'"),
        klamm.Broker(config={"metrics.listen": "nowhere"}),
    ):
        pass
