"""Clusters of the mirror, and client properties: precedence, supported keys, and the check of unsupported values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from klamm.client.security import Security
from klamm.properties import SettingsError, parse_int, with_prefix

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

Role = Literal["producer", "consumer", "admin"]
ROLES: Final[tuple[Role, ...]] = ("producer", "consumer", "admin")
SECURITY_PREFIXES: Final = ("security.", "ssl.", "sasl.")
_CLIENT_ID: Final = "client.id"
_NUMBERS: Final[Mapping[str, Mapping[str, int]]] = {
    "admin": {"request.timeout.ms": 1},
    "producer": {"request.timeout.ms": 1, "batch.size": 0},
    "consumer": {
        "request.timeout.ms": 1,
        "fetch.max.bytes": 1,
        "fetch.max.wait.ms": 0,
        "fetch.min.bytes": 1,
        "max.partition.fetch.bytes": 1,
    },
}
"""Supported integer properties by role, each with its minimum."""
_HONOURED: Final[Mapping[str, Collection[str]]] = {
    "admin": (),
    "producer": ("transaction.timeout.ms",),
    "consumer": ("auto.offset.reset", "client.rack", "isolation.level"),
}
"""Other supported properties by role."""
_AS_IT_IS: Final[Mapping[str, tuple[str, ...]]] = {
    "acks": ("all", "-1"),
    "enable.auto.commit": ("false",),
    "enable.idempotence": ("true",),
}
"""Values accepted without a note, because klamm's clients always behave like this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Settings of one cluster."""

    alias: str
    bootstrap_servers: tuple[str, ...]
    """Bootstrap servers, each ``host:port``."""


class ClientProperties(dict[str, str]):
    """Properties of one client, each with the key in the file it was read from."""

    def __init__(self, properties: Mapping[str, str], origins: Mapping[str, str], passed_over: Iterable[str]) -> None:
        super().__init__(properties)
        self.origins = dict(origins)
        self.passed_over = frozenset(passed_over)
        """Keys of the file at places where only security properties count."""


def of_flow(
    properties: Mapping[str, str], source: ClusterSettings, target: ClusterSettings
) -> dict[str, ClientProperties]:
    """Return the client properties by ``source.consumer``, ``target.admin`` and so on.

    The precedence is MirrorMaker's (Kafka's ``MirrorMakerConfig.connectorBaseConfig`` and ``MirrorConnectorConfig``).
    For ``source.consumer`` of ``A->B``, highest first: ``A->B.source.consumer.k``, ``A.consumer.k``, ``A.k``, ``k``,
    ``A->B.consumer.k``, ``A->B.source.cluster.k``. From ``A.k``, ``k`` and ``A->B.source.cluster.k`` only security
    properties count. ``A->B.producer.override.k`` has precedence over all of these for ``target.producer``; MirrorMaker
    reads no other ``A->B`` key for the producer of records.
    """
    flow = f"{source.alias}->{target.alias}."
    return {
        f"{side}.{role}": _of_client(properties, flow, side, cluster.alias, role)
        for side, cluster in (("source", source), ("target", target))
        for role in ROLES
    }


def _of_client(properties: Mapping[str, str], flow: str, side: str, alias: str, role: Role) -> ClientProperties:
    cluster = f"{flow}{side}.cluster."
    places = [cluster, f"{flow}{role}.", "", f"{alias}.", f"{alias}.{role}.", f"{flow}{side}.{role}."]
    if (side, role) == ("target", "producer"):
        places.append(f"{flow}producer.override.")
    found: dict[str, str] = {}
    origins: dict[str, str] = {}
    passed_over: list[str] = []
    for prefix in places:
        for key, value in with_prefix(properties, prefix).items():
            if prefix not in ("", f"{alias}.", cluster) or key.startswith(SECURITY_PREFIXES):
                found[key], origins[key] = value, prefix + key
            elif prefix and key.partition(".")[0] not in ROLES:
                passed_over.append(prefix + key)
    return ClientProperties(found, origins, passed_over)


def without_meaning(flows: Iterable[Mapping[str, ClientProperties]]) -> tuple[str, ...]:
    """Return the keys of the file that none of klamm's clients supports, in alphabetical order.

    Args:
        flows: Client properties of each flow, as ``of_flow`` returns them.
    """
    seen: set[str] = set()
    honoured: set[str] = set()
    for flow in flows:
        for name, client in flow.items():
            role = name.partition(".")[2]
            seen |= {*client.origins.values(), *client.passed_over}
            honoured |= {client.origins[key] for key, value in client.items() if _has_meaning(role, key, value)}
    return tuple(sorted(seen - honoured))


def _has_meaning(role: str, key: str, value: str) -> bool:
    if key.startswith(SECURITY_PREFIXES) or key in {_CLIENT_ID, *_NUMBERS[role], *_HONOURED[role]}:
        return True
    return value.strip().lower() in _AS_IT_IS.get(key, ())


def check_clients(clients: Mapping[str, ClientProperties], aliases: Mapping[str, str]) -> None:
    """Reject unsupported client properties at startup.

    Args:
        clients: Client properties by ``source.consumer``, ``target.admin`` and so on.
        aliases: Cluster aliases by ``source`` and ``target``.

    Raises:
        SettingsError: A property is not supported or has a wrong value. Names the key in the file.
    """
    for name, client in clients.items():
        side, _, role = name.partition(".")
        try:
            Security.of(client)
        except SettingsError as error:
            raise SettingsError(_with_origin(str(error), client, aliases[side])) from error
        for key in _NUMBERS[role]:
            number(client, role, key, default=0)


def number(client: ClientProperties, role: str, key: str, default: int) -> int:
    """Return an integer property of a client.

    Raises:
        SettingsError: The value is not an integer or too small. Names the key in the file.
    """
    value = client.get(key)
    return default if value is None else parse_int(client.origins[key], value, at_least=_NUMBERS[role][key])


def _with_origin(message: str, client: ClientProperties, alias: str) -> str:
    """Return a message with the client's key at its start replaced by the key in the file."""
    named = next((key for key in client.origins if message.startswith((f"{key}=", f"{key}:"))), None)
    return f"{alias}.{message}" if named is None else client.origins[named] + message.removeprefix(named)
