"""Errors that are returned to the peer."""

from __future__ import annotations

from klamm.protocol.codec import encode
from klamm.protocol.errors import InvalidConfigError
from klamm.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsResponse


def test_error_message_is_kept() -> None:
    assert InvalidConfigError("so").error_message == "so"
    assert InvalidConfigError().error_message is None
    assert str(InvalidConfigError()) == "INVALID_CONFIG"


def test_error_message_is_truncated_for_the_oldest_version() -> None:
    """A rejected value of a megabyte is not returned in full: every version must be able to encode the response."""
    message = InvalidConfigError("\U0001f600" * 1_000_000).error_message
    assert message is not None
    assert message.endswith("…")
    answer = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(error_message=message)
    assert len(encode(IncrementalAlterConfigsResponse(responses=[answer]), 0)) < 32_767 + 50
