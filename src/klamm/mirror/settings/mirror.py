"""Settings of the whole mirror, parsed once from ``mm2.properties`` (Kafka's ``MirrorMakerConfig``).

``klamm.max.bytes.per.second`` is the one key that counts without a restart.
"""

from __future__ import annotations

import logging
import re
from dataclasses import field, replace
from datetime import timedelta
from itertools import combinations, permutations
from typing import TYPE_CHECKING, Final

from klamm.config_providers import resolve
from klamm.configs.names import is_of_topic_characters
from klamm.lazy_dataclass import dataclass
from klamm.mirror.naming import DefaultReplicationPolicy
from klamm.mirror.settings.clients import ClusterSettings, check_clients, of_flow
from klamm.mirror.settings.definitions import (
    DEPRECATED,
    EMIT_HEARTBEATS,
    EMIT_OFFSET_SYNCS,
    MAX_BYTES_PER_SECOND,
    REPLICA_LISTENERS,
    REPLICA_NODE_ID,
    SOURCE_ALIAS,
    TARGET_ALIAS,
    SyncsLocation,
    parse_seconds,
)
from klamm.mirror.settings.flow import FlowSettings, parse_flow
from klamm.mirror.settings.groups import HeartbeatSettings, parse_heartbeats
from klamm.mirror.settings.key_reader import KeyReader
from klamm.mirror.settings.unused_keys import RecordedProperties, flow_key, transforms, unused_keys
from klamm.properties import SettingsError, parse_bool, parse_list, read_properties, split_address, split_servers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

logger = logging.getLogger(__name__)

METRICS_LISTEN: Final = "klamm.metrics.listen"
ALLOW_COMMANDS: Final = "klamm.metrics.allow.commands"
MASTER: Final = "spark.master"
SPECULATION: Final = "spark.speculation"
CHECKPOINT_DIR: Final = "klamm.checkpoint.dir"
_ENABLED: Final = "enabled"
_LEASE: Final = "klamm.lease.seconds"
_FREE_TEXT: Final = re.compile(r"password|secret|passphrase|jaas|certificate|keystore\.key|client\.id|^spark\.")
"""Keys whose values may have any characters, also a number sign after a blank."""
_LIKE_FLOW_KEY: Final = re.compile(r"(?P<source>[^\s>]+?)->(?P<target>[^\s>]+?)\..+")


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSettings:
    """Settings from a whole ``mm2.properties``."""

    clusters: Mapping[str, ClusterSettings]
    flows: tuple[FlowSettings, ...]
    """Enabled flows, in the order of ``clusters``."""
    heartbeats: tuple[HeartbeatSettings, ...] = ()
    """Pairs of clusters with enabled heartbeats, including pairs without an enabled flow."""
    lease: timedelta = timedelta(seconds=300)
    """``klamm.lease.seconds``: how long Spark's tasks copy before partitions are reassigned. A klamm extension."""
    metrics_listen: tuple[str, int] | None = None
    """``klamm.metrics.listen``: address of the metrics and the status page. A klamm extension."""
    allow_commands: bool = False
    """``klamm.metrics.allow.commands``: whether the status listener accepts commands on an address that other machines
    may reach. A klamm extension.
    """
    checkpoint_dir: str | None = None
    """``klamm.checkpoint.dir``: path or URL under which Spark keeps the numbers of leases. None: a temporary directory
    that is removed with the mirror. Source offsets are on the target, not here. A klamm extension.
    """
    spark: Mapping[str, str] = field(default_factory=dict)
    """Keys ``spark.*`` for the Spark session."""
    notes: tuple[str, ...] = ()
    """Notes about keys of MirrorMaker that have no effect here, with the reasons. Logged once."""
    warnings: tuple[str, ...] = ()
    """Warnings about deprecated keys and risky settings."""
    unused: tuple[str, ...] = ()
    """Warnings about keys that are unknown, at a wrong place, or not supported."""
    misspelt: tuple[str, ...] = ()
    """Keys of klamm that do not exist, and misspelt ones of TLS, SASL and security, with the nearest ones."""
    transforms: tuple[str, ...] = ()
    """Keys that set single message transforms and predicates, which do not exist here."""

    def require_flows(self) -> tuple[FlowSettings, ...]:
        """Return the flows, for commands that need at least one.

        Raises:
            SettingsError: No flow is enabled.
        """
        if not self.flows:
            raise SettingsError("no flow is enabled: expected a key such as A->B.enabled=true")
        return self.flows

    def check_keys(self, *, strict: bool = False, ignore_transforms: bool = False) -> None:
        """Check that no key asks for something that the mirror would not do.

        Args:
            strict: Whether to reject all keys without an effect, except those of ``notes``.
            ignore_transforms: Whether to copy records unchanged although the file sets transforms.

        Raises:
            SettingsError: There are such keys.
        """
        if self.transforms and not ignore_transforms:
            raise SettingsError(
                f"{', '.join(self.transforms)}: transforms do not exist here, so records would be copied unchanged, "
                "even if they should be masked or dropped. Remove the keys, or copy unchanged with --ignore-transforms"
            )
        if self.misspelt:
            raise SettingsError("; ".join((*self.misspelt, "correct or remove these keys")))
        if strict and self.unused:
            raise SettingsError("; ".join((*self.unused, "remove these keys, or run without --strict")))

    def check_clients(self) -> None:
        """Check the properties of all clients and load their files, such as key stores.

        Raises:
            SettingsError: A property is not supported or has a wrong value. Names the key in the file.
        """
        for flow in self.flows:
            check_clients(flow.clients, {"source": flow.source.alias, "target": flow.target.alias})
        for pair in self.heartbeats:
            check_clients(pair.target_clients, {"target": pair.target.alias})

    def log_notes(self, logger: logging.Logger) -> None:
        """Log the notes and warnings about the file."""
        for note in self.notes:
            logger.info("%s", note)
        for warning in (*self.warnings, *self.unused):
            logger.warning("%s", warning)
        if self.transforms:
            logger.warning("%s: no effect: records are copied unchanged", ", ".join(self.transforms))


