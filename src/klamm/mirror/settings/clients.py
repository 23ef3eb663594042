"""Clusters of the mirror, and client properties: precedence, supported keys, and the check of unsupported values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from klamm.kafka_client.connection.security import SECURITY_KEYS, SECURITY_PREFIXES, Security
from klamm.lazy_dataclass import dataclass
from klamm.properties import SettingsError, parse_int, with_prefix

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

Role = Literal["producer", "consumer", "admin", "controller"]
ROLES: Final[tuple[Role, ...]] = ("producer", "consumer", "admin")
"""Roles of Kafka's clients. ``controller`` is klamm's own: connections to the controllers of the target."""
_UNSUPPORTED: Final = "klamm's clients do not support it"
UNKNOWN: Final = "it is unknown"
"""Reason why a key has no effect: Kafka has no such key either."""
_CLIENT_ID: Final = "client.id"
_NUMBERS: Final[Mapping[str, Mapping[str, int]]] = {
    "admin": {"request.timeout.ms": 1},
    "controller": {},
    "producer": {"request.timeout.ms": 1, "batch.size": 0},
    "consumer": {
        "request.timeout.ms": 1,
        "fetch.max.bytes": 0,
        "fetch.max.wait.ms": 0,
        "fetch.min.bytes": 0,
        "max.partition.fetch.bytes": 0,
    },
}
"""Supported integer properties by role, each with its minimum."""
_HONOURED: Final[Mapping[str, Collection[str]]] = {
    "admin": (),
    "controller": (),
    "producer": ("transaction.timeout.ms",),
    "consumer": ("auto.offset.reset", "client.rack", "isolation.level"),
}
"""Other supported properties by role."""
_OF_ALL_KAFKA_CLIENTS: Final = frozenset(
    (
        "bootstrap.resolve.timeout.ms", "bootstrap.servers", "client.dns.lookup", "client.id", "config.providers",
        "connections.max.idle.ms", "enable.metrics.push", "metadata.cluster.check.enable", "metadata.max.age.ms",
        "metadata.recovery.rebootstrap.trigger.ms", "metadata.recovery.strategy", "metric.reporters",
        "metrics.num.samples", "metrics.recording.level", "metrics.sample.window.ms", "receive.buffer.bytes",
        "reconnect.backoff.max.ms", "reconnect.backoff.ms", "request.timeout.ms", "retry.backoff.max.ms",
        "retry.backoff.ms", "send.buffer.bytes", "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms", "auto.include.jmx.reporter",
    )
)  # fmt: skip
_OF_KAFKA_ADMIN: Final = frozenset(("bootstrap.controllers", "default.api.timeout.ms", "retries"))
KAFKA_PROPERTIES: Final[Mapping[str, frozenset[str]]] = {
    "admin": _OF_ALL_KAFKA_CLIENTS | _OF_KAFKA_ADMIN,
    "controller": _OF_ALL_KAFKA_CLIENTS | _OF_KAFKA_ADMIN,
    "producer": _OF_ALL_KAFKA_CLIENTS.union(
        (
            "acks", "batch.size", "buffer.memory", "buffer.memory.allocation.strategy", "client.rack",
            "compression.gzip.level", "compression.lz4.level", "compression.type", "compression.zstd.level",
            "delivery.timeout.ms", "enable.idempotence", "interceptor.classes", "key.serializer", "linger.ms",
            "max.block.ms", "max.in.flight.requests.per.connection", "max.request.size", "metadata.max.idle.ms",
            "partitioner.adaptive.partitioning.enable", "partitioner.availability.timeout.ms", "partitioner.class",
            "partitioner.ignore.keys", "partitioner.rack.aware", "retries", "transaction.timeout.ms",
            "transaction.two.phase.commit.enable", "transactional.id", "value.serializer",
        )
    ),
    "consumer": _OF_ALL_KAFKA_CLIENTS.union(
        (
            "allow.auto.create.topics", "auto.commit.interval.ms", "auto.offset.reset", "check.crcs", "client.rack",
            "default.api.timeout.ms", "enable.auto.commit", "exclude.internal.topics", "fetch.max.bytes",
            "fetch.max.wait.ms", "fetch.min.bytes", "group.id", "group.instance.id", "group.protocol",
            "group.remote.assignor", "heartbeat.interval.ms", "interceptor.classes",
            "internal.throw.on.fetch.stable.offset.unsupported", "isolation.level", "key.deserializer",
            "max.partition.fetch.bytes", "max.poll.interval.ms", "max.poll.records", "partition.assignment.strategy",
            "session.timeout.ms", "share.acknowledgement.mode", "share.acquire.mode", "value.deserializer",
        )
    ),
}  # fmt: skip
"""Properties of Kafka's clients by role, without those of TLS and SASL."""
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
    bootstrap_controllers: tuple[str, ...] = ()
    """Controllers, each ``host:port`` (``B.bootstrap.controllers``)."""


