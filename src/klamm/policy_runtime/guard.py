"""Runtime of one policy class: order of its calls, time limit, and replacement of an instance that hangs.

How a call runs:

===================  =================================================  ==============================================
Policy               Where it runs                                      Other requests meanwhile
===================  =================================================  ==============================================
only computes        on the event loop (``_ask_here``)                  not served. A call of 10 ms or more moves the
                                                                        policy to its thread until it is reloaded.
                                                                        A gateway uses the thread from the beginning.
others, last call    in its thread; the event loop blocks for up to     served only if the call takes longer than that
took less than 1 ms  ``PATIENCE_S`` (1 ms)
all others           in its thread                                      served
===================  =================================================  ==============================================

What happens when a call exceeds ``policy.timeout.ms``:

1. ``_finish`` creates a new instance, with the same limit for its creation.
2. The new instance replaces the old one. The old thread is a straggler: SystemExit is raised inside it, which ends a
   loop in Python code, but not a blocking system call. So is the thread of a creation that exceeds the limit.
3. The resource fails with PolicyTimeoutError and nothing is changed.

A call on the event loop cannot be interrupted. Its time is compared only after it has returned, and an endless loop
blocks the broker.

If no new instance can be created, or ``MAX_STRAGGLERS`` threads hang, the old instance stays. ``_unfinished`` keeps
its call, so the next request waits for that call first and fails with PolicyTimeoutError as long as it hangs.

``_unfinished`` is also set when a client disconnects during a call: the task that waited is cancelled, the call runs
on in its thread, and the next request waits for its end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from klamm.policy.errors import PolicyLoadError, PolicyTimeoutError
from klamm.policy.loader import FreshModules, LoadedPolicy, load_policy
from klamm.policy_runtime.outcomes import OutcomeCache
from klamm.policy_runtime.worker import PolicyOutcome, PolicyWorker, call_here

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from klamm.policy.details import Details
    from klamm.policy.kinds import PolicyKind, PolicySpec

logger = logging.getLogger(__name__)

MAX_STRAGGLERS: Final = 4
"""Number of threads hanging beyond the time limit from which no further instance is created."""
INLINE_LIMIT_S: Final = 0.01
"""Seconds that a policy that only computes may hold the event loop.

