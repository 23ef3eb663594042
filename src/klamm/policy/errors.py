"""What goes wrong with policies themselves."""

from __future__ import annotations

from klamm.protocol.errors import ErrorCode, KafkaApiError


class PolicyLoadError(Exception):
    """A policy that is asked for cannot be had: the broker must not start. The message names the property."""


class PolicyFailedError(KafkaApiError):
    """A policy broke instead of deciding. The client learns no more than that; the cause is in the log."""

    error_code = ErrorCode.UNKNOWN_SERVER_ERROR


class PolicyTimeoutError(KafkaApiError):
    """A policy took too long to decide, so nothing happens. No code that makes clients try again by themselves."""

    error_code = ErrorCode.UNKNOWN_SERVER_ERROR
