"""Error codes as exceptions."""

from __future__ import annotations

import pytest

from klamm.kafka_client.errors import api_error, raise_for_code
from klamm.policy.errors import PolicyFailedError
from klamm.protocol.errors import ErrorCode, InvalidRequestError, KafkaApiError, MessageTooLargeError
from klamm.storage.log.validation import LongBatchError


def test_error_code_becomes_its_exception_class() -> None:
    error = api_error(42, "no")
    assert type(error) is InvalidRequestError
    assert error.error_message == "no"


def test_error_code_without_own_class_keeps_its_code() -> None:
    error = api_error(ErrorCode.FENCED_INSTANCE_ID)
    assert error.error_code is ErrorCode.FENCED_INSTANCE_ID
    assert type(error).__name__ == "FencedInstanceIdError"
    assert type(error) is type(api_error(ErrorCode.FENCED_INSTANCE_ID, "again"))


@pytest.mark.parametrize("cause", [PolicyFailedError, LongBatchError])
def test_error_code_does_not_become_the_exception_of_one_of_its_causes(cause: type[KafkaApiError]) -> None:
    error = api_error(cause.error_code)
    assert not isinstance(error, cause)
    assert type(error).__name__ in {"UnknownServerError", "RequestTimedOutError"}


def test_rejected_batch_is_not_reported_as_a_damaged_one() -> None:
    assert type(api_error(ErrorCode.MESSAGE_TOO_LARGE)) is MessageTooLargeError


def test_unknown_error_code_is_reported_by_number() -> None:
    with pytest.raises(KafkaApiError, match="Error code 9999: new"):
        raise_for_code(9999, "new")


def test_code_zero_raises_no_error() -> None:
    raise_for_code(0)
