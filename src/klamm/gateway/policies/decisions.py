"""Questions to the policies about parts of a request, with each denial as the error of one part of the response."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from klamm.gateway.policies.divided_requests import replaced
from klamm.gateway.relay.filter import Wait
from klamm.kafka_client.errors import ConnectionLostError
from klamm.lazy_dataclass import dataclass
from klamm.policy_runtime.decision import Revision, decide_and_check
from klamm.policy_runtime.service import UndecidedChange
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.server.attempt import NONE, ApiError, attempt
from klamm.server.time_slice import TimeSlice

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from klamm.gateway.policies.divided_requests import PartedApi
    from klamm.gateway.relay.filter import FilterContext
    from klamm.history.change import Author
    from klamm.policy.answers import Answer, Override
    from klamm.policy.details import Details
    from klamm.policy.kinds import PolicyKind
    from klamm.policy_runtime import Policies
    from klamm.policy_runtime.worker import PolicyOutcome
    from klamm.protocol.api import ApiKey
    from klamm.protocol.schema import Message

Part = TypeVar("Part")
Entry = TypeVar("Entry")

MAX_TURN_S: Final = 30.0
"""Seconds within which the upstream must respond while the turns of resources are held."""
TRIAL_LASTS_S: Final = 900.0
"""Seconds for which a trial is not repeated: the longest wait for a quota after which a part can still be changed."""
MAX_TRIALS: Final = 1000
"""Parts whose trials are remembered. An entry of CreateTopics has all configs, which are some 10 KiB."""
OBJECT_BYTES: Final = 300
"""Memory of a question, or of a topic or a partition of a request, estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed(Generic[Part]):
    """Part of a request that the upstream and the policy allow, with the changes of an override."""

    part: Part
    override: Override | None = None
    """Override that made this part; None if the policy changed nothing."""
    entry: Any = None
    """Entry in the upstream's response to the overridden part; None if it is that of the requested part."""

    @property
    def note(self) -> str | None:
        """Text for the client about what the policy changed; None if it changed nothing."""
        return None if self.override is None else self.override.note


