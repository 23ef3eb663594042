"""Errors of the policies themselves."""

from __future__ import annotations

from klamm.protocol.errors import ErrorCode, KafkaApiError


class PolicyLoadError(Exception):
    """A configured policy cannot be loaded, so the broker must not start. The message names the property."""


class PolicyFailedError(KafkaApiError):
    """A policy failed instead of deciding. The client receives no details; the cause is in the log."""

    error_code = ErrorCode.UNKNOWN_SERVER_ERROR


class PolicyTimeoutError(KafkaApiError):
    """A policy exceeded its time limit, so the request was not applied. The code is one that clients do not retry."""

    error_code = ErrorCode.UNKNOWN_SERVER_ERROR
