"""Files that look right at first sight: refused with the key as it stands there, or understood as Kafka does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.mirror.settings.mirror import MirrorSettings, parse_settings
from klamm.properties import SettingsError, parse_properties, read_properties

if TYPE_CHECKING:
    from pathlib import Path

BASE = "clusters = A, B\nA.bootstrap.servers = a:9092\nB.bootstrap.servers = b:9092\n"
FLOW = "A->B.enabled = true\n"


def settings(text: str) -> MirrorSettings:
    return parse_settings(parse_properties(text))


@pytest.mark.parametrize("key", ["topics", "topics.exclude", "groups", "config.properties.exclude"])
def test_a_number_of_times_that_the_list_splits_is_refused(key: str) -> None:
    """Java refuses it as well; Python takes a lonely brace for the letter, and nothing would be mirrored."""
    with pytest.raises(SettingsError, match=rf"^{key}=ab\{{1,3\}},c: .*: ab\{{1 has an unclosed brace"):
        settings(BASE + FLOW + f"{key} = ab{{1,3}}, c\n")


def test_other_braces_are_taken() -> None:
    chosen = settings(BASE + FLOW + "topics = a{2}, [{]b, \\\\{c\n").flows[0].selection
    assert [name for name in ("a", "aa", "{b", "{c", "c") if chosen.includes(name)] == ["aa", "{b", "{c"]


@pytest.mark.parametrize(
    "line", ["A -> B.enabled = true", "A ->B.enabled = true", "A-> B.topics=x", "A->B .enabled=true"]
)
def test_a_blank_within_a_flows_key_is_refused(line: str) -> None:
    """A key ends there, so that nothing would be mirrored."""
    with pytest.raises(SettingsError, match=r"a key ends at a blank: expected A->B\.key=value"):
        settings(BASE + line + "\n")


@pytest.mark.parametrize("alias", ["us west", "us/west", "ü", "A->C"])
def test_an_alias_that_no_topic_could_be_named_by_is_refused(alias: str) -> None:
    with pytest.raises(SettingsError, match=rf"^clusters={alias},B: {alias} becomes part of topic names"):
        settings(f"clusters = {alias},B\n" + BASE.partition("\n")[2] + FLOW)


@pytest.mark.parametrize("name", ["", "a/b", "..", "x" * 250])
@pytest.mark.parametrize("key", ["offset.storage.topic", "A->B.offsets.storage.topic"])
def test_a_topic_of_positions_that_can_not_be_named_so_is_refused(key: str, name: str) -> None:
    with pytest.raises(SettingsError, match=f"^{key}={name}: expected the name of a topic"):
        settings(BASE + FLOW + f"{key} = {name}\n")


@pytest.mark.parametrize(("key", "value"), [("A->B.replication.factor", "0"), ("tasks.max", "1_0")])
def test_a_wrong_number_names_the_key_as_it_stands_in_the_file(key: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"^{key}={value}: expected a whole number from 1"):
        settings(BASE + FLOW + f"{key} = {value}\n")


def test_addresses_may_name_a_protocol_as_for_kafkas_clients() -> None:
    """Kafka's ``Utils.getHost`` passes over it; ``security.protocol`` says what is spoken."""
    parsed = settings(BASE.replace("a:9092", "PLAINTEXT://a:9092, SASL_SSL://[::1]:9093") + FLOW)
    assert parsed.clusters["A"].bootstrap_servers == ("a:9092", "[::1]:9093")


def test_a_file_that_an_editor_marked_as_utf_8_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(BASE + FLOW, encoding="utf-8-sig")
    assert [flow.name for flow in parse_settings(read_properties(file)).flows] == ["A->B"]
