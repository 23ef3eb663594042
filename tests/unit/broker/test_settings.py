"""Flags and properties that a broker is started with."""

from __future__ import annotations

from pathlib import Path

import pytest

from klamm.broker.settings import parse_arguments, unknown_names, warn_of_unknown
from klamm.properties import SettingsError


@pytest.mark.parametrize(
    ("arguments", "directory"),
    [
        ([], "klamm-data"),
        (["--set", "log.dirs=/data/klamm"], "/data/klamm"),
        (["--set", "log.dir=/data/one"], "/data/one"),
        (["--set", "log.dir=/data/one", "--set", "log.dirs=/data/two"], "/data/two"),
        (["--set", "log.dirs=/data/klamm", "--data-dir", "/data/flag"], "/data/flag"),
    ],
)
def test_data_are_where_the_flag_or_the_properties_say(arguments: list[str], directory: str) -> None:
    assert parse_arguments(arguments).data_dir == Path(directory)


def test_several_directories_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"log\.dirs=/a,/b: expected a single directory"):
        parse_arguments(["--set", "log.dirs=/a,/b"])


def test_the_data_of_an_apache_kafka_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\n")
    with pytest.raises(SettingsError, match="belongs to an Apache Kafka broker"):
        parse_arguments(["--set", f"log.dirs={tmp_path}"])


@pytest.mark.parametrize(
    ("name", "warning"),
    [
        ("num.partitons", "unknown config num.partitons is ignored; did you mean num.partitions?"),
        ("Log.Retention.MS", "unknown config Log.Retention.MS is ignored; did you mean log.retention.ms?"),
        ("zzz", "unknown config zzz is ignored"),
    ],
)
def test_an_unknown_config_is_warned_of_with_the_nearest_known_one(name: str, warning: str) -> None:
    assert unknown_names({name: "1", "num.partitions": "1"}) == (name,)
    assert warn_of_unknown(name) == warning


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
def test_each_broker_id_has_a_rack(brokers: int, rack: str | None, racks: tuple[str | None, ...]) -> None:
    more = [] if rack is None else ["--set", f"broker.rack={rack}"]
    assert parse_arguments(["--brokers", str(brokers), *more]).racks == racks


def test_racks_that_are_not_as_many_as_the_broker_ids_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"broker\.rack=a,b: expected one rack, or one for each of 3"):
        parse_arguments(["--brokers", "3", "--set", "broker.rack=a,b"])