def parse_settings(properties: Mapping[str, str], *, target_aliases: Sequence[str] = ()) -> MirrorSettings:
    """Return the settings of a file. Unknown keys are ignored, with a warning.

    Args:
        properties: Keys and values of the file.
        target_aliases: Aliases of the only target clusters to mirror to (``--clusters``). Empty: all.

    Raises:
        SettingsError: A value is wrong, an address is missing, or neither a flow nor heartbeats are enabled.
    """
    aliases = tuple(dict.fromkeys(parse_list(properties.get("clusters", ""))))
    if not aliases:
        raise SettingsError("clusters: expected the aliases of the clusters, such as clusters=A,B")
    _check_aliases(properties, aliases)
    _check_comments(properties)
    properties = RecordedProperties(properties)
    properties.read.add("clusters")
    for alias in target_aliases:
        if alias not in aliases:
            raise SettingsError(f"--clusters {alias}: expected aliases out of clusters={','.join(aliases)}")
    clusters = {alias: _parse_cluster(properties, alias) for alias in aliases}
    _check_flow_keys(properties, aliases)
    pairs = [
        (clusters[source], clusters[target])
        for source, target in permutations(aliases, 2)
        if not target_aliases or target in target_aliases
    ]
    flows = _sharing([parse_flow(properties, *pair) for pair in pairs if _is_enabled(properties, *pair)])
    heartbeats = tuple(pair_settings for pair in pairs if (pair_settings := _heartbeats(properties, *pair)) is not None)
    warnings = [
        *_deprecated(properties, aliases),
        *(f"{flow.name}: {warning}" for flow in flows for warning in flow.warnings),
    ]
    warnings += _circles(flows)
    warnings += _same_addresses(flows)
    _check_offsets_apart(flows)
    _check_syncs_apart(flows)
    _check_brokers_apart(flows)
    if not flows:
        served = f" to {', '.join(target_aliases)}" if target_aliases else ""
        nothing = f"No flow{served} is enabled: expected a key such as {aliases[0]}->B.enabled=true"
        if not heartbeats:
            raise SettingsError(nothing)
        warnings.append(f"{nothing}; only heartbeats are written")
    check_speculation(properties.get(SPECULATION))
    settings = MirrorSettings(
        clusters=clusters,
        flows=flows,
        heartbeats=heartbeats,
        lease=parse_seconds(_LEASE, properties.get(_LEASE, "300")),
        metrics_listen=_address(METRICS_LISTEN, properties.get(METRICS_LISTEN, "")),
        allow_commands=parse_bool(ALLOW_COMMANDS, properties.get(ALLOW_COMMANDS, "false")),
        checkpoint_dir=properties.get(CHECKPOINT_DIR, "").strip() or None,
        spark={key: value for key, value in properties.items() if key.startswith("spark.")},
        warnings=tuple(warnings),
        transforms=transforms(properties, [flow.name for flow in flows]),
    )
    if not flows:
        return settings
    clients = [flow.clients for flow in flows] + [pair.target_clients for pair in heartbeats]
    unused = unused_keys(properties, aliases, [flow.name for flow in flows], clients)
    return replace(settings, notes=unused.notes, unused=unused.warnings, misspelt=unused.misspelt)


