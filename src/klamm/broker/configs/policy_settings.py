"""Policy settings that change while the broker runs: modes, time limit and rules file.

A rules file is loaded before the change is accepted, so a malformed file is rejected and the rules in force stay.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from klamm.broker.configs.image import CLUSTER_DEFAULT
from klamm.broker.configs.own_settings import with_dynamic_values
from klamm.configs.definitions import POLICY_RULES_FILE
from klamm.policy.errors import PolicyLoadError
from klamm.policy.rule_file import RuleFileError
from klamm.policy.rules import RulesPolicy
from klamm.policy_runtime.reloader import PolicyReloader
from klamm.policy_runtime.service import Policies
from klamm.protocol.errors import InvalidRequestError
from klamm.protocol.types import ResourceType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from klamm.broker.configs.rules import ConfigDecision
    from klamm.broker.configs.service import ConfigsChanged
    from klamm.policy_runtime.guard import Instance
    from klamm.server.author import Author
    from klamm.storage.metadata.changes import PutConfig


class PolicySettings:
    """Keeper of the policy settings; also a guard on config changes. Used on the event loop only.

    A change of the rules file passes two steps: ``check`` creates instances with the new file and keeps them in
    ``_tried``. ``follow`` runs after the change was applied and puts these instances into use.

    Args:
        policies: Policies in use.
        static: Settings of the properties file.
        dynamic: Dynamic configs at start, by broker resource. Those of the first broker id outrank the cluster default.
        node_id: First broker id. Settings of the whole process are read from its configs.

    Raises:
        PolicyLoadError: ``policy.reload.interval.ms`` is not allowed.
    """

    resource_types: Final = frozenset({ResourceType.BROKER})

    def __init__(
        self,
        policies: Policies,
        *,
        static: Mapping[str, str],
        dynamic: Mapping[str, Mapping[str, str]],
        node_id: int,
    ) -> None:
        self._static = static
        self._resources = (CLUSTER_DEFAULT, str(node_id))
        self._dynamic = dict(dynamic)
        self.policies: Final = policies
        self.reloader: Final = PolicyReloader(policies, self._in_force())
        self._tried: tuple[Mapping[str, str], Sequence[Instance]] | None = None

    @classmethod
    async def load(cls, static: Mapping[str, str], stored: Iterable[PutConfig], *, node_id: int) -> PolicySettings:
        """Create the policies that the properties file and the stored dynamic configs name.

        Raises:
            PolicyLoadError: A policy cannot be created. The broker must not start.
        """
        dynamic: dict[str, dict[str, str]] = {}
        for row in stored:
            if row.resource_type == ResourceType.BROKER and row.value is not None:
                dynamic.setdefault(row.resource_name, {})[row.name] = row.value
        own = [dynamic.get(name, {}) for name in (CLUSTER_DEFAULT, str(node_id))]
        try:
            policies = await Policies.load(with_dynamic_values(static, own))
        except PolicyLoadError as error:
            if any(POLICY_RULES_FILE in layer for layer in own):
                hint = f"{POLICY_RULES_FILE} was set while the broker ran and outranks the properties file: put it back"
                raise PolicyLoadError(f"{error} ({hint})") from error
            raise
        return cls(policies, static=static, dynamic=dynamic, node_id=node_id)

    def turn(self) -> AbstractAsyncContextManager[object]:
        """Return a null context: a rules file may be loaded while other changes are decided."""
        return contextlib.nullcontext()

    async def check(self, decision: ConfigDecision, author: Author, *, validate_only: bool) -> None:
        """Reject a rules file that the policies cannot use.

        Raises:
            KafkaApiError: The policies cannot use the rules file.
        """
        if decision.resource_name not in self._resources:
            return
        before, after = self._in_force(), self._in_force(decision.resource_name, decision.result)
        if before.get(POLICY_RULES_FILE) == after.get(POLICY_RULES_FILE):
            return
        try:
            made = await self._prepare(after)
        except (PolicyLoadError, RuleFileError) as error:
            raise InvalidRequestError(f"The policies cannot be used with this change: {error}") from None
        self._forget_tried()
        if validate_only:
            self.reloader.discard(made)
        else:
            self._tried = after, made

    def follow(self, change: ConfigsChanged, values: Mapping[str, str]) -> None:
        """Apply configs that were set on a broker or as the cluster default."""
        if change.resource_name not in self._resources:
            return
        before = self._in_force()
        self._dynamic[change.resource_name] = values
        after = self._in_force()
        if before == after:
            return
        self.policies.follow(after)
        tried = self._tried
        if before.get(POLICY_RULES_FILE) == after.get(POLICY_RULES_FILE):
            return
        self._tried = None
        if tried is not None and tried[0] == after:
            self.reloader.follow(after, tried[1])
        else:  # a change that was reverted because it could not be stored
            if tried is not None:
                self.reloader.discard(tried[1])
            self.reloader.follow(after, None)

    async def _prepare(self, properties: Mapping[str, str]) -> Sequence[Instance]:
        if not self.policies.guards and properties.get(POLICY_RULES_FILE, "").strip():
            # Without policy classes the file is unused until a restart. It is checked now, so that it cannot prevent
            # that start.
            await asyncio.to_thread(RulesPolicy().configure, properties)
        return await self.reloader.prepare(properties)

    def _forget_tried(self) -> None:
        if self._tried is not None:
            self.reloader.discard(self._tried[1])
            self._tried = None

    def _in_force(self, name: str | None = None, values: Mapping[str, str] | None = None) -> Mapping[str, str]:
        """Return the properties in force, with ``values`` as the dynamic configs of the broker resource ``name``."""
        layers = {**self._dynamic, **({} if name is None or values is None else {name: values})}
        own = [layers[resource] for resource in self._resources if resource in layers]
        return with_dynamic_values(self._static, own)
