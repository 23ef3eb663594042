"""Questions to the policies about parts of a request, with each denial as the error of one part of the response."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from klamm.gateway.interceptors import Postponed
from klamm.policy_runtime.decision import TWICE
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.server.attempt import NONE, ApiError, attempt

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from klamm.gateway.interceptors import InterceptedCall
    from klamm.policy.answers import Answer, Override
    from klamm.policy.details import Details
    from klamm.policy.kinds import PolicyKind
    from klamm.policy_runtime import Policies
    from klamm.policy_runtime.worker import PolicyOutcome
    from klamm.protocol.api import ApiKey

Part = TypeVar("Part")
Entry = TypeVar("Entry")

OVERRIDDEN_TWICE: Final = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, TWICE)
"""Error of a part that the policy overrides a second time."""
OBJECT_BYTES: Final = 300
"""Memory of a question, or of a topic or a partition of a request, estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed(Generic[Part]):
    """Part of a request that the upstream and the policy allow, with the changes of an override."""

    part: Part
    note: str | None = None
    """Text about what the policy changed; None if it changed nothing."""


async def judge(
    part: Part,
    ask: Callable[[Part], Awaitable[ApiError | Override | None]],
    override: Callable[[Override], Awaitable[Allowed[Part] | Entry]],
    deny: Callable[[ApiError], Entry],
) -> Allowed[Part] | Entry:
    """Ask the policy about a part of a request that the upstream would accept.

    An overridden part is checked once more by the upstream and by the policy. A second override rejects it. The
    broker's ``decide_and_check`` does the same, and decides again when its own state has changed.

    Args:
        part: Part of the request.
        ask: Function that asks the policy about a part (``verdict``).
        override: Function that applies an override and tries the result upstream. It returns the changed part, or the
            entry of the response if the upstream rejects it.
        deny: Function that returns the entry of a denied part.

    Returns:
        The part to forward, or its entry in the response.
    """
    answer = await ask(part)
    if answer is None:
        return Allowed(part=part)
    if isinstance(answer, ApiError):
        return deny(answer)
    changed = await override(answer)
    if not isinstance(changed, Allowed):
        return changed
    second = await ask(changed.part)
    if second is None:
        return Allowed(part=changed.part, note=answer.reason)
    return deny(second if isinstance(second, ApiError) else OVERRIDDEN_TWICE)


async def verdict(policies: Policies, kind: PolicyKind, details: Details, *, api: ApiKey) -> ApiError | Override | None:
    """Ask the policy about a change.

    The caller must hold the policy's turn.

    Returns:
        The error for the client, the changes to make, or None when the change is allowed as it is.
    """
    override, error = await attempt(lambda: policies.check(kind, details), api=api)
    return override if error == NONE else error


async def denial(policies: Policies, kind: PolicyKind, details: Details, *, api: ApiKey) -> ApiError | None:
    """Ask a policy that cannot override; return the error for the client, None when the change is allowed."""
    answer = await verdict(policies, kind, details, api=api)
    return answer if isinstance(answer, ApiError) else None


def remembered_answers(
    policies: Policies, kind: PolicyKind, questions: Sequence[Details], context: InterceptedCall
) -> list[ApiError | Answer | None] | Postponed:
    """Return the effects of a policy that remembers its decisions, one for each question about a request.

    Each is the error for the client, an answer, or None when the policy allows. Unless all are known, the request is
    judged again when they are.
    """
    learned: Mapping[Details, PolicyOutcome] | None = context.learned
    found = {details: policies.known(kind, details) if learned is None else learned[details] for details in questions}
    answers = []
    for details in questions:
        outcome = found[details]
        if outcome is None:
            return Postponed(work=partial(policies.learn, kind, found), kept_bytes=OBJECT_BYTES * len(found))
        answers.append((details, outcome))
    return [_enforced(policies, kind, details, outcome) for details, outcome in answers]


def _enforced(
    policies: Policies, kind: PolicyKind, details: Details, outcome: PolicyOutcome
) -> ApiError | Answer | None:
    """Return the effect of a remembered outcome: the error for the client, an answer, or None when it allows."""
    try:
        return policies.answer(kind, details, outcome)
    except KafkaApiError as error:
        # The error is remembered with its outcome. Its traceback would keep the request, with all its records.
        error.with_traceback(None)
        return ApiError(error.error_code, error.error_message)