If a call takes longer, the policy runs in its thread
from then on. The limit is longer than any slice of a request.
"""


class Instance:
    """Policy object and its thread. The object is created, called and closed in that thread."""

    def __init__(self, worker: PolicyWorker, loaded: LoadedPolicy) -> None:
        self.worker = worker
        self.loaded = loaded

    def retire(self, spec: PolicySpec, *, interrupt: bool = False) -> None:
        """Close the policy after the call in progress, and end its thread. ``interrupt`` ends the call as well."""
        self.worker.stop(lambda: _close(self.loaded, spec), interrupt=interrupt)


class PolicyGuard:
    """Serializer of the calls to one policy; see the module for time limits. Used on the event loop only.

    A request holds ``turn`` while it decides on a change, asks the policy and applies the change. So each call sees the
    effect of all earlier calls (K108-07 in docs/kips.md). A gateway orders the changes of each resource by itself, and
    ``learn`` needs no order. ``_calling`` is held during each call, so two calls never overlap (K108-25).

    Args:
        spec: Policy class and the kinds of requests it checks.
        properties: Properties of the broker.
        timeout_s: Time limit of a call, in seconds.
        instance: First instance.
        in_thread: Whether to call the policy in its thread even if it only computes.
    """

    def __init__(
        self,
        spec: PolicySpec,
        *,
        properties: Mapping[str, str],
        timeout_s: float,
        instance: Instance,
        in_thread: bool = False,
    ) -> None:
        self.spec = spec
        self.turn = asyncio.Lock()
        self._calling = asyncio.Lock()
        self.cache = OutcomeCache()
        """Outcomes of ``learn``."""
        self._properties = properties
        self._timeout_s = timeout_s
        self._instance = instance
        self._unfinished: tuple[asyncio.Future[PolicyOutcome], float] | None = None
        """Call in progress without a waiting request, and its start by the event loop's clock.

        None when there is none.
        """
        self._stragglers: list[PolicyWorker] = []
        self._in_thread = in_thread
        self._is_inline = instance.loaded.only_computes and not in_thread
        """Whether the event loop itself calls the policy."""

    @classmethod
    async def load(
        cls, spec: PolicySpec, *, properties: Mapping[str, str], timeout_s: float, in_thread: bool = False
    ) -> PolicyGuard:
        """Create the policy. No time limit applies, because the broker does not serve clients yet.

        Raises:
            PolicyLoadError: The policy cannot be created.
        """
        instance = await make_instance(spec, properties)
        return cls(spec, properties=properties, timeout_s=timeout_s, instance=instance, in_thread=in_thread)

    def follow(self, properties: Mapping[str, str], *, timeout_s: float) -> None:
        """Use a changed time limit for further calls, and changed properties for further instances."""
        self._properties, self._timeout_s = properties, timeout_s

    @property
    def timeout_s(self) -> float:
        """Time limit of a call, in seconds."""
        return self._timeout_s

    @property
    def policy(self) -> object:
        """The policy object in use."""
        return self._instance.loaded.policy

    @property
    def files(self) -> tuple[Path, ...]:
        """Source files of the policy."""
        return self._instance.loaded.files

    async def ask(self, kind: PolicyKind, details: Details) -> PolicyOutcome:
        """Ask the policy; return its override, if any, or the error that it raised. The caller holds ``turn``.

        Raises:
            PolicyTimeoutError: The policy exceeded its time limit.
        """
        async with self._calling:
            return await self._ask(kind, details)

    async def learn(self, kind: PolicyKind, details: Details) -> PolicyOutcome:
        """Ask the policy about a request that changes nothing, unless the outcome of an equal question is known.

        The outcome is remembered.
        """
        async with self._calling:
            outcome = self.cache.get(details)
            if outcome is None:
                try:
                    outcome = await self._ask(kind, details)
                except PolicyTimeoutError as error:
                    outcome = PolicyOutcome(None, error.with_traceback(None))
                self.cache.put(details, outcome)
            return outcome

    async def _ask(self, kind: PolicyKind, details: Details) -> PolicyOutcome:
        if self._is_inline and self._unfinished is None:
            return await self._ask_here(kind, details)
        if self._unfinished is not None:
            try:
                await self._finish(self._unfinished)
            except PolicyTimeoutError:
                if self._unfinished is not None:
                    raise
        instance = self._instance
        question = instance.loaded.questions[kind]
        outcome = instance.worker.begin(lambda: question(details))
        if outcome is None:
            self._unfinished = instance.worker.rest(), asyncio.get_running_loop().time()
            outcome = await self._finish(self._unfinished)
        return outcome

    async def _ask_here(self, kind: PolicyKind, details: Details) -> PolicyOutcome:
        """Call a policy that only computes on the event loop. After a slow call, its thread is used from then on."""
        began = time.perf_counter()
        outcome = call_here(self._instance.loaded.questions[kind], details)
        seconds = time.perf_counter() - began
        if seconds < INLINE_LIMIT_S:
            return outcome
        self._is_inline = False
        logger.warning(
            "%s: declares that it only computes, but held the event loop for %.0f ms; it runs in its own thread"
            " until it is reloaded",
            self.spec.origin,
            seconds * 1000,
        )
        if seconds > self._timeout_s:
            await self._replace(is_running=False)
            raise self._too_late()
        return outcome

    async def _finish(self, unfinished: tuple[asyncio.Future[PolicyOutcome], float]) -> PolicyOutcome:
        """Wait for the call in progress; replace the instance when it exceeds the time limit."""
        rest, began = unfinished
        remaining_s = began + self._timeout_s - asyncio.get_running_loop().time()
        if not rest.done():
            await asyncio.wait({rest}, timeout=max(0.0, remaining_s))
        if rest.done():
            self._unfinished = None
            return rest.result()
        await self._replace()
        raise self._too_late()

    def _too_late(self) -> PolicyTimeoutError:
        limit = f"within {self._timeout_s * 1000:.0f} ms (policy.timeout.ms)"
        return PolicyTimeoutError(f"The policy {self.spec.name} did not decide {limit}; nothing was changed.")

    async def _replace(self, *, is_running: bool = True) -> None:
        """Replace the instance by a new one, and abandon the old thread if it hangs."""
        self._stragglers = [worker for worker in self._stragglers if worker.is_alive]
        if len(self._stragglers) >= MAX_STRAGGLERS:
            logger.error(
                "%s: %d calls hang; no further instance of the policy is created",
                self.spec.origin,
                len(self._stragglers),
            )
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                instance = await make_instance(self.spec, self._properties, on_abandoned=self._stragglers.append)
        except (PolicyLoadError, TimeoutError) as error:
            logger.error("%s: a call hangs and no new instance can be created: %s", self.spec.origin, error)  # noqa: TRY400
            return
        logger.warning(
            "%s: a call exceeded policy.timeout.ms; a new instance of the policy replaces it", self.spec.origin
        )
        self._stragglers.append(self._instance.worker)
        self._instance.retire(self.spec, interrupt=is_running)
        self._instance, self._unfinished = instance, None

    async def swap(self, instance: Instance) -> None:
        """Replace the instance after the current turn."""
        async with self.turn, self._calling:
            old, self._instance, self._unfinished = self._instance, instance, None
            self._is_inline = instance.loaded.only_computes and not self._in_thread
            self.cache.clear()
        old.retire(self.spec)
        asyncio.get_running_loop().call_later(self._timeout_s, self._report_unclosed, old.worker)

    async def close(self) -> None:
        """Close the policy. A thread that hangs is abandoned after the time limit, which is logged."""
        async with self.turn, self._calling:
            instance = self._instance
        instance.retire(self.spec)
        await asyncio.to_thread(instance.worker.join, self._timeout_s)
        self._report_unclosed(instance.worker)

    def _report_unclosed(self, worker: PolicyWorker) -> None:
        if worker.is_alive:
            logger.warning(
                "%s: the policy did not close within %.0f ms (policy.timeout.ms); its thread is abandoned",
                self.spec.origin,
                self._timeout_s * 1000,
            )


async def make_instance(
    spec: PolicySpec,
    properties: Mapping[str, str],
    *,
    fresh: FreshModules | None = None,
    on_abandoned: Callable[[PolicyWorker], None] | None = None,
) -> Instance:
    """Create a policy in its own thread.

    If the caller is cancelled, for example by a time limit, the thread closes what has been created and ends when the
    creation returns.

    Args:
        spec: Policy class and the kinds of requests it checks.
        properties: Properties of the broker.
        fresh: As in ``load_policy``.
        on_abandoned: Function that is called with the thread if the policy is not created. The thread may still run:
            SystemExit is raised inside a creation that has not returned. Without the function, that is left alone.

    Raises:
        PolicyLoadError: The policy cannot be created.
    """
    worker = PolicyWorker(f"klamm-policy-{spec.class_name}")
    loaded: list[LoadedPolicy] = []

    def load() -> LoadedPolicy:
        loaded.append(load_policy(spec, properties, fresh=fresh, advise=logger.warning))
        loaded[0].check_kinds(spec)
        return loaded[0]

    def close() -> None:
        for each in loaded:
            _close(each, spec)

    def abandon(*, interrupt: bool) -> None:
        worker.stop(close, interrupt=interrupt)
        if on_abandoned is not None:
            on_abandoned(worker)

    try:
        outcome = worker.begin(load)
        outcome = await worker.rest() if outcome is None else outcome
    except BaseException:
        abandon(interrupt=on_abandoned is not None)
        raise
    if outcome.error is not None:
        abandon(interrupt=False)
        raise outcome.error
    return Instance(worker, outcome.value)


def _close(loaded: LoadedPolicy, spec: PolicySpec) -> None:
    try:
        loaded.close()
    except (Exception, SystemExit):  # a policy that fails to close must not affect the broker
        logger.exception("%s: the policy failed to close", spec.origin)