def check_speculation(value: str | None) -> None:
    """Reject a value of ``spark.speculation`` that Spark reads as true.

    Raises:
        SettingsError: Speculation is enabled.
    """
    if value is not None and value.strip().lower() == "true":
        raise SettingsError(f"{SPECULATION}=true: expected false; two copies of a task would write records twice")


def _address(key: str, value: str) -> tuple[str, int] | None:
    """Return host and port of ``host:port``. None: the key is not set."""
    if not value.strip():
        return None
    address = split_address(value)
    if address is None:
        raise SettingsError(f"{key}={value}: expected host:port, such as 127.0.0.1:9404")
    return address


def _parse_cluster(properties: Mapping[str, str], alias: str) -> ClusterSettings:
    key = f"{alias}.bootstrap.servers"
    servers = _servers(properties, key)
    if not servers:
        raise SettingsError(f"{key}: expected host:port[,host:port...]")
    controllers = _servers(properties, f"{alias}.bootstrap.controllers")
    return ClusterSettings(alias=alias, bootstrap_servers=servers, bootstrap_controllers=controllers)


def _servers(properties: Mapping[str, str], key: str) -> tuple[str, ...]:
    servers = split_servers(properties.get(key, ""))
    for server in servers:
        if split_address(server) is None:
            raise SettingsError(f"{key}={properties[key]}: expected host:port[,host:port...], {server} is not one")
    return servers


def _check_aliases(properties: Mapping[str, str], aliases: Sequence[str]) -> None:
    for alias in aliases:
        if not is_of_topic_characters(alias):
            raise SettingsError(
                f"clusters={properties['clusters']}: {alias} becomes part of topic names: expected "
                "characters that are allowed in them: a-z A-Z 0-9 . _ -"
            )
        for key in (alias, f"{alias}->", *(f"{alias}->{other}" for other in aliases)):
            if (rest := properties.get(key, "")) and "->" in key + rest:
                raise SettingsError(
                    f"{key}={rest}: a key ends at a blank: expected {alias}->B.key=value without blanks"
                )


def _check_comments(properties: Mapping[str, str]) -> None:
    for key, value in properties.items():
        if re.search(r"\s#", value) and not _FREE_TEXT.search(key):
            raise SettingsError(
                f"{key}={value}: expected no comment after the value, because properties files have none there: it "
                "would be a part of the value. Write it on a line of its own"
            )


