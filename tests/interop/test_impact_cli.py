"""``--impact`` and ``--max-impact`` of ``klamm configs`` and ``klamm topics`` on a klamm broker."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaProducer

import klamm
from klamm import cli
from klamm.admin import AdminClient, NewTopic
from klamm.impact.facts import Need
from klamm.impact.findings import Impact
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsRequest, DescribeClientConfigsResponse
from tests.support.klamm import KlammBroker
from tests.support.klamm_tools import run_ours
from tests.support.security import PASSWORDS, PLAIN_MODULE, client_properties, sasl_settings
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.kafka_tools import Outcome

OLD_MS = 30 * 86_400_000


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """A broker with the topic ``orders``: 100 old records of 50 keys."""
    with KlammBroker() as broker:
        with AdminClient(broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("orders", 1, 1, configs={"retention.ms": "-1"})]).result()
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        for number in range(100):
            sent_ms = int(time.time() * 1000) - OLD_MS
            producer.send("orders", key=b"%d" % (number % 50), value=b"x" * 100, timestamp_ms=sent_ms)
        producer.close()
        yield broker.bootstrap_servers


def _retention(servers: str) -> str | None:
    with AdminClient(servers) as admin:
        return admin.topic_configs("orders").result()["retention.ms"].value


def test_validate_only_shows_impact(servers: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "configs",
        "--alter",
        "--topic",
        "orders",
        "--add-config",
        "retention.ms=1000",
        "--validate-only",
        "--impact",
    ]

    code, out, _ = run_ours(servers, words, capsys)

    assert code == 0
    assert "Impact: loss" in out
    assert "100 records" in out


def test_max_impact_exceeded_exits_with_4_without_a_change(servers: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["configs", "--alter", "--topic", "orders", "--delete-config", "retention.ms", "--max-impact", "disruption"]

    code, out, err = run_ours(servers, [*words, "-o", "json"], capsys)

    assert code == 4
    assert json.loads(out)["impact"]["level"] == "loss"
    assert "Nothing was changed" in err
    assert _retention(servers) == "-1"


def test_max_impact_not_exceeded_makes_the_change(servers: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["configs", "--alter", "--topic", "orders", "--add-config", "segment.ms=86400000", "--max-impact", "none"]

    code, out, _ = run_ours(servers, words, capsys)

    assert (code, out) == (0, "Completed updating config for topic orders.\n")


def test_json_has_stable_form(servers: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["configs", "--alter", "--topic", "orders", "--append-config", "cleanup.policy=compact", "--validate-only"]

    code, out, _ = run_ours(servers, [*words, "--impact", "-o", "json"], capsys)

    document = json.loads(out)
    assert code == 0
    assert document["validate_only"] is True
    assert document["impact"]["level"] == "loss"
    (finding,) = document["impact"]["findings"]
    assert finding["kind"] == "records_compacted"
    assert finding["figures"]["superseded_records"] == 50
    assert finding["names"] == {"topics": {"first": ["orders"], "count": 1}}


def test_quota_impact_reports_unknown_rates(servers: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["configs", "--alter", "--user", "alice", "--add-config", "producer_byte_rate=100", "--validate-only"]

    code, out, _ = run_ours(servers, [*words, "--impact"], capsys)

    assert code == 0
    assert "NOTICE: user alice: producer_byte_rate becomes 100 (was not limited)" in out
    assert "Unknown: the present rates of clients" in out


def test_client_config_impact_names_each_registered_client_once(
    servers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _register(servers, "reader", ["session.timeout.ms"])
    _register(servers, "other", ["session.timeout.ms"])
    _register(servers, "writer", ["acks"])
    user = ["configs", "--alter", "--user", "ANONYMOUS", "--validate-only", "--impact", "-o", "json"]

    code, out, _ = run_ours(servers, [*user, "--add-config", "session.timeout.ms=9000"], capsys)

    assert code == 0
    (finding,) = json.loads(out)["impact"]["findings"]
    assert finding["kind"] == "sessions_restart"
    assert finding["names"]["clients"] == {"first": ["ANONYMOUS/other", "ANONYMOUS/reader"], "count": 2}


def _register(servers: str, client_id: str, supported: list[str]) -> None:
    """Register the configs that a client supports (KIP-649)."""
    component = DescribeClientConfigsRequest.ComponentData(entity_type="client-id", match_type=0, match=client_id)
    request = DescribeClientConfigsRequest(
        components=[component], supported_configs=supported, resolve_entity=True, strict=False
    )
    with WireClient(servers) as client:
        client.ask(request, DescribeClientConfigsResponse, 0)


def test_added_partitions_report_moved_keys(servers: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["topics", "--alter", "--topic", "orders", "--partitions", "3", "--impact", "--validate-only"]

    code, out, _ = run_ours(servers, words, capsys)

    assert code == 0
    assert "DISRUPTION: topic orders" in out


def test_revert_shows_impact_of_restored_values(servers: str, capsys: pytest.CaptureFixture[str]) -> None:
    with AdminClient(servers) as admin:
        admin.create_topics([NewTopic("reverted", 1, 1)]).result()
        before = (datetime.now(tz=UTC) - timedelta(seconds=1)).isoformat()
        admin.alter_topic_configs("reverted", set={"message.timestamp.type": "LogAppendTime"}).result()
    words = ["configs", "revert", "--topic", "reverted", "--to", before, "--impact", "--validate-only", "-o", "json"]

    code = cli.main([*words[:2], "--bootstrap-server", servers, *words[2:]])

    document = json.loads(capsys.readouterr().out)
    assert code == 0
    assert {each["name"] for each in document["results"]} == {"message.timestamp.type"}
    assert [finding["kind"] for finding in document["impact"]["findings"]] == ["timestamps_replaced"]


def test_deletion_above_max_impact_keeps_topic(servers: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, _ = run_ours(servers, ["topics", "--delete", "--topic", "orders", "--max-impact", "notice"], capsys)

    assert code == 4
    assert _retention(servers) == "-1"


@pytest.mark.parametrize(
    "words",
    [
        ["topics", "--delete", "--topic", "orders"],
        ["configs", "--alter", "--topic", "orders", "--add-config", "retention.ms=1000"],
    ],
)
def test_unknown_impact_keeps_everything(
    words: list[str], servers: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = "log offsets of 1 partition without a leader"
    impact = Impact(unknown=(unknown,), missing=Need.OFFSETS)
    monkeypatch.setattr("klamm.admin.impact.impact_of", lambda *_: impact)

    code, out, err = run_ours(servers, [*words, "--max-impact", "disruption"], capsys)

    assert code == 4
    assert f"Unknown: {unknown}" in out
    assert "Nothing was changed: the impact may be worse than --max-impact disruption, because facts" in out + err
    assert _retention(servers) == "-1"
    assert run_ours(servers, [*words, "--max-impact", "loss", "--validate-only"], capsys).exit_code == 0


def test_quota_with_unknown_rates_is_within_max_impact(servers: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["configs", "--alter", "--user", "alice", "--add-config", "producer_byte_rate=100", "--validate-only"]

    assert run_ours(servers, [*words, "--max-impact", "notice"], capsys).exit_code == 0


def test_impact_on_topic_that_principal_may_not_describe_is_unknown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # given
    as_user = {
        user: client_properties(
            tmp_path / f"{user}.properties",
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": f'{PLAIN_MODULE} required username="{user}" password="{PASSWORDS[user]}";',
            },
        )
        for user in ("admin", "alice")
    }
    with klamm.Broker(listen="SASL_PLAINTEXT://127.0.0.1:0", config=sasl_settings(authorizer=True)) as broker:

        def run(user: str, *words: str) -> Outcome:
            as_him = ("--command-config", str(as_user[user]))
            return run_ours(broker.bootstrap_servers, [*words, *as_him], capsys)

        change = ("configs", "--alter", "--topic", "orders", "--add-config", "retention.ms=1000")
        assert run("admin", "topics", "--create", "--topic", "orders").exit_code == 0
        allowed = ("--add", "--allow-principal", "User:alice", "--operation", "AlterConfigs", "--topic", "orders")
        assert run("admin", "acls", *allowed).exit_code == 0
        # when
        code, out, _ = run("alice", *change, "--max-impact", "notice")
        # then
        assert code == 4
        assert "Unknown: topic orders (" in out
        assert "retention.ms" not in run("admin", "configs", "--describe", "--topic", "orders").stdout
        assert run("alice", *change).exit_code == 0


def test_impact_of_a_listing_is_rejected(servers: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_ours(servers, ["topics", "--list", "--impact"], capsys).exit_code == 2
    assert run_ours(servers, ["configs", "--describe", "--topic", "orders", "--impact"], capsys).exit_code == 2
