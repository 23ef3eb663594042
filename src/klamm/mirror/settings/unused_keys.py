"""Keys of ``mm2.properties`` without an effect: misspelt, at a place where nothing reads them, or not supported."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from klamm.configs.definitions import find_broker_config
from klamm.kafka_client.connection.security import SECURITY_KEYS
from klamm.lazy_dataclass import dataclass
from klamm.mirror.settings import definitions
from klamm.mirror.settings.clients import (
    ALL_PROPERTIES,
    ROLES,
    SECURITY_PREFIXES,
    properties_of,
    reasons_without_effect,
)
from klamm.mirror.settings.listener_configs import LISTENER_CONFIGS, PREFIX, concerns_listeners
from klamm.properties import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from klamm.mirror.settings.clients import ClientProperties

_OPEN_PREFIXES: Final = ("spark.", "config.providers")
"""Prefixes of keys that Spark and the config providers check themselves."""
_ROLE: Final = re.compile(
    r"(?:(?:source|target)\.)?(?P<role>producer|consumer|admin|controller)\.(?:override\.)?|(?:source|target)\.cluster\."
)
_CHECKED_FAMILIES: Final = ("klamm.", *SECURITY_PREFIXES)
"""Prefixes of keys that no plugin of MirrorMaker has: a name that does not exist is an error, not a warning."""
_CLIENT_SECURITY: Final = frozenset({"sasl.mechanism", "sasl.oauthbearer.header.urlencode", "security.protocol"})
"""Names of these families that Kafka's clients have and its brokers have not (``SaslConfigs``, ``SslConfigs``)."""
_SIMILAR_CLIENT_KEYS: Final = 0.8
"""Similarity of names of client properties. Kafka's clients have many properties with similar names."""


