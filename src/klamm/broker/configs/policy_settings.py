"""klamm's own broker configs, and the policy settings that change while the broker runs: modes, time limit, rules.

A rules file is loaded before the change is accepted, so a malformed file is rejected and the rules in force stay.
"""

from __future__ import annotations

import contextlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, cast

from klamm.broker.configs.image import CLUSTER_DEFAULT
from klamm.configs.definitions import HISTORY_MAX_ENTRIES, POLICY_RULES_FILE, broker_configs, own_broker_configs
from klamm.policy.errors import PolicyLoadError
from klamm.policy_runtime import PolicyRuntime
from klamm.protocol.errors import InvalidRequestError
from klamm.protocol.types import ResourceType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from contextlib import AbstractAsyncContextManager

    from klamm.broker.configs.service import ConfigsChanged
    from klamm.configs.operations import ConfigDecision
    from klamm.configs.values import ConfigValue
    from klamm.history.change import Author
    from klamm.policy.answers import Override
    from klamm.storage.metadata.changes import PutConfig


def max_history(static: Mapping[str, str]) -> int:
    """Return the maximum number of config changes in the history; 0 means no limit."""
    definition = broker_configs()[HISTORY_MAX_ENTRIES]
    return int(str(definition.parse(static.get(HISTORY_MAX_ENTRIES, str(definition.default)))))


def allowed_client_configs(value: ConfigValue | None) -> frozenset[str] | None:
    """Return the client configs that ``client.configs.allowed.keys`` permits; None permits all."""
    return None if value is None else frozenset(cast("tuple[str, ...]", value))


def with_dynamic_values(static: Mapping[str, str], layers: Iterable[Mapping[str, str]]) -> Mapping[str, str]:
    """Return the properties file, with klamm's own configs replaced by their dynamic values.

    Args:
        static: Settings of the properties file.
        layers: Dynamic configs of the cluster default and of the first broker id; later ones take precedence.
    """
    own = own_broker_configs()
    settings = dict(static)
    for layer in layers:
        settings.update({name: value for name, value in layer.items() if name in own})
    return MappingProxyType(settings)


def by_broker(stored: Iterable[PutConfig]) -> Mapping[str, Mapping[str, str]]:
    """Return the stored dynamic configs of brokers, by name of the broker resource."""
    dynamic: dict[str, dict[str, str]] = {}
    for row in stored:
        if row.resource_type == ResourceType.BROKER and row.value is not None:
            dynamic.setdefault(row.resource_name, {})[row.name] = row.value
    return dynamic


class PolicySettings:
    """Keeper of the dynamic policy settings; also a guard on config changes. Used on the event loop only.

    Args:
        runtime: Policies in use.
        static: Settings of the properties file.
        dynamic: Dynamic configs at start, by broker resource. Those of the first broker id outrank the cluster default.
        resources: Broker resources whose configs apply to the whole process: the cluster default and the first id.
    """

    resource_types: Final = frozenset({ResourceType.BROKER})

    def __init__(
        self,
        runtime: PolicyRuntime,
        *,
        static: Mapping[str, str],
        dynamic: Mapping[str, Mapping[str, str]],
        resources: tuple[str, str],
    ) -> None:
        self.runtime: Final = runtime
        self._static = static
        self._dynamic = dict(dynamic)
        self._resources = resources

    @classmethod
    async def load(
        cls, static: Mapping[str, str], dynamic: Mapping[str, Mapping[str, str]], *, node_id: int
    ) -> PolicySettings:
        """Create the policies that the properties file and the stored dynamic configs (``by_broker``) name.

        Raises:
            PolicyLoadError: A policy cannot be created. The broker must not start.
        """
        resources = (CLUSTER_DEFAULT, str(node_id))
        own = [dynamic.get(name, {}) for name in resources]
        try:
            runtime = await PolicyRuntime.load(with_dynamic_values(static, own))
        except PolicyLoadError as error:
            if any(POLICY_RULES_FILE in layer for layer in own):
                hint = f"{POLICY_RULES_FILE} was set while the broker ran and outranks the properties file: put it back"
                raise PolicyLoadError(f"{error} ({hint})") from error
            raise
        return cls(runtime, static=static, dynamic=dynamic, resources=resources)

    def turn(self) -> AbstractAsyncContextManager[object]:
        """Return a null context: a rules file may be loaded while other changes are decided."""
        return contextlib.nullcontext()

    async def check(
        self, decision: ConfigDecision, author: Author, overridden: Override | None, *, validate_only: bool
    ) -> None:
        """Reject a rules file that the policies cannot use.

        Raises:
            KafkaApiError: The policies cannot use the rules file.
        """
        if decision.resource_name not in self._resources:
            return
        properties = self._with({**self._dynamic, decision.resource_name: decision.result})
        try:
            names_rules = any(change.name == POLICY_RULES_FILE for change in decision.changes)
            await self.runtime.check(properties, validate_only=validate_only, loads_again=names_rules)
        except PolicyLoadError as error:
            raise InvalidRequestError(f"The policies cannot be used with this change: {error}") from None

    def follow(self, change: ConfigsChanged, values: Mapping[str, str]) -> None:
        """Apply configs that were set on a broker or as the cluster default."""
        if change.resource_name in self._resources:
            self._dynamic[change.resource_name] = values
            self.runtime.follow(self._with(self._dynamic), sets_rules=POLICY_RULES_FILE in change.names)

    def _with(self, dynamic: Mapping[str, Mapping[str, str]]) -> Mapping[str, str]:
        """Return the properties with dynamic configs applied."""
        return with_dynamic_values(
            self._static, [dynamic[resource] for resource in self._resources if resource in dynamic]
        )
