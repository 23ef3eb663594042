"""``klamm consume`` on a broker: the first record of each partition, by number and by time, header names, signals."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaProducer

import klamm
import klamm.clients
from klamm import cli
from klamm.admin import AdminClient, NewTopic
from klamm.cli.console import receiver

if TYPE_CHECKING:
    from collections.abc import Iterator

NOON_MS = 1_790_000_000_000
NOON = "2026-09-21T14:13:20Z"


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """Servers of a broker with topic ``t``: partition 0 has records 0 to 4, one a second from noon; partition 1 one."""
    with klamm.Broker() as broker:
        with AdminClient(broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("t", num_partitions=2)]).all().result()
        with KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for number in range(5):
                producer.send("t", b"a%d" % number, partition=0, timestamp_ms=NOON_MS + number * 1000).get(10)
            producer.send("t", b"b0", partition=1, timestamp_ms=NOON_MS).get(10)
        yield broker.bootstrap_servers


@pytest.mark.process
@pytest.mark.parametrize(
    ("flags", "values"),
    [
        (["--last", "2"], ["a3", "a4", "b0"]),
        (["--last", "1", "--partition", "0"], ["a4"]),
        (["--from-time", NOON], ["a0", "a1", "a2", "a3", "a4", "b0"]),
        (["--from-time", "2026-09-21T14:13:22.500Z"], ["a3", "a4"]),
        (["--from-time", "0001-01-01"], ["a0", "a1", "a2", "a3", "a4", "b0"]),
    ],
)
def test_consume_begins_at_number_or_time(
    servers: str, flags: list[str], values: list[str], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    where = ["consume", "--bootstrap-server", servers, "--topic", "t", "--max-messages", str(len(values))]
    assert cli.main([*where, *flags]) == 0
    assert sorted(capfdbinary.readouterr().out.decode().splitlines()) == values


@pytest.mark.process
@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--topic", "none", "--last", "1"], "Topic none does not exist"),
        (["--topic", "t", "--partition", "7", "--last", "1"], "Topic t has no partition 7"),
    ],
)
def test_consume_last_of_unknown_partition_fails(
    servers: str, flags: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["consume", "--bootstrap-server", servers, *flags]) == 1
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        ["--last", "1", "--from-time", NOON],
        ["--last", "1", "--from-beginning"],
        ["--from-time", NOON, "--partition", "0", "--offset", "3"],
        ["--last", "1", "--group", "g"],
        ["--from-time", "noon"],
    ],
)
def test_consume_rejects_two_first_records(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["consume", "--bootstrap-server", "127.0.0.1:1", "--topic", "t", *flags])
    assert flags[0] in capsys.readouterr().err


@pytest.mark.process
def test_non_utf_8_header_name_is_printed_with_replacement_characters(
    klamm_session_broker: klamm.Broker, klamm_topic: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    for name in ("caf\udce9", "café"):  # a surrogate escape stands for a byte that is not UTF-8
        klamm_session_broker.produce(klamm_topic, "v", headers={name: "x"})
    where = ["consume", "--bootstrap-server", klamm_session_broker.bootstrap_servers, "--topic", klamm_topic]
    assert cli.main([*where, "--from-beginning", "--max-messages", "2", "--property", "print.headers=true"]) == 0
    assert capfdbinary.readouterr().out.decode().splitlines() == ["caf\ufffd:x\tv", "café:x\tv"]


@pytest.mark.process
@pytest.mark.parametrize(("interrupted", "count"), [("poll", 0), ("close", 2)])
def test_terminated_group_member_commits_printed_records(
    servers: str, interrupted: str, count: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # given
    class Terminated(klamm.clients.KafkaConsumer):
        def poll(self, *args: Any, **kwargs: Any) -> Any:
            records = super().poll(*args, **kwargs)
            if records and interrupted == "poll":
                signal.raise_signal(signal.SIGTERM)
            return records

        def close(self, *args: Any, **kwargs: Any) -> None:
            signal.raise_signal(signal.SIGTERM)  # the end of a login session sends several
            super().close(*args, **kwargs)

    monkeypatch.setattr(receiver, "KafkaConsumer", Terminated)
    group = f"terminated-{interrupted}"
    where = ["consume", "--bootstrap-server", servers, "--topic", "t", "--group", group]
    # when
    with pytest.raises(SystemExit, match="143"):
        cli.main([*where, "--from-beginning", "--max-messages", "2"])
    # then
    output = capfd.readouterr()
    assert (len(output.out.splitlines()), output.err) == (count, f"Processed a total of {count} messages\n")
    with AdminClient(servers) as admin:
        offsets = admin.list_group_offsets({group: None}).values()[group].result()
    assert sum(offset.offset for offset in offsets.values()) == count
