"""Loop that lets policies check a change until they have checked exactly what is applied.

A policy may run in a thread, and other requests are served meanwhile. They may change the state that the decision
depends on: delete the topic, or set another config of the same resource. So a decision is made again after such a
change, and the policy is asked again if the new decision differs from the one it checked:

=======  ==================================================================  ===========================================
Step     What happens                                                        Next step
=======  ==================================================================  ===========================================
decide   ``decide`` is called, without a pause                               check
check    every decision that was not checked in this form is checked         decide if ``revision`` has changed or the
                                                                             policy has overridden a decision, else the
                                                                             caller applies the decisions
=======  ==================================================================  ===========================================

An override changes the request of one decision. The policy, and any other policy of the request, is then asked about
the result, even if the override has changed nothing: no override bypasses a second policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from klamm.protocol.errors import KafkaApiError
from klamm.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from klamm.protocol.types import ConfigOperation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from klamm.configs.operations import AlterOperation
    from klamm.policy.answers import Override

Decision = TypeVar("Decision")
Details = TypeVar("Details")

TWICE: Final = "The policy overrides what it has itself set: two of its rules contradict each other."
"""Message for a change that a policy overrides a second time."""


class Revision:
    """Number of changes of some state. Its owner advances it in the step that changes the state.

    A request that waits between its decision and the change, for a policy or because its time slice is used up,
    compares the number from before the decision with the current one. If they differ, it decides again.
    """

    __slots__ = ("changes", "rollbacks")

    def __init__(self) -> None:
        self.changes = 0
        """Number of changes, including rollbacks."""
        self.rollbacks = 0
        """Number of times the state was loaded from the store, which reverts changes that could not be stored."""

    def advance(self) -> None:
        """Record a change."""
        self.changes += 1

    def roll_back(self) -> None:
        """Record that the stored state replaced the current one."""
        self.changes += 1
        self.rollbacks += 1


async def decide_and_check(
    decide: Callable[[], Sequence[Decision | KafkaApiError]],
    details: Callable[[Decision], Details],
    check: Callable[[Details, Override | None], Awaitable[Override | None]],
    revision: Revision,
    override: Callable[[int, Override], Awaitable[None]] | None = None,
) -> list[Decision | KafkaApiError]:
    """Decide on changes and check each one; return the decisions, or the errors of those that are rejected.

    The caller must apply the decisions before it waits for anything.

    Args:
        decide: Function that decides on all changes. Each call returns as many outcomes, in the same order.
        details: Function that returns what is checked of a decision. Equal details are not checked again.
        check: Function that raises a KafkaApiError to reject a change, or returns an override of it. The second
            argument is the override that made the change; None at first. It must not override a change twice.
        revision: Revision of the state that the decisions depend on.
        override: Function that applies an override to the request for the decision with this index. ``decide`` is then
            called again, and the new decision is checked, even if it is the same. None means that ``check`` returns no
            override.
    """
    checked: dict[int, tuple[Details, KafkaApiError | None]] = {}
    overridden: dict[int, Override] = {}
    while True:
        before, is_final = revision.changes, True
        outcomes = list(decide())
        for index, decision in enumerate(outcomes):
            if isinstance(decision, KafkaApiError):
                continue
            checked_details = details(decision)
            if index not in checked or checked[index][0] != checked_details:
                try:
                    changes = await check(checked_details, overridden.get(index))
                except KafkaApiError as error:
                    # Dropping the traceback avoids a reference cycle: this frame refers to the error.
                    checked[index] = checked_details, error.with_traceback(None)
                else:
                    checked[index] = checked_details, None
                    if changes is not None and override is not None:
                        overridden[index] = changes
                        await override(index, changes)
                        del checked[index]
                        is_final = False
                        continue
            outcomes[index] = checked[index][1] or decision
        if is_final and revision.changes == before:
            return outcomes


def overridden_configs(
    configs: Sequence[tuple[str, str | None]], changed: Mapping[str, str | None]
) -> list[tuple[str, str | None]]:
    """Return the configs of a new topic, or of a replacing AlterConfigs, after an override."""
    kept = [(name, value) for name, value in configs if name not in changed]
    return [*kept, *((name, value) for name, value in changed.items() if value is not None)]


def overridden_operations(
    operations: Sequence[AlterOperation], changed: Mapping[str, str | None]
) -> list[AlterOperation]:
    """Return the operations of an IncrementalAlterConfigs after an override."""
    kept = [operation for operation in operations if operation.name not in changed]
    return [
        *kept,
        *(
            IncrementalAlterConfigsRequest.AlterableConfig(
                name=name,
                config_operation=ConfigOperation.DELETE if value is None else ConfigOperation.SET,
                value=value,
            )
            for name, value in changed.items()
        ),
    ]
