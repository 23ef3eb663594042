"""Values of the flags of klamm groups."""

from __future__ import annotations

import argparse

import pytest

from klamm import cli
from klamm.cli.connection import RequestError
from klamm.cli.groups.options import parse
from klamm.cli.groups.partitions import ChosenTopic, PlannedOffset, duration_ms, parse_offsets, parse_topic

AT = ("--bootstrap-server", "127.0.0.1:1")


def test_topic_flag_accepts_partitions() -> None:
    assert parse_topic("a") == ChosenTopic("a", None)
    assert parse_topic("a:0,2") == ChosenTopic("a", (0, 2))


@pytest.mark.parametrize("text", ["a:", "a:x", "a:0:1", f"a:{2**31}", "a:" + "9" * 5000])
def test_invalid_topic_flag_is_rejected(text: str) -> None:
    with pytest.raises(RequestError, match=r"Invalid (topic arg|partition)"):
        parse_topic(text)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("PT1H", 3_600_000),
        ("P1DT2M", 86_520_000),
        ("PT1.5S", 1500),
        ("-PT1S", -1000),
        ("PT-1M", -60_000),
        ("pt1s", 1000),
    ],
)
def test_duration_is_iso_8601(text: str, milliseconds: int) -> None:
    assert duration_ms(text) == milliseconds


@pytest.mark.parametrize("text", ["P", "PT", "1H", "P1H", "PT1D", "P1.5D", ""])
def test_invalid_duration_is_rejected(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="cannot be parsed"):
        duration_ms(text)


@pytest.mark.parametrize("text", ["P99999999999999999999D", f"P{'9' * 400}D", "PT-99999999999999999999S"])
def test_duration_beyond_64_bits_is_rejected(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="too long"):
        duration_ms(text)


def test_malformed_csv_of_offsets_is_rejected() -> None:
    with pytest.raises(RequestError, match="field larger than field limit"):
        parse_offsets("g" * 200_000, has_one_group=True)


def test_offsets_file_may_have_group_column() -> None:
    text = 'a,0,5\ng,"b,c",1,7\n'
    assert parse_offsets(text, has_one_group=True) == (PlannedOffset(None, "a", 0, 5), PlannedOffset("g", "b,c", 1, 7))


@pytest.mark.parametrize("text", ["a,0,5", "g,a,0", "g,a,0,x", "g,a,0,99999999999999999999", "a"])
def test_offsets_file_of_several_groups_requires_group_column(text: str) -> None:
    with pytest.raises(RequestError, match="line 1: expected group,topic,partition,offset"):
        parse_offsets(text, has_one_group=False)


@pytest.mark.parametrize(
    "words", ["--to-offset 0", "--shift-by 0", "--to-datetime 1970-01-01T00:00:00Z", "--by-duration PT0S"]
)
def test_scenario_with_the_value_0_counts_as_given(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    reset = [*AT, "--reset-offsets", "--dry-run", "--group", "g", "--topic", "orders", *words.split()]
    flag = words.split(maxsplit=1)[0].removeprefix("--")
    assert getattr(parse(reset), flag.replace("-", "_")) is not None
    with pytest.raises(SystemExit):
        parse([*reset, "--to-earliest"])
    assert f'"[{flag}]"' in capsys.readouterr().err


def test_states_and_types_ignore_case() -> None:
    options = parse([*AT, "--list", "--state", "empty, STABLE", "--type", "classic"])
    assert (options.states, options.types) == ({"Empty", "Stable"}, {"Classic"})
    assert parse([*AT, "--list", "--state"]).states == frozenset()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--list --members", 'Option "[members]" can\'t be used with option "[list]"'),
        ("--list --describe --all-groups", "Command must include exactly one action"),
        ("--delete --group a --all-groups", 'Option "[group]" can\'t be used with option "[all-groups]"'),
        ("--list --timeout 0", "expected a whole number from 1"),
    ],
)
def test_conflicting_flags_exit_with_2(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse([*AT, *words.split()])
    assert ended.value.code == cli.EXIT_USAGE
    assert message in capsys.readouterr().err


def test_regular_expression_is_checked_without_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["groups", "--validate-regex", "a.*"]) == cli.EXIT_OK
    assert cli.main(["groups", "--validate-regex", "a["]) == cli.EXIT_FAILED
    assert capsys.readouterr().err == "The regular expression `a[` is invalid: missing ]: [.\n"
