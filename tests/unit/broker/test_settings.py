"""Flags and properties of the broker command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from klamm.broker.main import main
from klamm.broker.settings import parse_arguments
from klamm.properties import SettingsError


@pytest.mark.parametrize(
    ("arguments", "directory"),
    [
        ([], "klamm-data"),
        (["--set", "log.dirs=/data/klamm"], "/data/klamm"),
        (["--set", "log.dir=/data/one"], "/data/one"),
        (["--set", "log.dir=/data/one", "--set", "log.dirs=/data/two"], "/data/two"),
        (["--data-dir", "/data/flag"], "/data/flag"),
    ],
)
def test_data_directory_is_read_from_flag_or_properties(arguments: list[str], directory: str) -> None:
    assert parse_arguments(arguments).data_dir == Path(directory)


def test_multiple_log_dirs_are_rejected() -> None:
    with pytest.raises(SettingsError, match=r"log\.dirs=/a,/b: expected a single directory"):
        parse_arguments(["--set", "log.dirs=/a,/b"])


@pytest.mark.parametrize(
    ("arguments", "cordoned"),
    [([], "klamm-data"), (["--set", "log.dirs=data"], "data"), (["--data-dir", "/data"], "/data"), ([], "*")],
)
def test_data_directory_can_be_cordoned_in_properties(arguments: list[str], cordoned: str) -> None:
    assert parse_arguments([*arguments, "--set", f"cordoned.log.dirs={cordoned}"]).static_configs


def test_cordon_of_another_directory_is_rejected() -> None:
    with pytest.raises(SettingsError, match="Missing entries : /tmp/kafka-logs"):
        parse_arguments(["--data-dir", "/data", "--set", "cordoned.log.dirs=/tmp/kafka-logs"])


def test_data_directory_of_apache_kafka_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\n")
    with pytest.raises(SettingsError, match="belongs to an Apache Kafka broker"):
        parse_arguments(["--set", f"log.dirs={tmp_path}"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("num.partitons", "unknown config num.partitons; did you mean num.partitions?"),
        ("Log.Retention.MS", "unknown config Log.Retention.MS; did you mean log.retention.ms?"),
        ("zzz", "unknown config zzz"),
    ],
)
def test_unknown_config_is_rejected_with_nearest_name(name: str, message: str) -> None:
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
        parse_arguments(["--set", f"{name}=1", "--set", "num.partitions=1"])


def test_unknown_config_is_accepted_with_a_policy_class() -> None:
    parse_arguments(["--set", "house.limit=1", "--set", "create.topic.policy.class.name=house:Policy"])


@pytest.mark.parametrize(
    ("flag", "assignment"),
    [
        (["--listen", "127.0.0.1:1"], "listeners=127.0.0.1:2"),
        (["--advertise", "a:1"], "advertised.listeners=PLAINTEXT://b:1"),
        (["--data-dir", "a"], "log.dirs=b"),
        (["--data-dir", "a"], "log.dir=b"),
        (["--metrics", "127.0.0.1:0"], "metrics.listen="),
    ],
)
def test_config_set_by_flag_and_by_set_is_rejected(flag: list[str], assignment: str) -> None:
    with pytest.raises(SettingsError, match=f"^--set {assignment}: {flag[0]} sets this config, too"):
        parse_arguments([*flag, "--set", assignment])


@pytest.mark.parametrize(
    ("brokers", "rack", "racks"),
    [
        (1, None, (None,)),
        (1, "a", ("a",)),
        (1, "row 1, shelf 2", ("row 1, shelf 2",)),
        (3, None, (None, None, None)),
        (3, "a", ("a", "a", "a")),
        (3, "a, b,c", ("a", "b", "c")),
        (3, "a,,c", ("a", None, "c")),
    ],
)
def test_racks_are_assigned_to_broker_ids(brokers: int, rack: str | None, racks: tuple[str | None, ...]) -> None:
    more = [] if rack is None else ["--set", f"broker.rack={rack}"]
    assert parse_arguments(["--brokers", str(brokers), *more]).racks == racks


def test_number_of_racks_must_match_broker_ids() -> None:
    with pytest.raises(SettingsError, match=r"broker\.rack=a,b: expected one rack, or one for each of 3"):
        parse_arguments(["--brokers", "3", "--set", "broker.rack=a,b"])


@pytest.mark.parametrize("brokers", ["0", "two", "99999999999999999999", ""])
def test_wrong_number_of_brokers_is_rejected_with_the_allowed_range(
    brokers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_arguments(["--brokers", brokers])
    assert f"argument --brokers: {brokers}: expected a whole number from 1 to " in capsys.readouterr().err


def test_settings_of_a_binary_file_are_reported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    assert main(["--config", str(tmp_path / "binary")]) == 2
    assert capsys.readouterr().err[:-1].isprintable()
