"""Reload of policies while the broker runs: when their files change, and on demand."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from klamm.configs.definitions import POLICY_RELOAD_INTERVAL_MS
from klamm.policy.errors import PolicyLoadError
from klamm.policy.kinds import read_milliseconds
from klamm.policy.loader import FreshModules
from klamm.policy_runtime.guard import Instance, make_instance

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from klamm.policy_runtime.service import Policies

logger = logging.getLogger(__name__)

LOAD_LIMIT_S: Final = 60.0
"""Seconds within which new instances must be ready; otherwise the old ones stay in use."""

Signature: TypeAlias = "Mapping[Path, tuple[int, int]]"
"""Modification time in nanoseconds and size of each file; -1 and -1 for a missing one."""


ConfigTypes: TypeAlias = "Callable[[], Awaitable[Mapping[str, int] | None]]"
"""Function that returns the types of the upstream's topic configs by name, as wire values of ``ConfigType``.

None means that they cannot be read.
"""


class PreparedPolicies(NamedTuple):
    """Instances that are not in use yet, one for each policy."""

    instances: Sequence[Instance]
    signature: Signature
    """Signature of the files that were watched when the instances were created, from before that."""


class PolicyReloader:
    """Watcher of the policies' files. Used on the event loop only.

    All policies are created again together, each in its own thread. When all are ready, each replaces its predecessor
    between two calls. If one cannot be created, all old instances stay in use.

    A changed file is loaded only after it stayed the same for one interval, so a file that is still being written is
    not loaded. If the upstream of a gateway cannot be read, the files are loaded as soon as it can be.

    Args:
        policies: Policies in use.
        properties: Properties of the broker.

    Raises:
        PolicyLoadError: ``policy.reload.interval.ms`` is not a number.
    """

    def __init__(self, policies: Policies, properties: Mapping[str, str]) -> None:
        self._policies = policies
        self._properties = properties
        self._interval_s = read_milliseconds(properties, POLICY_RELOAD_INTERVAL_MS) / 1000
        self._requested = asyncio.Event()
        self._loaded = self._seen = self._signature()
        self._task: asyncio.Task[None] | None = None
        self._swaps: set[asyncio.Task[None]] = set()
        self._describe: ConfigTypes | None = None
        self._is_unchecked = False
        """Whether the upstream could not be read so far, so rules in use may name configs that it does not have."""
        self._awaits_upstream = False
        """Whether a reload failed because the upstream could not be read. It is repeated when that is possible."""

    def start(self) -> None:
        """Start watching. Without policies this does nothing."""
        if not self._policies.guards:
            return
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def follow_upstream(self, describe: ConfigTypes) -> None:
        """Check now, and at each reload, that the upstream has the configs that rules name.

        If it cannot be read now, this is tried again at each interval.

        Raises:
            PolicyLoadError: It does not have one.
        """
        self._describe = describe
        self._is_unchecked = not await self._check_upstream([guard.policy for guard in self._policies.guards])
        if self._is_unchecked:
            logger.warning("The configs in the rules are not checked yet: those of the upstream cannot be read")

    async def _check_upstream(self, policies: Sequence[object]) -> bool:
        """Check that the upstream has the configs that rules name; return False if its configs cannot be read.

        Raises:
            PolicyLoadError: It does not have one.
        """
        if self._describe is None or not policies:
            return True
        from klamm.policy.rule import RuleFileError  # noqa: PLC0415 - a server without policies starts faster
        from klamm.policy.rules import RulesPolicy  # noqa: PLC0415 - see above

        rules = [policy for policy in policies if isinstance(policy, RulesPolicy) and policy.unknown_configs]
        if not rules:
            return True
        types = await self._describe()
        if types is None:
            return False
        try:
            for policy in rules:
                policy.check_upstream(types)
        except RuleFileError as error:
            raise PolicyLoadError(str(error)) from error
        return True

    async def _check_loaded(self, policies: Sequence[object]) -> None:
        if not await self._check_upstream(policies):
            self._awaits_upstream = True
            raise PolicyLoadError("the topic configs of the upstream, which the rules name, cannot be read")

    async def _check_again(self) -> None:
        """Check the rules in use, which were loaded while the upstream's configs could not be read."""
        try:
            self._is_unchecked = not await self._check_upstream([guard.policy for guard in self._policies.guards])
        except PolicyLoadError as error:
            logger.error("The rules in use are wrong: %s", error)  # noqa: TRY400
            self._policies.reload_failure = str(error)
            self._is_unchecked = False

    def ask(self) -> None:
        """Reload soon, even if no file has changed."""
        if self._policies.guards:
            self._requested.set()
        else:
            logger.info("There are no policies to reload")

    async def stop(self) -> None:
        """Stop watching, after replacements in progress are complete."""
        if self._swaps:
            await asyncio.wait(self._swaps)
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _watch(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._interval_s or None):
                    await self._requested.wait()
            except TimeoutError:
                pass
            try:
                if self._requested.is_set() or await self._should_reload():
                    self._requested.clear()
                    await self.reload()
            except Exception as error:
                logger.exception("Policies were not reloaded, the last good ones keep serving")
                self._policies.reload_failure = f"{type(error).__name__}: {error}"

    async def _should_reload(self) -> bool:
        """Return whether the files have changed, or a reload is to be repeated. Called at each interval."""
        if self._is_unchecked:
            await self._check_again()
        if self._awaits_upstream and self._describe is not None and await self._describe() is not None:
            return True
        return self._has_changed()

    def _has_changed(self) -> bool:
        """Return whether the files differ from the loaded ones and stayed the same for one interval."""
        signature = self._signature()
        is_stable, self._seen = signature == self._seen, signature
        return is_stable and signature != self._loaded

    async def reload(self) -> bool:
        """Replace all policies by new instances; return False when that fails and the old instances stay in use."""
        if self._swaps:  # instances of an earlier change must not replace those that are created now
            await asyncio.wait(self._swaps)
        self._loaded = self._signature()
        self._awaits_upstream = False
        properties = self._properties
        try:
            made = await self.prepare(properties)
        except PolicyLoadError as error:
            logger.error("Policies were not reloaded, the last good ones keep serving: %s", error)  # noqa: TRY400
            self._policies.reload_failure = str(error)
            return False
        if self._properties is not properties:  # they were changed meanwhile, and newer instances may be in use
            self.discard(made)
            self._requested.set()
            return False
        await self._swap(made)
        return True

    async def prepare(self, properties: Mapping[str, str]) -> PreparedPolicies:
        """Create a new instance of every policy with these properties. The old instances stay in use.

        Raises:
            PolicyLoadError: A policy cannot be created, or takes longer than ``LOAD_LIMIT_S``.
        """
        fresh, made, signature = FreshModules(), list[Instance](), self._signature()
        try:
            async with asyncio.timeout(LOAD_LIMIT_S):
                for guard in self._policies.guards:
                    made.append(await make_instance(guard.spec, properties, fresh=fresh))
                await self._check_loaded([instance.loaded.policy for instance in made])
        except BaseException as error:
            fresh.undo()
            self._retire(made)
            if isinstance(error, TimeoutError):
                raise PolicyLoadError(f"not ready within {LOAD_LIMIT_S:g} s") from error
            raise
        return PreparedPolicies(made, signature)

    def discard(self, made: PreparedPolicies) -> None:
        """Close instances that were never used."""
        self._retire(made.instances)

    def _retire(self, instances: Sequence[Instance]) -> None:
        for guard, instance in zip(self._policies.guards, instances, strict=False):
            instance.retire(guard.spec)

    def follow(self, properties: Mapping[str, str], made: PreparedPolicies | None) -> None:
        """Use changed properties from now on.

        Args:
            properties: Properties file with dynamic configs applied.
            made: Instances that ``prepare`` created with these properties; None creates them in the background.
        """
        self._properties = properties
        if not self._policies.guards:
            return
        if made is None:
            self._requested.set()
            return
        task = asyncio.get_running_loop().create_task(self._swap(made))
        self._swaps.add(task)
        task.add_done_callback(self._swaps.discard)

    async def _swap(self, made: PreparedPolicies) -> None:
        for guard, instance in zip(self._policies.guards, made.instances, strict=True):
            await guard.swap(instance)
        self._policies.denied_creations.clear()
        self._policies.reload_failure = None
        self._is_unchecked = False
        # A file that was changed while the instances waited for their turn has not been loaded.
        self._seen = self._signature()
        self._loaded = {file: made.signature.get(file, stamp) for file, stamp in self._seen.items()}
        logger.info("Policies reloaded: %s", ", ".join(guard.spec.name for guard in self._policies.guards))

    def _signature(self) -> Signature:
        signature = {}
        for file in {file for guard in self._policies.guards for file in guard.files}:
            try:
                status = file.stat()
            except OSError:
                signature[file] = (-1, -1)
            else:
                signature[file] = (status.st_mtime_ns, status.st_size)
        return signature
