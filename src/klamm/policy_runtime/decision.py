"""Loop that lets policies check a change until they have checked exactly what is applied.

A policy may run in a thread, and other requests are served meanwhile. They may change the state that the decision
depends on: delete the topic, or set another config of the same resource. So a decision is made again after such a
change, and the policy is asked again if the new decision differs from the one it checked:

=======  ==================================================================  ===========================================
Step     What happens                                                        Next step
=======  ==================================================================  ===========================================
decide   ``decide`` is called, without a pause                               check
check    every decision that was not checked in this form is checked         decide if ``revision`` has changed, else
                                                                             the caller applies the decisions
=======  ==================================================================  ===========================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from klamm.protocol.errors import KafkaApiError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

Decision = TypeVar("Decision")
Details = TypeVar("Details")


async def decide_and_check(
    decide: Callable[[], Sequence[Decision | KafkaApiError]],
    details: Callable[[Decision], Details],
    check: Callable[[Details], Awaitable[None]],
    revision: Callable[[], object],
) -> list[Decision | KafkaApiError]:
    """Decide on changes and check each one; return the decisions, or the errors of those that are rejected.

    The caller must apply the decisions before it waits for anything.

    Args:
        decide: Function that decides on all changes. Each call returns as many outcomes, in the same order.
        details: Function that returns what is checked of a decision. Equal details are not checked again.
        check: Function that raises a KafkaApiError to reject a change.
        revision: Function that returns a value that differs after the state was changed by others.
    """
    checked: dict[int, tuple[Details, KafkaApiError | None]] = {}
    while True:
        before = revision()
        outcomes = list(decide())
        for index, decision in enumerate(outcomes):
            if isinstance(decision, KafkaApiError):
                continue
            asked = details(decision)
            if index not in checked or checked[index][0] != asked:
                checked[index] = asked, await _refusal(check, asked)
            outcomes[index] = checked[index][1] or decision
        if revision() == before:
            return outcomes


async def _refusal(check: Callable[[Details], Awaitable[None]], details: Details) -> KafkaApiError | None:
    try:
        await check(details)
    except KafkaApiError as error:
        return error
    return None
