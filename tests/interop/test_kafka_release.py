"""scripts/kafka_release.py, which compares a release of Apache Kafka with the recorded answers."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tests.support.klamm import KlammBroker
from tests.support.scripts import load_script
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from tests.support.kafka import KafkaCluster

CASES = "^(create.duplicate-names|errors.set-null|delete.)"
"""A few quick cases. The whole comparison is a command of its own."""


@pytest.fixture(scope="module")
def release() -> Any:
    return load_script("kafka_release")


def test_recorded_release_has_no_differences(release: Any, real_kafka: KafkaCluster) -> None:
    recorded = release.read_cases(CASES)

    assert len(recorded) > 3
    assert list(release.compare(real_kafka.bootstrap_servers, recorded)) == []


def test_differing_response_is_printed(release: Any, real_kafka: KafkaCluster) -> None:
    recorded = copy.deepcopy(release.read_cases("^create.duplicate-names$"))
    (case,) = recorded.values()
    case["steps"][0]["result"] = {"another": "answer"}

    (text,) = release.compare(real_kafka.bootstrap_servers, recorded)

    assert text.startswith("create.duplicate-names: ")
    assert '-{"another": "answer"}' in text
    assert "INVALID_REQUEST" in text


def test_klamm_serves_the_versions_of_the_release(real_kafka: KafkaCluster) -> None:
    with KlammBroker() as klamm, WireClient(klamm.bootstrap_servers) as ours:
        served = versions(ours)
    with WireClient(real_kafka.bootstrap_servers) as theirs:
        of_kafka = versions(theirs)

    assert len(served) > 40
    assert {key: served[key] for key in served if served[key] != of_kafka.get(key)} == {}


def versions(client: WireClient) -> dict[int, tuple[int, int]]:
    """Return the first and last version of each API by key, but for the client config APIs (docs/adr/0002)."""
    keys = client.ask(ApiVersionsRequest(), ApiVersionsResponse, 2).api_keys
    return {api.api_key: (api.min_version, api.max_version) for api in keys if api.api_key not in {50, 51}}


def test_missing_release_argument_is_an_error(release: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        release.main([])
    assert "release" in capsys.readouterr().err