def _check_flow_keys(properties: Mapping[str, str], aliases: Sequence[str]) -> None:
    for key in properties:
        if flow_key(key, aliases) is None and (flow := _LIKE_FLOW_KEY.fullmatch(key)) is not None:
            unknown = next((alias for alias in flow.groups() if alias not in aliases), flow["target"])
            raise SettingsError(f"{key}: {unknown} is not one of clusters={','.join(aliases)}")


def _is_enabled(properties: Mapping[str, str], source: ClusterSettings, target: ClusterSettings) -> bool:
    """Return whether a flow is enabled. As in MirrorMaker, a top-level ``enabled`` counts for pairs with heartbeats."""
    reader = KeyReader(properties, source.alias, target.alias)
    if (entry := reader.find(_ENABLED)) is None or not parse_bool(*entry):
        return False
    return entry[0] != _ENABLED or reader.get(EMIT_HEARTBEATS.enabled)


def _heartbeats(
    properties: Mapping[str, str], source: ClusterSettings, target: ClusterSettings
) -> HeartbeatSettings | None:
    reader = KeyReader(properties, source.alias, target.alias)
    return parse_heartbeats(reader, source, target, of_flow(properties, source, target))


def _plain_key(key: str, aliases: Sequence[str]) -> str:
    flow = flow_key(key, aliases)
    return key if flow is None else flow[2]


def _circles(flows: Sequence[FlowSettings]) -> list[str]:
    """Return warnings about pairs of opposite flows whose topic names do not show where a record came from."""
    by_name = {flow.name: flow for flow in flows}
    out = []
    for name, flow in by_name.items():
        back = by_name.get(f"{flow.target.alias}->{flow.source.alias}")
        if back is None or name > back.name:
            continue
        aliases = flow.source_alias + flow.target_alias
        if flow.keeps_names and back.keeps_names:
            why = "both keep the names of topics"
        elif type(flow.policy) is DefaultReplicationPolicy and flow.policy.separator in aliases:
            why = (
                f"name topics by aliases with the separator '{flow.policy.separator}', "
                "so names do not show their origin"
            )
        else:
            continue
        out.append(f"{name} and {back.name} {why}: records of a topic that both mirror would circulate "
                   "endlessly; give each flow its own topics")  # fmt: skip
    return out


def _sharing(flows: Sequence[FlowSettings]) -> tuple[FlowSettings, ...]:
    """Return the flows, each with the others that may write to the same remote topics."""
    sharing = [flow for flow in flows if not flow.preserves_offsets]
    others = {flow.name: tuple(each for each in sharing if _share_target(flow, each)) for flow in sharing}
    return tuple(replace(flow, flows_in_same_topics=others.get(flow.name, ())) for flow in flows)


def _share_target(flow: FlowSettings, other: FlowSettings) -> bool:
    return flow.name != other.name and flow.target == other.target


def _check_offsets_apart(flows: Sequence[FlowSettings]) -> None:
    """Reject flows to one target whose source offsets would overwrite each other.

    Raises:
        SettingsError: Two flows have the same offsets topic and the same alias of the source.
    """
    places: dict[tuple[str, str, str], str] = {}
    for flow in flows:
        place = flow.target.alias, flow.source_offsets_topic, flow.source_alias
        if (other := places.setdefault(place, flow.name)) != flow.name:
            raise SettingsError(
                f"{flow.name} and {other} both have source.cluster.alias={flow.source_alias} and the offsets topic "
                f"{flow.source_offsets_topic}: expected one of them to differ, because their source offsets would "
                "overwrite each other"
            )


