"""Keys of ``mm2.properties`` without an effect: misspelt, at a place where nothing reads them, or not supported."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from klamm.configs.definitions import broker_configs, find_broker_config
from klamm.kafka_client.connection.security import SECURITY_KEYS, SECURITY_PREFIXES, has_custom_class
from klamm.lazy_dataclass import dataclass
from klamm.mirror.settings import definitions
from klamm.mirror.settings.clients import (
    ROLES,
    UNKNOWN,
    is_kafka_property,
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
_OWN: Final = "klamm."
_CLIENT_SECURITY: Final = frozenset({"sasl.mechanism", "sasl.oauthbearer.header.urlencode", "security.protocol"})
"""Security properties that Kafka's clients have and its brokers have not (``SaslConfigs``, ``SslConfigs``)."""
_SIMILAR: Final = 0.85
"""Similarity of a misspelt name. Kafka's clients and brokers have many properties with similar names."""
_ROUGHLY_SIMILAR: Final = 0.6
"""Similarity of other names. MirrorMaker has few, so a rough resemblance is enough for a suggestion."""


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
    """Keys of klamm that do not exist, and misspelt ones of TLS, SASL and security, which do not protect what they
    should.
    """


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
    clients: Sequence[Mapping[str, ClientProperties]],
) -> UnusedKeys:
    """Return a warning for each key of a properties file that has no effect.

    Args:
        properties: The file, after all settings were parsed.
        aliases: Aliases of the clusters.
        flows: Names of the enabled flows, ``A->B``.
        clients: Properties of the clients of each flow and of each pair with heartbeats.
    """
    return _Search(properties, aliases, flows, clients).result()


class _Search:
    """Search for the keys without an effect. Used once."""

    def __init__(
        self,
        properties: RecordedProperties,
        aliases: Sequence[str],
        flows: Sequence[str],
        clients: Sequence[Mapping[str, ClientProperties]],
    ) -> None:
        self._properties = properties
        self._aliases = sorted(aliases, key=len, reverse=True)
        self._flows = flows
        self._clients = reasons_without_effect(clients)
        """Reason why a key of clients has no effect. None: it has one."""
        self._of_custom_classes = {
            key for flow in clients for client in flow.values() if has_custom_class(client) for key in client.places
        }
        """Keys of clients with custom classes."""
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
        elif (mistake := self._mistake(key, place, name)) is not None:
            self._misspelt.append(mistake)
        elif name in definitions.ONLY_OF_FLOWS:
            self._warnings.append(f"{key} has no effect: {definitions.ONLY_OF_FLOWS[name]}")
        else:
            self._warn(key, place, name)

    def _mistake(self, key: str, place: str, name: str) -> str | None:
        """Return a sentence about a key of klamm that does not exist, or a misspelt one of TLS, SASL or security."""
        base = _property(name)
        if base.startswith(_OWN):
            config = base.removeprefix(PREFIX)
            if base in self._names or concerns_listeners(config):
                return None
            if config != base and find_broker_config(config) is not None:
                return f"{key} has no effect: klamm's listeners do not read this config"
            return f"{key} does not exist{self._suggestion(place, name)}"
        if not base.startswith(SECURITY_PREFIXES) or key in self._of_custom_classes:
            return None
        names = _names_of_security()
        similar = "" if base in names else did_you_mean(base, names, cutoff=_SIMILAR)
        return f"{key} does not exist{similar.replace('mean ', f'mean {place}{_part(name)}')}" if similar else None

    def _warn(self, key: str, place: str, name: str) -> None:
        reason = self._clients.get(key)
        is_supported = _property(name) in properties_of(_role(name))
        suggestion = "" if reason is not None and is_supported else self._suggestion(place, name)
        if suggestion or reason is None:
            reason = reason or ("nothing reads it at this place" if self._is_known(name) else UNKNOWN)
            self._warnings.append(f"{key} has no effect: {reason}{suggestion}")
        else:
            self._unsupported[reason].append(key)

    def _is_known(self, name: str) -> bool:
        """Return whether klamm reads a key, or Kafka's clients have it, at another place."""
        base = _property(name)
        if base.startswith(SECURITY_PREFIXES):
            return base in _names_of_security()
        return name in self._names or is_kafka_property(_role(name), base)

    def _suggestion(self, place: str, name: str) -> str:
        """Return ``; did you mean KEY?`` with a key that has an effect, or an empty string."""
        flow = place if "->" in place else f"{next(iter(self._flows), 'A->B')}."
        part, client_property = _part(name), _property(name)
        if part:
            if client_property in properties_of(_role(name)):
                return "" if place else f"; did you mean {flow}{name}?"
            similar = did_you_mean(client_property, properties_of(_role(name)), cutoff=_SIMILAR)
            return similar.replace("mean ", f"mean {place}{part}")
        if role := next((role for role in ROLES if name in properties_of(role) - SECURITY_KEYS), None):
            return f"; did you mean {place or flow}{role}.{name}?"
        if name not in self._names and is_kafka_property(None, name):
            return ""
        prefix = PREFIX if name.startswith(PREFIX) else ""
        names = {each.removeprefix(prefix) for each in self._names if each.startswith(prefix)}
        names |= LISTENER_CONFIGS if prefix else SECURITY_KEYS
        cutoff = _SIMILAR if name.startswith((PREFIX, *SECURITY_PREFIXES)) else _ROUGHLY_SIMILAR
        similar = did_you_mean(name.removeprefix(prefix), names, cutoff=cutoff)
        suggested = prefix + similar.removeprefix("; did you mean ").removesuffix("?")
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


def _names_of_security() -> frozenset[str]:
    """Return the names of the properties of TLS, SASL and security of Kafka's clients and brokers, among others."""
    return frozenset((*broker_configs(), *SECURITY_KEYS, *_CLIENT_SECURITY))


def _part(name: str) -> str:
    """Return the part of a key that names a client, such as ``source.consumer.``, or an empty string."""
    match = _ROLE.match(name)
    return match[0] if match is not None else ""


def _property(name: str) -> str:
    return name.removeprefix(_part(name))


def _role(name: str) -> str | None:
    match = _ROLE.match(name)
    return match["role"] if match is not None else None
