"""Offset resets: files of offsets, and the offsets that were set before a failure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from unittest.mock import call, create_autospec

import pytest

from klamm.admin import (
    AdminClient,
    DescribeGroupsResult,
    GroupDescription,
    KafkaApiError,
    ListedOffset,
    ListGroupOffsetsResult,
    ListOffsetsResult,
    OffsetAndMetadata,
    PerKeyResult,
    TopicPartition,
)
from klamm.cli.groups.offset_reset import reset
from klamm.cli.groups.options import parse
from klamm.kafka_client.errors import api_error
from klamm.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path
    from unittest.mock import Mock

PARTITIONS = [TopicPartition("orders", number) for number in range(2)]


@pytest.fixture
def admin() -> Mock:
    """An admin client of a cluster with the groups a, b and c, whose commits for orders-1 of group b fail."""
    made: Mock = create_autospec(AdminClient, instance=True)

    def describe_groups(group_ids: Collection[str]) -> DescribeGroupsResult:
        result = DescribeGroupsResult(group_ids)
        for name in group_ids:
            group = GroupDescription(group_id=name, state="Empty", protocol_type="", protocol="", members=())
            result.succeed(name, group)
        return result

    def list_group_offsets(groups: Mapping[str, None]) -> ListGroupOffsetsResult:
        result = ListGroupOffsetsResult(groups)
        for name in groups:
            result.succeed(name, dict.fromkeys(PARTITIONS, OffsetAndMetadata(9)))
        return result

    def list_offsets(specs: Mapping[TopicPartition, int]) -> ListOffsetsResult:
        result = ListOffsetsResult(specs)
        for partition in specs:
            result.succeed(partition, ListedOffset(offset=5, timestamp=-1, leader_epoch=0))
        return result

    def alter_group_offsets(
        group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> PerKeyResult[TopicPartition, None]:
        result: PerKeyResult[TopicPartition, None] = PerKeyResult(offsets)
        for partition in offsets:
            if (group_id, partition.partition) == ("b", 1):
                result.fail(partition, api_error(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not this one"))
            else:
                result.succeed(partition, None)
        return result

    made.describe_groups.side_effect = describe_groups
    made.list_group_offsets.side_effect = list_group_offsets
    made.list_offsets.side_effect = list_offsets
    made.alter_group_offsets.side_effect = alter_group_offsets
    return made


def _reset(admin: Mock, words: str) -> int:
    options = parse(f"--bootstrap-server a:1 --reset-offsets --all-topics --to-earliest {words}".split())
    return reset(admin, options)


@pytest.mark.parametrize("moment", ["1969-12-31T23:59:59.999Z", "0001-01-01T00:00:00Z"])
def test_time_before_1970_selects_the_first_record(admin: Mock, moment: str) -> None:
    """Negative timestamps have other meanings in ListOffsets; -1 is the latest offset."""
    words = f"--bootstrap-server a:1 --reset-offsets --all-topics --group a --dry-run --to-datetime {moment}".split()
    assert reset(admin, parse(words)) == 0
    assert admin.list_offsets.call_args_list[0] == call(dict.fromkeys(PARTITIONS, 0))


def test_offsets_file_may_begin_with_a_byte_order_mark(
    admin: Mock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "offsets.csv"
    file.write_text("orders,0,5\n", encoding="utf-8-sig")
    words = f"--bootstrap-server a:1 --reset-offsets --group a --dry-run -o json --from-file {file}".split()
    assert reset(admin, parse(words)) == 0
    assert json.loads(capsys.readouterr().out)[0]["partitions"][0]["topic"] == "orders"


def test_exported_offsets_of_groups_with_commas_and_quotes_can_be_read(
    admin: Mock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given
    groups = ["--group", "a,b", "--group", 'the "c"']
    words = ["--bootstrap-server", "a:1", "--reset-offsets", *groups, "--dry-run"]
    reset(admin, parse([*words, "--all-topics", "--to-earliest", "--export"]))
    file = tmp_path / "offsets.csv"
    file.write_text(capsys.readouterr().out, encoding="utf-8")
    # when
    code = reset(admin, parse([*words, "--from-file", str(file), "-o", "json"]))
    # then
    assert code == 0
    assert [(each["group"], len(each["partitions"])) for each in json.loads(capsys.readouterr().out)] == [
        ("a,b", 2),
        ('the "c"', 2),
    ]


@pytest.mark.parametrize("mode", ["--dry-run", "--execute"])
def test_reset_from_file_skips_groups_without_lines(
    admin: Mock, tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    # given
    file = tmp_path / "offsets.csv"
    file.write_text("a,orders,0,5\nc,orders,0,5\n", encoding="utf-8")
    words = f"--bootstrap-server a:1 --reset-offsets --group a --group b --group c {mode} --from-file {file}".split()
    # when
    code = reset(admin, parse(words))
    # then
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line]
    assert (code, rows) == (
        1,
        [
            ["Error:", "No", "reset", "plan", "for", "group", "b", "found"],
            ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"],
            ["a", "orders", "0", "5"],
            ["c", "orders", "0", "5"],
        ],
    )
    committed = [group_id for (group_id, _), _ in admin.alter_group_offsets.call_args_list]
    assert committed == (["a", "c"] if mode == "--execute" else [])


def test_offsets_reset_before_failure_are_shown(admin: Mock, capsys: pytest.CaptureFixture[str]) -> None:
    # when
    with pytest.raises(KafkaApiError, match="not this one"):
        _reset(admin, "--group a --group b --group c --execute")
    # then
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line]
    assert rows == [
        ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"],
        ["a", "orders", "0", "5"],
        ["a", "orders", "1", "5"],
        ["b", "orders", "0", "5"],
    ]


def test_json_lists_reset_groups(admin: Mock, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KafkaApiError):
        _reset(admin, "--group b --group c --execute -o json")
    groups = json.loads(capsys.readouterr().out)
    assert [(group["group"], group["executed"], len(group["partitions"])) for group in groups] == [
        ("b", True, 1),
        ("c", False, 0),
    ]


def test_failure_before_reset_shows_only_error(admin: Mock, capsys: pytest.CaptureFixture[str]) -> None:
    admin.list_group_offsets.side_effect = TimeoutError("late")
    with pytest.raises(TimeoutError):
        _reset(admin, "--group a --execute")
    assert not capsys.readouterr().out
