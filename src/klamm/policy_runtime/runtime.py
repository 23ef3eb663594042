"""Policies in use, with the properties they were created from. Properties may change while the policies run.

A change of the rules file passes two steps: ``check`` creates instances with the new file and keeps them in ``_tried``.
``follow`` runs after the change was applied and puts these instances into use. Modes and the time limit apply at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.configs.definitions import POLICY_RULES_FILE
from klamm.policy.errors import PolicyLoadError
from klamm.policy.kinds import CREATE_TOPIC, KINDS
from klamm.policy_runtime.reloader import PolicyReloader, PreparedPolicies
from klamm.policy_runtime.service import Policies

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from klamm.policy.kinds import PolicyKind
    from klamm.policy_runtime.reloader import ConfigTypes

_RULES_POLICY: Final = "klamm.policy.rules:RulesPolicy"


class PolicyRuntime:
    """Owner of the policies, of their reloader and of their properties. Used on the event loop only.

    Args:
        policies: Policies in use.
        properties: Properties that they were created from.

    Raises:
        PolicyLoadError: ``policy.reload.interval.ms`` is not allowed.
    """

    def __init__(self, policies: Policies, properties: Mapping[str, str]) -> None:
        self.policies: Final = policies
        self.properties = properties
        """Properties in force."""
        self.reloader = PolicyReloader(policies, properties)
        self._tried: tuple[Mapping[str, str], PreparedPolicies] | None = None

    @classmethod
    async def load(
        cls, properties: Mapping[str, str], kinds: Sequence[PolicyKind] = KINDS, *, in_threads: bool = False
    ) -> PolicyRuntime:
        """Create the policies that the properties name for these kinds of requests.

        Args:
            properties: Properties of a broker or a gateway.
            kinds: Kinds of requests that it asks policies about.
            in_threads: Whether to call every policy in its thread, also one that only computes.

        Raises:
            PolicyLoadError: A policy cannot be created, or none reads the rules file.
        """
        policies = await Policies.load(properties, kinds, in_threads=in_threads)
        try:
            _check_reader(properties, [guard.files for guard in policies.guards])
            return cls(policies, properties)
        except PolicyLoadError:
            await policies.close()
            raise

    def start(self) -> None:
        """Start to reload policies whose files change."""
        self.reloader.start()

    async def follow_upstream(self, describe: ConfigTypes) -> None:
        """Check now, and at each reload, that the upstream has the configs that rules name.

        Args:
            describe: Function that reads the upstream's topic configs.

        Raises:
            PolicyLoadError: It does not have one.
        """
        await self.reloader.follow_upstream(describe)

    def reload(self) -> None:
        """Reload the policies soon, even if no file has changed."""
        self.reloader.ask()

    async def stop(self) -> None:
        """Stop reloading."""
        await self.reloader.stop()

    async def check(self, properties: Mapping[str, str], *, validate_only: bool, loads_again: bool = False) -> None:
        """Load a changed rules file, and keep the new instances for ``follow`` unless ``validate_only``.

        ``loads_again`` loads the file even if its path is the current one.

        Raises:
            PolicyLoadError: The policies cannot use the rules file.
        """
        if not loads_again and not self._has_new_rules(properties):
            return
        made = await self.reloader.prepare(properties)
        try:
            _check_reader(properties, [instance.loaded.files for instance in made.instances])
        except PolicyLoadError:
            self.reloader.discard(made)
            raise
        self._discard_tried()
        if validate_only:
            self.reloader.discard(made)
        else:
            self._tried = properties, made

    def follow(self, properties: Mapping[str, str], *, sets_rules: bool = True) -> None:
        """Use changed properties, and what ``check`` has loaded for them, from now on.

        Args:
            properties: All properties after the change.
            sets_rules: Whether the change sets the rules file, perhaps to the same path. What ``check`` has loaded is
                used for such a change only: it may be of another one, which was rejected after the check.
        """
        is_tried = sets_rules and self._tried is not None and self._tried[0] == properties
        if properties == self.properties and not is_tried:
            return
        has_new_rules = self._has_new_rules(properties)
        self.properties = properties
        self.policies.follow(properties)
        if not has_new_rules and not is_tried:
            return
        if self._tried is not None and is_tried:
            (_, made), self._tried = self._tried, None
            self.reloader.follow(properties, made)
        else:  # a change that was reverted because it could not be stored
            self._discard_tried()
            self.reloader.follow(properties, None)

    def _has_new_rules(self, properties: Mapping[str, str]) -> bool:
        return self.properties.get(POLICY_RULES_FILE) != properties.get(POLICY_RULES_FILE)

    def _discard_tried(self) -> None:
        if self._tried is not None:
            self.reloader.discard(self._tried[1])
            self._tried = None


def _check_reader(properties: Mapping[str, str], files: Iterable[Collection[Path]]) -> None:
    """Raise PolicyLoadError if no policy reads the rules file, whose rules would then not apply.

    Args:
        properties: Properties of a broker or a gateway.
        files: Files that each policy watches.
    """
    name = properties.get(POLICY_RULES_FILE, "").strip()
    if name and not any(Path(name) in watched for watched in files):
        raise PolicyLoadError(
            f"{POLICY_RULES_FILE}={name}: no policy reads the file; set {CREATE_TOPIC.class_key} and the like to"
            f" {_RULES_POLICY}"
        )