class ClientProperties(dict[str, str]):
    """Properties of one client, each with the key in the file it was read from."""

    def __init__(
        self,
        properties: Mapping[str, str],
        origins: Mapping[str, str],
        places: Mapping[str, str],
    ) -> None:
        super().__init__(properties)
        self.origins = dict(origins)
        self.places = dict(places)
        """Property by key of the file, also for keys that another one takes precedence over."""


def of_flow(
    properties: Mapping[str, str], source: ClusterSettings, target: ClusterSettings
) -> dict[str, ClientProperties]:
    """Return the client properties by ``source.consumer``, ``target.admin`` and so on.

    The precedence is MirrorMaker's (Kafka's ``MirrorMakerConfig.connectorBaseConfig`` and ``MirrorConnectorConfig``).
    For ``source.consumer`` of ``A->B``, highest first: ``A->B.source.consumer.k``, ``A.consumer.k``, ``A.k``, ``k``,
    ``A->B.consumer.k``, ``A->B.source.cluster.k``. From ``A.k``, ``k`` and ``A->B.source.cluster.k`` only security
    properties count. ``A->B.producer.override.k`` has precedence over all of these for ``target.producer``; MirrorMaker
    reads no other ``A->B`` key for the producer of records. ``target.controller`` exists if the target names its
    controllers.
    """
    flow = f"{source.alias}->{target.alias}."
    roles = [(side, cluster, role) for side, cluster in (("source", source), ("target", target)) for role in ROLES]
    if target.bootstrap_controllers:
        roles.append(("target", target, "controller"))
    return {f"{side}.{role}": _of_client(properties, flow, side, cluster.alias, role) for side, cluster, role in roles}


def _of_client(properties: Mapping[str, str], flow: str, side: str, alias: str, role: Role) -> ClientProperties:
    cluster = f"{flow}{side}.cluster."
    places = [cluster, f"{flow}{role}.", "", f"{alias}.", f"{alias}.{role}.", f"{flow}{side}.{role}."]
    if (side, role) == ("target", "producer"):
        places.append(f"{flow}producer.override.")
    client: dict[str, str] = {}
    origins: dict[str, str] = {}
    by_key: dict[str, str] = {}
    for prefix in places:
        for key, value in with_prefix(properties, prefix).items():
            if prefix not in ("", f"{alias}.", cluster) or key.startswith(SECURITY_PREFIXES):
                client[key], origins[key] = value, prefix + key
                by_key[prefix + key] = key
    return ClientProperties(client, origins, by_key)


def properties_of(role: str | None) -> frozenset[str]:
    """Return the supported properties of the clients with a role. None: the security properties."""
    if role is None:
        return SECURITY_KEYS
    return frozenset({_CLIENT_ID, *_NUMBERS[role], *_HONOURED[role], *SECURITY_KEYS})


def is_kafka_property(role: str | None, name: str) -> bool:
    """Return whether Kafka's clients with a role have a property, other than of TLS and SASL. None: any role."""
    return any(name in KAFKA_PROPERTIES[each] for each in ((role,) if role else ROLES))


def reasons_without_effect(flows: Iterable[Mapping[str, ClientProperties]]) -> dict[str, str | None]:
    """Return the keys of the file for clients, each with the reason why it has no effect. None: it has one.

    Args:
        flows: Client properties of each flow, as ``of_flow`` returns them.
    """
    reasons: dict[str, str | None] = {}
    for flow in flows:
        for name, client in flow.items():
            role = name.partition(".")[2]
            for key, client_property in client.places.items():
                if reasons.get(key, "") is not None:
                    reasons[key] = _reason(role, client_property, client)
    return reasons


def _reason(role: str, key: str, client: ClientProperties) -> str | None:
    """Return why a property of a client has no effect. None: it has one."""
    if key not in properties_of(role):
        if client[key].strip().lower() in _AS_IT_IS.get(key, ()):
            return None
        return _UNSUPPORTED if key.startswith(SECURITY_PREFIXES) or is_kafka_property(role, key) else UNKNOWN
    protocol = client.get("security.protocol", "PLAINTEXT").strip().upper()
    is_tls, is_sasl = protocol.endswith("SSL"), protocol.startswith("SASL_")
    if (key.startswith("ssl.") and not is_tls) or (key.startswith("sasl.") and not is_sasl):
        return f"security.protocol is {protocol}"
    return None


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
