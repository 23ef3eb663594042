"""Interface between the policies and the APIs that they decide on, and the policies on names of groups."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from klamm.gateway.policies.decisions import remembered_effect
from klamm.gateway.policies.divided_requests import replaced
from klamm.gateway.relay.filter import FORWARD, Divide, Filter, Reply, Wait
from klamm.lazy_dataclass import dataclass
from klamm.policy.answers import Throttle
from klamm.policy.details import GroupDetails
from klamm.policy.kinds import FLOW
from klamm.protocol.errors import ErrorCode
from klamm.protocol.types import ResourceType
from klamm.server.attempt import ApiError
from klamm.server.time_slice import TimeSlice

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator

    from klamm.gateway.relay.filter import FilterContext, FilterResult
    from klamm.policy.kinds import PolicyKind
    from klamm.policy_runtime import Policies
    from klamm.protocol.schema import Message


class ResourceTurns:
    """Locks of the resources that are being changed through a gateway. Used on the event loop only.

    A policy sees the state of one topic, or of the configs of one resource. So two changes can break a rule together
    only if they concern the same one. A client that changes others does not delay them. The exception are configs of
    brokers, which topics inherit: the impact of their change depends on all topics, and the impact of a topic's change
    on them. So a change of brokers excludes changes of topics, which do not exclude each other.
    """

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[int, str], asyncio.Lock] = WeakValueDictionary()
        self._brokers = asyncio.Lock()
        """Held by a change of brokers, and for a moment by each change of topics that begins. It is fair, so neither
        waits forever."""
        self._topic_changes = 0
        """Number of changes of topics that have begun. They never wait for ``_brokers`` again."""
        self._are_topics_unchanged = asyncio.Event()
        self._are_topics_unchanged.set()

    @property
    def held(self) -> int:
        """Number of resources other than brokers whose turn is held or waited for."""
        return len(self._locks)

    def of_topics(self, names: Iterable[str]) -> contextlib.AbstractAsyncContextManager[None]:
        """Return the context manager to hold from reading the state of topics to the upstream's response."""
        return self.of((ResourceType.TOPIC, name) for name in names)

    @contextlib.asynccontextmanager
    async def of(self, resources: Iterable[tuple[int, str]]) -> AsyncIterator[None]:
        """Return the same for resources by type and name. All brokers count as one, because they share defaults."""
        keys = set(resources)
        kinds = {kind for kind, _ in keys}
        async with contextlib.AsyncExitStack() as held:
            if ResourceType.BROKER in kinds:
                await held.enter_async_context(self._brokers)
                await self._are_topics_unchanged.wait()
            elif ResourceType.TOPIC in kinds:
                async with self._brokers:
                    held.enter_context(self._changing_topics())
            # in one order, so that two requests never wait for each other
            async for key in TimeSlice().over(sorted(key for key in keys if key[0] != ResourceType.BROKER)):
                await held.enter_async_context(self._locks.setdefault(key, asyncio.Lock()))
            yield

    @contextlib.contextmanager
    def _changing_topics(self) -> Iterator[None]:
        self._topic_changes += 1
        self._are_topics_unchanged.clear()
        try:
            yield
        finally:
            self._topic_changes -= 1
            if not self._topic_changes:
                self._are_topics_unchanged.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyApi:
    """API that policies of one kind decide on."""

    key: int
    kind: PolicyKind
    filter: Callable[[Policies, ResourceTurns], Filter]
    """Returns the filter that asks the policies. Turns order the changes of each resource."""
    last_version: int | None = None
    """Last version that the policies can decide on; None if they can decide on all."""


class ChangeServer:
    """Server of an API that changes resources, if the policies allow it.

    Args:
        policies: Policies in use.
        turns: Turns of the resources that are changed.
    """

    def __init__(self, policies: Policies, turns: ResourceTurns) -> None:
        self._policies = policies
        self._turns = turns


def change_policy(
    kind: PolicyKind,
    request: type[Message],
    response: type[Message],
    handler: Callable[[Policies, ResourceTurns], Callable[[Any, FilterContext], Awaitable[Message]]],
    *,
    takes_turns: bool = True,
) -> PolicyApi:
    """Return the decision of policies on an API that changes resources.

    Args:
        kind: Policies that decide.
        request: Class of the request.
        response: Class of the response.
        handler: Function that returns the method which serves the API.
        takes_turns: Whether the method may hold turns, for which other clients wait.
    """
    return PolicyApi(
        key=request.API_KEY,
        kind=kind,
        filter=lambda policies, turns: Filter.serving(
            request, response, handler(policies, turns), is_exclusive=takes_turns
        ),
    )


def group_policy(
    request: type[Message],
    response: type[Message],
    denied: Callable[[ApiError], Message | ApiError],
    *,
    concerns: Callable[[Any], bool] = lambda _: True,
    throttles: bool = True,
    last_version: int | None = None,
) -> PolicyApi:
    """Return the decision of policies on the ``group_id`` of a request.

    Args:
        request: Class of the request.
        response: Class of the response.
        denied: Function that returns the response to a denied request.
        concerns: Function that returns whether the policy decides on a request; the others are forwarded.
        throttles: Whether the response can ask for the pause of a ``Throttle``.
        last_version: As in ``PolicyApi``.
    """

    def decide(policies: Policies, message: Any, context: FilterContext) -> FilterResult:
        if not concerns(message):
            return FORWARD
        author = context.author
        details = GroupDetails(
            group_id=message.group_id, principal=author.principal, client_id=author.client_id, listener=author.listener
        )
        answer = remembered_effect(policies, FLOW, details, context)
        if isinstance(answer, ApiError):
            failed = ErrorCode.UNKNOWN_SERVER_ERROR  # the policy did not decide
            code = failed if answer.error_code == failed else ErrorCode.INVALID_GROUP_ID
            return Reply(response=denied(ApiError(code, answer.error_message)))
        if isinstance(answer, Throttle) and throttles:
            return Divide(request=message, merge=partial(_throttled, answer.delay_ms))
        return answer if isinstance(answer, Wait) else FORWARD

    return PolicyApi(
        key=request.API_KEY,
        kind=FLOW,
        filter=lambda policies, _: Filter(request=request, response=response, decide=partial(decide, policies)),
        last_version=last_version,
    )


def _throttled(delay_ms: int, response: Any) -> Message:
    """Return a response with a pause for the client, in milliseconds."""
    changed: Message = replaced(response, throttle_time_ms=max(response.throttle_time_ms, delay_ms))
    return changed
