"""klamm offsets: the values of its flags."""

from __future__ import annotations

import pytest

from klamm import cli
from klamm.cli.connection import RequestError
from klamm.cli.offsets import parse_rules, parse_time, parse_topic_and_partitions


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("a", [("a", 0), ("a", 1), ("a", 2), ("a", 3)]),
        ("a:1", [("a", 1)]),
        ("a:1-", [("a", 1), ("a", 2), ("a", 3)]),
        ("a:-2", [("a", 0), ("a", 1)]),
        ("a:1-3,b:0", [("a", 1), ("a", 2), ("b", 0)]),
        (":3", [("a", 3), ("b", 3)]),
        ("[ab]:0", [("a", 0), ("b", 0)]),
        ("a:", [("a", 0), ("a", 1), ("a", 2), ("a", 3)]),
    ],
)
def test_topic_partitions_rule_selects_topics_and_ranges(text: str, selected: list[tuple[str, int]]) -> None:
    rules = parse_rules(text)
    everything = [(topic, partition) for topic in "ab" for partition in range(4)]
    assert [each for each in everything if any(rule.selects(*each) for rule in rules)] == selected


@pytest.mark.parametrize("text", ["a:b", "a:1:2", "a:1-2-3", "[:1"])
def test_invalid_topic_partitions_rule_is_rejected(text: str) -> None:
    with pytest.raises(RequestError, match=r"Invalid rule specification|is an invalid regex"):
        parse_rules(text)


def test_all_partitions_are_selected_by_default() -> None:
    assert parse_topic_and_partitions(None, None).selects("any", 7)
    assert not parse_topic_and_partitions("a,b", "1,2").selects("a", 0)
    assert parse_topic_and_partitions("a,b", "1,2").selects("b", 2)


@pytest.mark.parametrize(("text", "timestamp"), [("latest", -1), ("-2", -2), ("latest-tiered", -5), ("17", 17)])
def test_time_is_name_or_timestamp(text: str, timestamp: int) -> None:
    assert parse_time(text) == timestamp


@pytest.mark.parametrize("text", ["soon", "", str(2**63)])
def test_invalid_time_is_named(text: str) -> None:
    with pytest.raises(RequestError, match=f"Malformed time argument {text}"):
        parse_time(text)


def test_empty_time_is_invalid(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["offsets", "--bootstrap-server", "127.0.0.1:1", "--time", ""]) == cli.EXIT_FAILED
    assert "Malformed time argument" in capsys.readouterr().err


def test_bootstrap_server_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["offsets"])
    assert ended.value.code == cli.EXIT_USAGE
    assert "--bootstrap-server must be specified" in capsys.readouterr().err
