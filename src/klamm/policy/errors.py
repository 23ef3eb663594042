"""Errors of the policies themselves."""

from __future__ import annotations

import traceback

from klamm.protocol.errors import ErrorCode, InvalidRequestError, KafkaApiError, PolicyViolationError


class PolicyLoadError(Exception):
    """A configured policy cannot be loaded, so the broker must not start. The message names the property."""


class PolicyFailedError(KafkaApiError):
    """A policy failed instead of deciding. The client receives no details; the cause is in the log."""

    error_code = ErrorCode.UNKNOWN_SERVER_ERROR


class PolicyTimeoutError(KafkaApiError):
    """A policy exceeded its time limit, so the request was not applied. The code is one that clients do not retry."""

    error_code = ErrorCode.UNKNOWN_SERVER_ERROR


class ImpactUnknownError(KafkaApiError):
    """The impact of a change could not be determined, so a policy that depends on it denies the change.

    The message says which facts are missing.
    """

    error_code = ErrorCode.POLICY_VIOLATION


class ImpactNeeded(BaseException):
    """A policy has read ``details.impact``, which is not set. The server collects the facts and calls it again.

    In a test of a policy, pass ``impact`` to the functions of ``klamm.policy.testing``.
    """

    def __init__(self) -> None:
        super().__init__("details.impact is not set: in a test, make the details with impact=Impact(...)")


class PolicyRaisedError(Exception):
    """A policy raised an error that is not a denial.

    It holds texts only: the error itself may be of the policy's own class, and run code of the policy when it is read.

    Args:
        class_name: Name of the error's class.
        trace: The error with its stack trace.
    """

    def __init__(self, class_name: str, trace: str) -> None:
        super().__init__(trace)
        self.class_name = class_name


def without_policy_code(error: BaseException) -> BaseException:
    """Return an error that a policy raised as an error of klamm: a denial, ImpactNeeded or PolicyRaisedError.

    Code, message and text of the policy's own classes may be code of the policy. So this must be called where the
    policy itself is called: there its time is limited, and ``os._exit`` does not end the process.
    """
    if isinstance(error, ImpactNeeded):
        return ImpactNeeded()
    try:
        denial = _denial_of(error)
    except BaseException as failure:  # noqa: BLE001 -- nothing that a policy raises may go further
        return PolicyRaisedError(type(failure).__name__, _trace(failure))
    return PolicyRaisedError(type(error).__name__, _trace(error)) if denial is None else denial


def _denial_of(error: BaseException) -> KafkaApiError | None:
    """Return the denial for the client that a policy has raised; None if the error is none.

    A policy may define its own classes, set any object as message, and a subclass may not set one at all.
    """
    if not isinstance(error, KafkaApiError):
        return None
    code = error.error_code
    if code not in ErrorCode.__members__.values() or code == ErrorCode.NONE:
        return None
    try:
        message = error.error_message
    except AttributeError:
        message = " ".join(str(part) for part in error.args) or None
    if message is not None:
        # A lone surrogate, which lenient file readers produce, cannot be encoded as UTF-8.
        message = str.encode(str(message), errors="backslashreplace").decode()
    for denial_class in (PolicyViolationError, InvalidRequestError):
        if code == denial_class.error_code:
            return denial_class(message)
    denial = KafkaApiError(message)
    vars(denial)["error_code"] = ErrorCode(code)
    return denial


def _trace(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error)).rstrip()
    except BaseException:  # noqa: BLE001 -- as above
        return "its stack trace cannot be read"
