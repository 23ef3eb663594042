"""One policy class while it serves: whose turn it is, how long a call may take, which instance is asked."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, Final

from klamm.broker.policies.worker import PolicyOutcome, PolicyWorker
from klamm.policy.errors import PolicyLoadError, PolicyTimeoutError
from klamm.policy.loading import FreshModules, LoadedPolicy, load_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from klamm.policy.details import Details
    from klamm.policy.kinds import PolicyKind, PolicySpec

logger = logging.getLogger(__name__)

MAX_STRAGGLERS: Final = 4
"""Calls beyond the time limit that still run, before no further instance is made."""
INLINE_LIMIT_S: Final = 0.01
"""How long a policy that only computes may take before it is asked on its thread: others waited for it, and longer than
for any slice of a request."""


class Instance:
    """A policy and its thread: it is made, asked and closed there."""

    def __init__(self, worker: PolicyWorker, loaded: LoadedPolicy) -> None:
        self.worker = worker
        self.loaded = loaded

    def retire(self, spec: PolicySpec, *, interrupt: bool = False) -> None:
        """Close the policy behind whatever runs, and end the thread."""
        self.worker.stop(lambda: _close(self.loaded, spec), interrupt=interrupt)


class PolicyGuard:
    """Asks one policy, in order and one thing at a time. Loop-confined.

    Who wants to ask takes the turn, decides, asks, and applies what was decided before the turn passes on; so every
    call sees what the calls before it led to (K108-07), and no two run at the same time (K108-25).

    Args:
        spec: Which policy.
        properties: The broker's.
        timeout_s: How long a call may take.
        instance: The one that serves first.
    """

    def __init__(
        self, spec: PolicySpec, *, properties: Mapping[str, str], timeout_s: float, instance: Instance
    ) -> None:
        self.spec = spec
        self.turn = asyncio.Lock()
        self._properties = properties
        self._timeout_s = timeout_s
        self._instance = instance
        self._unfinished: tuple[asyncio.Future[PolicyOutcome], float] | None = None
        """A call that nobody waits for any more, since its client is gone, and when it began."""
        self._stragglers: list[PolicyWorker] = []
        self._is_inline = instance.loaded.only_computes
        """Whether the event loop calls the policy itself."""

    @classmethod
    async def load(cls, spec: PolicySpec, *, properties: Mapping[str, str], timeout_s: float) -> PolicyGuard:
        """Make the policy; there is no time limit before the broker serves.

        Raises:
            PolicyLoadError: It cannot be had.
        """
        instance = await make_instance(spec, properties)
        return cls(spec, properties=properties, timeout_s=timeout_s, instance=instance)

    def follow(self, properties: Mapping[str, str], *, timeout_s: float) -> None:
        """Use a changed time limit for further calls, and changed properties for further instances."""
        self._properties, self._timeout_s = properties, timeout_s

    @property
    def files(self) -> tuple[Path, ...]:
        """What the policy was made of."""
        return self._instance.loaded.files

    async def ask(self, kind: PolicyKind, details: Details) -> tuple[BaseException | None, bool]:
        """Return what the policy raises, None when it allows; to be called by who has the turn.

        Also returns whether others were served meanwhile: not when the policy was quick.

        Raises:
            PolicyTimeoutError: It took too long.
        """
        if self._is_inline and self._unfinished is None:
            return await self._ask_here(kind, details), False
        has_waited = self._unfinished is not None
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
            has_waited = True
            self._unfinished = instance.worker.rest(), asyncio.get_running_loop().time()
            outcome = await self._finish(self._unfinished)
        return outcome.error, has_waited

    async def _ask_here(self, kind: PolicyKind, details: Details) -> BaseException | None:
        """Call a policy that only computes; one that takes long all the same is asked on its thread from then on."""
        began = time.perf_counter()
        error = _raised_by(self._instance.loaded.questions[kind], details)
        seconds = time.perf_counter() - began
        if seconds < INLINE_LIMIT_S:
            return error
        self._is_inline = False
        logger.warning(
            "%s: says that it only computes, and held the event loop for %.0f ms; it is asked on its thread until it is"
            " loaded anew",
            self.spec.origin,
            seconds * 1000,
        )
        if seconds > self._timeout_s:
            await self._replace(is_running=False)
            raise self._too_late()
        return error

    async def _finish(self, unfinished: tuple[asyncio.Future[PolicyOutcome], float]) -> PolicyOutcome:
        """Wait for the call that runs; when it exceeds its time, another instance takes its place."""
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
        """Let a new instance serve, and leave a thread that hangs to itself."""
        self._stragglers = [worker for worker in self._stragglers if worker.is_alive]
        if len(self._stragglers) >= MAX_STRAGGLERS:
            logger.error("%s: %d calls hang; no further instance is made", self.spec.origin, len(self._stragglers))
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                instance = await make_instance(self.spec, self._properties)
        except (PolicyLoadError, TimeoutError) as error:
            logger.error("%s: no new instance in place of one that hangs: %s", self.spec.origin, error)  # noqa: TRY400
            return
        logger.warning("%s: a call exceeded policy.timeout.ms; a new instance serves", self.spec.origin)
        if is_running:
            self._stragglers.append(self._instance.worker)
        self._instance.retire(self.spec, interrupt=is_running)
        self._instance, self._unfinished = instance, None

    async def swap(self, instance: Instance) -> None:
        """Let another instance serve from the next turn on."""
        async with self.turn:
            old, self._instance, self._unfinished = self._instance, instance, None
            self._is_inline = instance.loaded.only_computes
        old.retire(self.spec)

    async def close(self) -> None:
        """Close the policy; one that hangs is left."""
        async with self.turn:
            instance = self._instance
        instance.retire(self.spec)
        await asyncio.to_thread(instance.worker.join, self._timeout_s)


async def make_instance(
    spec: PolicySpec, properties: Mapping[str, str], *, fresh: FreshModules | None = None
) -> Instance:
    """Make a policy on a thread of its own.

    Raises:
        PolicyLoadError: It cannot be had.
    """
    worker = PolicyWorker(f"klamm-policy-{spec.class_name}")
    try:
        outcome = worker.begin(_loading(spec, properties, fresh))
        outcome = await worker.rest() if outcome is None else outcome
    except BaseException:
        worker.stop(lambda: None)
        raise
    if outcome.error is not None:
        worker.stop(lambda: None)
        raise outcome.error
    return Instance(worker, outcome.value)


def _raised_by(question: Callable[[Any], None], details: Details) -> BaseException | None:
    try:
        question(details)
    except BaseException as error:  # noqa: BLE001 -- nothing that a policy raises may go further
        return error
    return None


def _loading(spec: PolicySpec, properties: Mapping[str, str], fresh: FreshModules | None) -> Callable[[], LoadedPolicy]:
    return lambda: load_policy(spec, properties, fresh=fresh, advise=logger.warning)


def _close(loaded: LoadedPolicy, spec: PolicySpec) -> Any:
    try:
        loaded.close()
    except (Exception, SystemExit):  # it has served; the broker goes on
        logger.exception("%s: the policy failed to close", spec.origin)
