"""Negotiation of API versions."""

from __future__ import annotations

import pytest

from klamm.kafka_client.connection.connection import negotiate
from klamm.protocol.errors import UnsupportedVersionError
from klamm.protocol.messages.metadata import MetadataRequest

KEY = MetadataRequest.API_KEY


def test_highest_common_version_is_negotiated() -> None:
    assert negotiate(MetadataRequest, {KEY: (0, 9)}) == 9
    assert negotiate(MetadataRequest, {KEY: (0, 99)}) == MetadataRequest.VERSIONS[1]
    assert negotiate(MetadataRequest, {KEY: (0, 9)}, max_version=4) == 4


def test_missing_api_is_an_unsupported_version() -> None:
    """K339-40: If the broker does not offer key 44, the admin call fails with an "unsupported version" error; the API
    itself does not silently fall back.
    """
    with pytest.raises(UnsupportedVersionError, match=r"does not offer MetadataRequest \(key 3\)"):
        negotiate(MetadataRequest, {})


def test_no_common_version_is_an_unsupported_version() -> None:
    with pytest.raises(
        UnsupportedVersionError, match="offers MetadataRequest 0-3, but this call requires a version in 4-"
    ):
        negotiate(MetadataRequest, {KEY: (0, 3)}, min_version=4)
