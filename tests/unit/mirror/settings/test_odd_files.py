"""Properties files with subtle errors: rejected with the key as written, or parsed like Kafka."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from klamm.mirror.settings.mirror import MirrorSettings, parse_settings
from klamm.properties import SettingsError, parse_properties, read_properties

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from klamm.mirror.settings.flow import FlowSettings

BASE = "clusters = A, B\nA.bootstrap.servers = a:9092\nB.bootstrap.servers = b:9092\n"
FLOW = "A->B.enabled = true\n"


def settings(text: str) -> MirrorSettings:
    return parse_settings(parse_properties(text))


@pytest.mark.parametrize("key", ["topics", "topics.exclude", "groups", "config.properties.exclude"])
def test_pattern_with_comma_quantifier_is_rejected(key: str) -> None:
    """Java rejects it as well; Python takes a lonely brace for the letter, and nothing would be mirrored."""
    with pytest.raises(SettingsError, match=rf"^{key}=ab\{{1,3\}},c: .*: ab\{{1 has an unclosed brace"):
        settings(BASE + FLOW + f"{key} = ab{{1,3}}, c\n")


def test_other_braces_are_accepted() -> None:
    chosen = settings(BASE + FLOW + "topics = a{2}, [{]b, \\\\{c\n").flows[0].selection
    assert [name for name in ("a", "aa", "{b", "{c", "c") if chosen.includes(name)] == ["aa", "{b", "{c"]


@pytest.mark.parametrize(
    "line", ["A -> B.enabled = true", "A ->B.enabled = true", "A-> B.topics=x", "A->B .enabled=true"]
)
def test_flow_key_with_blank_is_rejected(line: str) -> None:
    """A key ends there, so that nothing would be mirrored."""
    with pytest.raises(SettingsError, match=r"a key ends at a blank: expected A->B\.key=value"):
        settings(BASE + line + "\n")


@pytest.mark.parametrize("alias", ["us west", "us/west", "ü", "A->C"])
def test_alias_invalid_in_topic_names_is_rejected(alias: str) -> None:
    with pytest.raises(SettingsError, match=rf"^clusters={alias},B: {alias} becomes part of topic names"):
        settings(f"clusters = {alias},B\n" + BASE.partition("\n")[2] + FLOW)


@pytest.mark.parametrize("name", ["", "a/b", "..", "x" * 250])
@pytest.mark.parametrize("key", ["offset.storage.topic", "A->B.offsets.storage.topic"])
def test_invalid_offsets_topic_name_is_rejected(key: str, name: str) -> None:
    with pytest.raises(SettingsError, match=f"^{key}={name}: expected the name of a topic"):
        settings(BASE + FLOW + f"{key} = {name}\n")


@pytest.mark.parametrize(("key", "value"), [("A->B.replication.factor", "0"), ("tasks.max", "1_0")])
def test_invalid_number_is_rejected_with_key_of_file(key: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"^{key}={value}: expected a whole number from 1"):
        settings(BASE + FLOW + f"{key} = {value}\n")


def test_bootstrap_servers_may_have_protocol_prefix() -> None:
    """Kafka's ``Utils.getHost`` ignores it; ``security.protocol`` determines the protocol."""
    parsed = settings(BASE.replace("a:9092", "PLAINTEXT://a:9092, SASL_SSL://[::1]:9093") + FLOW)
    assert parsed.clusters["A"].bootstrap_servers == ("a:9092", "[::1]:9093")


def test_file_with_utf_8_bom_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(BASE + FLOW, encoding="utf-8-sig")
    assert [flow.name for flow in parse_settings(read_properties(file)).flows] == ["A->B"]


@pytest.mark.parametrize("line", ["A->B.topics = orders # all of them", "B.producer.acks = all #x"])
def test_comment_after_value_is_rejected(line: str) -> None:
    with pytest.raises(SettingsError, match="expected no comment after the value"):
        settings(BASE + FLOW + line + "\n")
    free_text = 'A.sasl.jaas.config = org.example.Login required password="a #b";\nA->B.topics = a#b\n'
    assert settings(BASE + FLOW + free_text).flows[0].selection.includes("a#b")


@pytest.mark.parametrize(
    ("prefix", "is_on"),
    [("refresh.topics", lambda flow: flow.refresh_topics_enabled),
     ("sync.topic.configs", lambda flow: flow.sync_topic_configs_enabled),
     ("sync.topic.acls", lambda flow: flow.sync_topic_acls_enabled),
     ("refresh.groups", lambda flow: flow.groups.refresh_enabled),
     ("emit.checkpoints", lambda flow: flow.groups is not None)],
)  # fmt: skip
def test_negative_interval_disables_and_zero_is_rejected(prefix: str, is_on: Callable[[FlowSettings], bool]) -> None:
    key = f"{prefix}.interval.seconds"
    assert [is_on(settings(BASE + FLOW + f"{key}={value}").flows[0]) for value in (1, 2**63 - 1, -1)] == [
        True,
        True,
        False,
    ]
    if prefix == "emit.checkpoints":
        groups = settings(BASE + FLOW + f"{key}=0").flows[0].groups
        assert groups is not None
        assert groups.checkpoints_interval == timedelta(seconds=1)
        return
    with pytest.raises(SettingsError, match=f"^{key}=0: expected a whole number from 1, or -1 to switch it off"):
        settings(BASE + FLOW + f"{key}=0")
    settings(BASE + FLOW + f"{key}=0\n{prefix}.enabled=false\nemit.checkpoints.enabled=false\n")


def test_numbers_have_ranges_of_java_types() -> None:
    (flow,) = settings(
        BASE + FLOW + f"offset.lag.max={2**63 - 1}\nadmin.timeout.ms={2**40}\noffset.flush.interval.ms={2**63 - 1}\n"
        "A.consumer.fetch.min.bytes=0\nemit.heartbeats.interval.seconds=-1\n"
    ).flows
    assert (flow.offset_lag_max, flow.admin_timeout) == (2**63 - 1, timedelta(milliseconds=2**31 - 1))
    assert settings(BASE + FLOW + "offset.lag.max=-1").flows[0].offset_lag_max == 0
    assert settings(BASE + FLOW + "offset.storage.partitions=-1").flows[0].source_offsets_partitions == -1
    for line in (f"offset.lag.max={2**63}", "replication.factor=32768", f"tasks.max={2**31}"):
        with pytest.raises(SettingsError, match="expected a whole number from"):
            settings(BASE + FLOW + line)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("none", ("none", timedelta())), ("by_duration:P1DT2H", ("by_duration", timedelta(hours=26))),
     ("by_duration:PT-1S", None), ("by_duration", None), ("earliest:", None), ("Latest", None)],
)  # fmt: skip
def test_auto_offset_reset_accepts_kafka_values(value: str, expected: tuple[str, timedelta] | None) -> None:
    text = BASE + FLOW + f"A.consumer.auto.offset.reset={value}\n"
    if expected is None:
        with pytest.raises(SettingsError, match=f"^A.consumer.auto.offset.reset={value}: expected earliest, latest, n"):
            settings(text)
        return
    (flow,) = settings(text).flows
    assert (flow.auto_offset_reset, flow.reset_duration) == expected