class PassedTrials:
    """Parts that passed their trial, but whose change a quota on partitions (KIP-599) delays. Used on the loop only.

    The quota counts trials as well. If each retry of a client was tried again, the trial would use what the quota
    admits, and the change would never be made. So such a part is not tried a second time: the retry is decided on with
    the entry of the first trial, and then forwarded. The upstream checks and authorizes it as any other.

    Args:
        now: Monotonic clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._entries: dict[tuple[int, int], tuple[float, Any]] = {}
        """Time until which an entry is kept, and the entry, by hashes of part and author. The oldest one is first."""

    def remember(self, part: Any, entry: Any, decision: Any, author: Author) -> None:
        """Keep the trials of a delayed part for ``TRIAL_LASTS_S`` seconds.

        Args:
            part: Part of the request.
            entry: Its entry in the response to its trial.
            decision: Decision on the part. An overridden part may have passed a trial of its own.
            author: Author of the request.
        """
        tried = [(part, entry)]
        if isinstance(decision, Allowed) and decision.entry is not None:
            tried.append((decision.part, decision.entry))
        for tried_part, tried_entry in tried:
            if len(self._entries) >= MAX_TRIALS:
                del self._entries[next(iter(self._entries))]
            self._entries[_hashes(tried_part, author)] = self._now() + TRIAL_LASTS_S, tried_entry

    def take(self, part: Any, author: Author) -> Any:
        """Return the entry of a part that passed its trial, and forget it; None if there is none."""
        if not self._entries:  # without a quota there never is one
            return None
        until, entry = self._entries.pop(_hashes(part, author), (-math.inf, None))
        return entry if self._now() < until else None


def _hashes(part: Any, author: Author) -> tuple[int, int]:
    return hash(repr(part)), hash(author)


class _PartRejectedError(KafkaApiError):
    """Rejection of a part, by the policy or by the upstream, with its entry in the response."""

    def __init__(self, entry: object) -> None:
        super().__init__()
        self.entry = entry


async def decide_part(
    part: Part,
    ask: Callable[[Part, Override | None], Awaitable[ApiError | Override | None]],
    override: Callable[[Override], Awaitable[Allowed[Part] | Entry]],
    deny: Callable[[ApiError], Entry],
) -> Allowed[Part] | Entry:
    """Ask the policy about a part of a request that the upstream would accept.

    An overridden part is checked once more by the upstream and by the policy (``decide_and_check``). The state of the
    upstream has no revision here: the caller holds the turns of the resources.

    Args:
        part: Part of the request.
        ask: Function that asks the policy about a part (``ask_policy``), which this override has made.
        override: Function that applies an override and tries the result upstream. It returns the changed part, or the
            entry of the response if the upstream rejects it.
        deny: Function that returns the entry of a denied part.

    Returns:
        The part to forward, or its entry in the response.
    """
    current: Allowed[Part] | _PartRejectedError = Allowed(part=part)

    async def check(allowed: Allowed[Part], overridden: Override | None) -> Override | None:
        answer = await ask(allowed.part, overridden)
        if isinstance(answer, ApiError):
            raise _PartRejectedError(deny(answer))
        return answer

    async def apply(_: int, changes: Override) -> None:
        nonlocal current
        changed = await override(changes)
        current = replace(changed, override=changes) if isinstance(changed, Allowed) else _PartRejectedError(changed)

    (outcome,) = await decide_and_check(lambda: [current], lambda allowed: allowed, check, Revision(), apply)
    if isinstance(outcome, Allowed):
        return outcome
    if isinstance(outcome, _PartRejectedError):
        return cast("Entry", outcome.entry)
    raise outcome


async def divide(
    api: PartedApi,
    request: Any,
    context: FilterContext,
    decide: Callable[[Sequence[Any], Mapping[Any, Any]], Awaitable[Sequence[Any]]],
    *,
    send: Callable[[Any], Awaitable[Any]] | None = None,
    turns_of: Callable[[Sequence[Any]], AbstractAsyncContextManager[None]] | None = None,
    trials: PassedTrials | None = None,
) -> Any:
    """Forward the parts of a request that the upstream and the policy allow; return one entry for each part.

    The request is first forwarded with ``validate_only``, as the client. Errors of the upstream, also of its
    authorization, thus come before the policy, as in the broker. Then the policy decides on the valid parts. The
    allowed ones are forwarded, unless the request itself is ``validate_only``. The entries of all steps are returned in
    the order of the request.

    Parts that passed a trial before (``trials``) are decided on and forwarded first, without another trial. The trial
    of the other parts must not use what the quota admits.

    Args:
        api: API of the request.
        request: The request.
        context: Context of the request.
        decide: Function that takes the valid parts, and the entries of the upstream by their keys. It returns for each
            part an ``Allowed``, or the entry of a denied part.
        send: Function that sends a request as the client; None for ``forward`` of the context.
        turns_of: Function that returns the turns of valid parts, which are held until the upstream has responded. None
            if nothing that the policy sees depends on the state of the upstream.
        trials: Trials of delayed parts; None if no quota delays requests of this API.
    """
    send = send or context.forward
    trials = PassedTrials() if trials is None or request.validate_only else trials
    parts, entries, throttle_time_ms = api.parts_of(request), list[Any](), 0

    async def change(valid: Sequence[Any], passed: Mapping[Any, Any]) -> None:
        nonlocal throttle_time_ms
        async with nullcontext() if turns_of is None else turns_of(valid):
            decided = await decide(valid, passed)
            allowed = [each for each in decided if isinstance(each, Allowed)]
            results = [each for each in decided if not isinstance(each, Allowed)]
            notes = {api.key_of(each.part): each.note for each in allowed}
            forwarded = [each.entry or passed[api.key_of(each.part)] for each in allowed]
            if allowed and not request.validate_only:
                real = api.with_parts(request, [each.part for each in allowed], validate_only=False)
                response = await (send(real) if turns_of is None else forward_in_turn(real, context))
                throttle_time_ms = max(throttle_time_ms, response.throttle_time_ms)
                forwarded = list(api.entries_of(response))
            results += [_noted(entry, notes.get(api.key_of(entry))) for entry in forwarded]
        entries.extend(results)
        throttled = {api.key_of(entry) for entry in results if entry.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED}
        for part, decision in zip(valid, decided, strict=True):
            if api.key_of(part) in throttled:
                trials.remember(part, passed[api.key_of(part)], decision, context.author)

    delayed = {}
    async for part in TimeSlice().over(parts):
        if (entry := trials.take(part, context.author)) is not None:
            delayed[api.key_of(part)] = entry
    rest = [part for part in parts if api.key_of(part) not in delayed]
    if delayed:
        await change([part for part in parts if api.key_of(part) in delayed], delayed)
    if rest or not delayed:
        trial = await send(api.with_parts(request, rest, validate_only=True))
        throttle_time_ms = max(throttle_time_ms, trial.throttle_time_ms)
        entries += [entry for entry in api.entries_of(trial) if entry.error_code]
        passed = {api.key_of(entry): entry for entry in api.entries_of(trial) if not entry.error_code}
        await change([part for part in rest if api.key_of(part) in passed], passed)
    return api.merged(request, entries, throttle_time_ms=throttle_time_ms)


def _noted(entry: Any, note: str | None) -> Any:
    """Return the entry of a changed part with a text about what the policy changed; others as they are."""
    return entry if note is None or entry.error_code else replaced(entry, error_message=note)


async def forward_in_turn(request: Message, context: FilterContext) -> Any:
    """Forward a request while the turns of its resources are held; return the upstream's response.

    Raises:
        ConnectionLostError: The upstream does not respond. Other changes of these resources would have to wait.
    """
    try:
        async with asyncio.timeout(MAX_TURN_S):
            return await context.forward(request)
    except TimeoutError:
        raise ConnectionLostError(f"No response within {MAX_TURN_S:.0f} s") from None


async def ask_policy(
    policies: Policies, kind: PolicyKind, details: Details, overridden: Override | None = None, *, api: ApiKey
) -> ApiError | Override | None:
    """Ask the policy about a change, which ``overridden`` has made.

    Returns:
        The error for the client, the changes to make, or None when the change is allowed as it is.
    """
    override, error = await attempt(lambda: policies.check(kind, details, overridden), api=api)
    return override if error == NONE else error


async def denial(policies: Policies, kind: PolicyKind, details: Details, *, api: ApiKey) -> ApiError | None:
    """Ask a policy that cannot override; return the error for the client, None when the change is allowed."""
    answer = await ask_policy(policies, kind, details, api=api)
    return answer if isinstance(answer, ApiError) else None


def undecided(
    policies: Policies,
    kind: PolicyKind,
    subject: str,
    error: ApiError,
    context: FilterContext,
    *,
    validate_only: bool = False,
) -> ApiError | None:
    """Return the error of a change that no policy can decide on; None in audit mode, in which it is only logged.

    Args:
        policies: Policies in use.
        kind: Kind of the change.
        subject: The quoted topic, or the type and the quoted name of the resource.
        error: Error for the client in enforce mode.
        context: Context of the request.
        validate_only: Whether the client's request only validates.
    """
    author = context.author
    change = UndecidedChange(subject, author.principal, author.client_id, validate_only)
    reason = error.error_message or ErrorCode(error.error_code).name
    return error if policies.deny_undecided(kind, change, reason) else None


def effect(
    policies: Policies, kind: PolicyKind, details: Details, outcome: PolicyOutcome, overridden: Override | None = None
) -> ApiError | Answer | None:
    """Return the effect of a remembered outcome: the error for the client, an answer, or None when it allows."""
    try:
        return policies.answer(kind, details, outcome, overridden)
    except KafkaApiError as error:
        # The error is remembered with its outcome. Its traceback would keep the request, with all its records.
        error.with_traceback(None)
        return ApiError(error.error_code, error.error_message)


def remembered_effect(
    policies: Policies, kind: PolicyKind, details: Details, context: FilterContext
) -> ApiError | Answer | Wait | None:
    """Return the effect of a policy on a request about one resource, from the cached decision if there is one."""
    learned = context.wait_result or {}
    outcome = learned.get(details) or policies.cached_outcome(kind, details)
    if outcome is None:
        questions = {**learned, details: None}
        return Wait(work=partial(policies.learn, kind, questions), kept_bytes=OBJECT_BYTES * len(questions))
    return effect(policies, kind, details, outcome)