class RecordedProperties(dict[str, str]):
    """Properties of the file that record which keys were looked up."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__(properties)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None, /) -> Any:
        """Return the value of a key, and mark the key as used."""
        self.read.add(key)
        return super().get(key, default)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedKeys:
    """Sentences about the keys without an effect."""

    notes: tuple[str, ...]
    """Keys whose purpose is fulfilled or has no counterpart here."""
    warnings: tuple[str, ...]
    """Keys that probably should have an effect."""
    misspelt: tuple[str, ...]
    """Keys of klamm, TLS, SASL and security that do not exist, so that what they should protect is not protected."""


def flow_key(key: str, aliases: Iterable[str]) -> tuple[str, str, str] | None:
    """Return source, target and ``k`` of ``A->B.k``. None: another kind of key. Aliases may contain dots."""
    source, _, rest = key.partition("->")
    targets = [alias for alias in aliases if rest.startswith(f"{alias}.")]
    if source not in aliases or not targets:
        return None
    target = max(targets, key=len)
    return source, target, rest[len(target) + 1 :]


def places_of(flows: Iterable[str]) -> tuple[str, ...]:
    """Return the prefixes of keys that count for flows."""
    return "", *(f"{flow}." for flow in flows)


def transforms(properties: Mapping[str, str], flows: Iterable[str]) -> tuple[str, ...]:
    """Return the keys that set single message transforms and predicates for flows."""
    wanted = (f"{place}{key}" for place in places_of(flows) for key in ("transforms", "predicates"))
    return tuple(key for key in wanted if key in properties and properties[key].strip())


def _is_of_transform(key: str, set_keys: Iterable[str]) -> bool:
    return any(key == set_key or key.startswith(f"{set_key}.") for set_key in set_keys)


def unused_keys(
    properties: RecordedProperties,
    aliases: Sequence[str],
    flows: Sequence[str],
    clients: Iterable[Mapping[str, ClientProperties]],
) -> UnusedKeys:
    """Return a warning for each key of a properties file that has no effect.

    Args:
        properties: The file, after all settings were parsed.
        aliases: Aliases of the clusters.
        flows: Names of the enabled flows, ``A->B``.
        clients: Properties of the clients of each flow and of each pair with heartbeats.
    """
    return _Search(properties, aliases, flows, reasons_without_effect(clients)).result()


class _Search:
    """Search for the keys without an effect. Used once."""

    def __init__(
        self,
        properties: RecordedProperties,
        aliases: Sequence[str],
        flows: Sequence[str],
        clients: Mapping[str, str | None],
    ) -> None:
        self._properties = properties
        self._aliases = sorted(aliases, key=len, reverse=True)
        self._flows = flows
        self._clients = clients
        """Reason why a key of clients has no effect. None: it has one."""
        set_transforms = transforms(properties, flows)  # reported on their own
        self._read = {key for key in properties if _is_of_transform(key, set_transforms)}
        self._read |= properties.read | {place + key for place in places_of(flows) for key in definitions.ANYWHERE}
        self._names = {self._split(key)[1] for key in self._read}
        self._notes: list[str] = []
        self._warnings: list[str] = []
        self._misspelt: list[str] = []
        self._unsupported: dict[str, list[str]] = defaultdict(list)
        """Keys of clients without a suggestion, by reason."""

    def result(self) -> UnusedKeys:
        """Return the sentences about all definitions."""
        for key in self._properties:
            if key not in self._read and not key.startswith(_OPEN_PREFIXES):
                self._classify(key)
        self._warnings += [f"{', '.join(names)}: no effect: {reason}" for reason, names in self._unsupported.items()]
        return UnusedKeys(notes=tuple(self._notes), warnings=tuple(self._warnings), misspelt=tuple(self._misspelt))

    def _classify(self, key: str) -> None:
        """Add a sentence about a key that nothing looked up, unless a client uses it."""
        place, name = self._split(key)
        flow = place.removesuffix(".")
        source, _, target = flow.partition("->")
        if self._clients.get(key, "") is None:
            return
        if (reason := definitions.accepted_without_effect(name)) is not None:
            self._notes.append(f"{key} has no effect: {reason}")
        elif target and source == target:
            self._notes.append(f"{key} has no effect: a cluster is not mirrored to itself")
        elif target and flow not in self._flows:
            if not definitions.is_of_heartbeats(name):
                is_off = f"{place}enabled" in self._properties
                (self._notes if is_off else self._warnings).append(f"{key} has no effect: {flow} is not enabled")
        elif self._is_misspelt(name):
            self._misspelt.append(f"{key} does not exist{self._suggestion(place, name)}")
        elif name in definitions.ONLY_OF_FLOWS:
            self._warnings.append(f"{key} has no effect: {definitions.ONLY_OF_FLOWS[name]}")
        else:
            self._warn(key, place, name)

    def _is_misspelt(self, name: str) -> bool:
        """Return whether neither klamm nor a client, connector, worker or broker of Kafka has such a key."""
        base = _property(name)
        if not base.startswith(_CHECKED_FAMILIES):
            return False
        if base.startswith("klamm."):
            return base not in self._names and not concerns_listeners(base.removeprefix(PREFIX))
        return base not in SECURITY_KEYS | _CLIENT_SECURITY and find_broker_config(base) is None

    def _warn(self, key: str, place: str, name: str) -> None:
        reason = self._clients.get(key)
        is_supported = _property(name) in properties_of(_role(name))
        suggestion = "" if reason is not None and is_supported else self._suggestion(place, name)
        if suggestion or reason is None:
            is_known = name in self._names or _property(name) in ALL_PROPERTIES
            reason = reason or ("nothing reads it at this place" if is_known else "it is unknown")
            self._warnings.append(f"{key} has no effect: {reason}{suggestion}")
        else:
            self._unsupported[reason].append(key)

    def _suggestion(self, place: str, name: str) -> str:
        """Return ``; did you mean KEY?`` with a key that has an effect, or an empty string."""
        flow = place if "->" in place else f"{next(iter(self._flows), 'A->B')}."
        part, client_property = _part(name), _property(name)
        if part:
            if client_property in properties_of(_role(name)):
                return "" if place else f"; did you mean {flow}{name}?"
            similar = did_you_mean(client_property, properties_of(_role(name)), cutoff=_SIMILAR_CLIENT_KEYS)
            return similar.replace("mean ", f"mean {place}{part}")
        if role := next((role for role in ROLES if name in properties_of(role) - SECURITY_KEYS), None):
            return f"; did you mean {place or flow}{role}.{name}?"
        names = {PREFIX + each for each in LISTENER_CONFIGS} if name.startswith(PREFIX) else SECURITY_KEYS
        similar = did_you_mean(name, {name} if name in self._names else {*self._names, *names})
        suggested = similar.removeprefix("; did you mean ").removesuffix("?")
        return similar and f"; did you mean {self._place_of(suggested, place, flow)}{suggested}?"

    def _place_of(self, name: str, place: str, flow: str) -> str:
        """Return the place where a key is read, the given one if possible."""
        target = flow.partition("->")[2]
        if place + name in self._read or (name in SECURITY_KEYS and "->" not in place):
            return place
        return next((each for each in (target, flow, "") if each + name in self._read), place)

    def _split(self, key: str) -> tuple[str, str]:
        """Return the place of a key, such as ``A->B.``, ``A.`` or none, and the rest."""
        if (flow := flow_key(key, self._aliases)) is not None:
            return key.removesuffix(flow[2]), flow[2]
        alias = next((alias for alias in self._aliases if key.startswith(f"{alias}.")), None)
        return (f"{alias}.", key[len(alias) + 1 :]) if alias is not None else ("", key)


def _part(name: str) -> str:
    """Return the part of a key that names a client, such as ``source.consumer.``, or an empty string."""
    match = _ROLE.match(name)
    return match[0] if match is not None else ""


def _property(name: str) -> str:
    return name.removeprefix(_part(name))


def _role(name: str) -> str | None:
    match = _ROLE.match(name)
    return match["role"] if match is not None else None
