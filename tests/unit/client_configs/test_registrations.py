"""Registrations as records of the internal topic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.client_configs.entities import ClientConfigEntity
from klamm.client_configs.json_records import RecordFormatError
from klamm.client_configs.registrations import (
    TOPIC,
    TOPIC_CONFIGS,
    Registration,
    client_information,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
    registration,
)
from klamm.protocol.errors import InvalidRequestError

APP1 = ClientConfigEntity.of_client("alice", "app1")
LONG = b'{"user":"alice","client-id":"' + b"a" * 32_768 + b'"}'


def test_record_key_is_the_entity_as_sorted_json() -> None:
    """K649-41: Record key = the <user, client-id> entity."""
    assert encode_key(APP1) == b'{"client-id":"app1","user":"alice"}'


def test_record_value_has_client_information_and_supported_configs() -> None:
    """K649-42: Record value = the supported keys appended to the ClientInformation (software name and version)."""
    value = encode_value(registration(APP1, "apache-kafka-python/1.0", ["acks"]))
    assert value == b'{"client_information":"apache-kafka-python/1.0","supported_configs":["acks"],"version":0}'


def test_software_name_and_version_make_the_client_information() -> None:
    """K649-43: Software name/version come from the connection's ApiVersions v3+ request (KIP-511), else "unknown"."""
    assert client_information("klamm", "1.2") == "klamm/1.2"
    assert client_information("klamm", None) == "klamm/unknown"
    assert client_information(None, None) == "unknown"


def test_long_software_is_shortened_in_the_client_information() -> None:
    # given: what ApiVersions accepts, and a response cannot contain as one string
    longest = "a" * 32_767
    # when
    information = client_information(longest, longest)
    # then
    assert len(information) == 513
    assert information != client_information(longest, longest[:-1])


def test_long_software_of_earlier_records_is_shortened() -> None:
    name, version = "a" * 20_000, "1" * 20_000
    written = Registration(entity=APP1, client_information=f"{name}/{version}", supported_configs=("acks",))
    decoded = decode_value(APP1, encode_value(written))
    assert (decoded.client_information, len(decoded.client_information)) == (client_information(name, version), 513)


def test_registration_topic_has_infinite_retention() -> None:
    """K649-40: The broker writes the registration to an internal topic.

    K649-44: The topic must not be plain-compacted: same key for many versions, compaction would lose all but the last.
    """
    assert TOPIC == "__client_config_registrations"
    assert dict(TOPIC_CONFIGS) == {"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "-1"}


def test_empty_supported_configs_are_registered() -> None:
    """K649-47: [] registers a client that supports nothing."""
    assert registration(APP1, "a/1", []).supported_configs == ()


def test_duplicate_supported_config_is_registered_once() -> None:
    assert registration(APP1, "a/1", ["acks", "x", "acks"]).supported_configs == ("acks", "x")


@pytest.mark.parametrize("supported", [["k"] * 101, ["x" * 32_769], [""]], ids=["count", "bytes", "empty"])
def test_supported_configs_are_bounded(supported: list[str]) -> None:
    """K649-48: The registration topic is not mirrored and not writable by clients."""
    with pytest.raises(InvalidRequestError):
        registration(APP1, "a/1", supported)


@given(
    user=st.text(),
    client_id=st.text(),
    information=st.text(),
    supported=st.lists(st.text(min_size=1), max_size=20, unique=True),
)
def test_encoded_registration_decodes_to_itself(
    user: str, client_id: str, information: str, supported: list[str]
) -> None:
    written = Registration(
        entity=ClientConfigEntity.of_client(user, client_id),
        client_information=information,
        supported_configs=tuple(supported),
    )
    assert decode_value(decode_key(encode_key(written.entity)), encode_value(written)) == written


@pytest.mark.parametrize(
    "key", [None, b"", b"{", b"[]", b'{"user":"alice"}', b'{"user":1,"client-id":"a"}', b"\xff", LONG]
)
def test_invalid_record_key_raises_format_error(key: bytes | None) -> None:
    with pytest.raises(RecordFormatError):
        decode_key(key)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"1",
        b"{}",
        b'{"client_information":"a","supported_configs":[1]}',
        b'{"client_information":"a","supported_configs":["' + b"a" * 32_768 + b'"]}',
    ],
)
def test_invalid_record_value_raises_format_error(value: bytes) -> None:
    with pytest.raises(RecordFormatError):
        decode_value(APP1, value)


def test_unknown_fields_of_later_versions_are_ignored() -> None:
    value = b'{"client_information":"a/1","supported_configs":["acks"],"version":7,"since":1}'
    assert decode_value(APP1, value).supported_configs == ("acks",)