def _check_syncs_apart(flows: Sequence[FlowSettings]) -> None:
    """Reject flows that would translate group offsets by the offset syncs of each other.

    Raises:
        SettingsError: Two flows have the same topic of offset syncs, and at least one of them translates group offsets.
    """
    for flow, other in combinations(flows, 2):
        place, place_of_other = ((each.syncs_cluster.alias, each.syncs_topic) for each in (flow, other))
        if flow.syncs_topic is None or place != place_of_other or not (flow.groups or other.groups):
            continue
        alias = TARGET_ALIAS if other.syncs_location is SyncsLocation.SOURCE else SOURCE_ALIAS
        raise SettingsError(
            f"{flow.name} and {other.name} both have the topic {flow.syncs_topic} on cluster "
            f"{flow.syncs_cluster.alias} for their offset syncs, so that groups would skip records: expected another "
            f"alias in its name, such as by {other.name}.{alias.key}, or {EMIT_OFFSET_SYNCS.key}=false for one of them"
        )


def _check_brokers_apart(flows: Sequence[FlowSettings]) -> None:
    """Reject flows that would be the same broker of a target, or brokers at the same address.

    Raises:
        SettingsError: Two flows have the same broker id in one target, or share an advertised address.
    """
    owners: dict[str, str] = {}
    for flow in flows:
        if (broker := flow.replica) is None:
            continue
        node_id = f"{REPLICA_NODE_ID.key}={broker.node_id} in cluster {flow.target.alias}"
        for shared in (node_id, *(f"the address {address}" for address in broker.advertised.values())):
            if (other := owners.setdefault(shared, flow.name)) != flow.name:
                raise SettingsError(
                    f"{other} and {flow.name} both have {shared}: expected an id and listeners of its own for each "
                    f"flow, such as {flow.name}.{REPLICA_NODE_ID.key} and {flow.name}.{REPLICA_LISTENERS.key}"
                )


def _same_addresses(flows: Sequence[FlowSettings]) -> list[str]:
    """Return warnings about flows whose clusters share a bootstrap server.

    Raises:
        SettingsError: Such a flow keeps the names of topics, so each topic would be copied to itself endlessly.
    """
    out = []
    for flow in flows:
        shared = sorted(set(flow.source.bootstrap_servers) & set(flow.target.bootstrap_servers))
        if not shared:
            continue
        source, target = flow.source.alias, flow.target.alias
        warning = f"{flow.name}: {source}.bootstrap.servers and {target}.bootstrap.servers both name {shared[0]}"
        if flow.keeps_names:
            raise SettingsError(
                f"{warning}, and the flow keeps the names of topics: each topic would be copied to itself endlessly"
            )
        out.append(
            f"{warning}: the topics are mirrored within one cluster; if that is not intended, correct one of them"
        )
    return out


def _deprecated(properties: Mapping[str, str], aliases: Sequence[str]) -> tuple[str, ...]:
    reasons = ((key, DEPRECATED.get(_plain_key(key, aliases))) for key in properties)
    return tuple(f"{key} is deprecated: {reason}" for key, reason in reasons if reason is not None)


class LiveKeys:
    """Live keys of a properties file. The content decides, not the modification time, so a replaced file counts too."""

    def __init__(self, path: Path, overrides: Mapping[str, str] | None = None) -> None:
        """Read the file later, with the first ``limits``.

        Args:
            path: Path of ``mm2.properties``.
            overrides: Keys that replace those of the file.
        """
        self._path = path
        self._overrides = dict(overrides or {})
        self._error = ""

    def limits(self, flows: Sequence[FlowSettings]) -> dict[str, int] | None:
        """Return the bytes per second of each flow that has a limit, or None if the file has an error.

        An error is logged once; the mirror keeps its values.
        """
        try:
            properties = resolve({**read_properties(self._path), **self._overrides})
            limits = {flow.name: limit for flow in flows if (limit := _limit(properties, flow)) is not None}
        except SettingsError as error:
            if str(error) != self._error:
                logger.warning("%s: the current %s is kept: %s", self._path, MAX_BYTES_PER_SECOND.key, error)
            self._error = str(error)
            return None
        self._error = ""
        return limits


def _limit(properties: Mapping[str, str], flow: FlowSettings) -> int | None:
    return KeyReader(properties, flow.source.alias, flow.target.alias).get(MAX_BYTES_PER_SECOND)
