"""Waiting time of a client while hostile ones pipeline, send half of a request, or read nothing.

That no step holds the event loop is tested without a clock (``test_long_requests.py``, ``test_pipelining.py``). Here
whole processes are under load. A long run (``KLAMM_SOAK=1``) limits what is added to the waiting time, and logs it.
"""

from __future__ import annotations

import logging
import os
import statistics
from typing import TYPE_CHECKING, Final

import pytest

import klamm
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from tests.support.hostile_clients import LOADS, hostile_clients, waits
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

IS_SOAK: Final = bool(os.environ.get("KLAMM_SOAK"))
REQUESTS: Final = 1_000 if IS_SOAK else 20
TOPICS: Final = 5_000 if IS_SOAK else 1_000
"""Topics in a request that a gateway keeps until it is complete."""
MAX_ADDED_S: Final = 0.05
"""Limit of the waiting time that hostile clients add, for 99 requests of 100."""


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with klamm.Broker() as broker:
        yield broker.bootstrap_servers


@pytest.fixture(scope="module")
def gateway(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    rules = tmp_path_factory.mktemp("rules") / "rules.yaml"
    rules.write_text("rules:\n  - name: groups\n    group_naming: '[a-z]+'\n")
    config = {"flow.policy.class.name": "klamm.policy.rules:RulesPolicy", "policy.rules.file": str(rules)}
    with klamm.Gateway(broker, config={**config, "change.history.enable": "true"}) as gateway:
        yield gateway.bootstrap_servers


@pytest.mark.parametrize("load", LOADS if IS_SOAK else ("unfinished",))
@pytest.mark.parametrize("server", ["broker", "gateway"] if IS_SOAK else ["gateway"])
def test_other_clients_are_served_beside_hostile_ones(server: str, load: str, request: pytest.FixtureRequest) -> None:
    address = request.getfixturevalue(server)
    topic = CreateTopicsRequest.CreatableTopic
    topics = [topic(name=f"large-{number}", num_partitions=1, replication_factor=1) for number in range(TOPICS)]
    large = CreateTopicsRequest(topics=topics, timeout_ms=60_000, validate_only=True)
    with WireClient(address, timeout_s=60) as client:
        before = waits(client, REQUESTS)
        with hostile_clients(address, load):
            beside = waits(client, REQUESTS)
            assert len(client.ask(large, CreateTopicsResponse, 5).topics) == TOPICS
    usual, slow = (statistics.quantiles(each, n=100)[-1] for each in (before, beside))
    logger.warning(
        "%s, %s: median %.1f ms, 99 %% within %.1f ms, without hostile clients %.1f ms and %.1f ms",
        server, load, statistics.median(beside) * 1000, slow * 1000, statistics.median(before) * 1000, usual * 1000,
    )  # fmt: skip
    assert not IS_SOAK or slow - usual <= MAX_ADDED_S
