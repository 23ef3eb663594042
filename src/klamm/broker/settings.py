"""Start settings of a broker: command line flags and Kafka's properties."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.configs.brokers import AUTHORIZER_CONFIGS, check_broker_settings
from klamm.configs.definitions import (
    METRICS_LISTEN,
    base_name,
    broker_configs,
    find_broker_config,
    has_listener_prefix,
    parse_broker_settings,
)
from klamm.lazy_dataclass import dataclass
from klamm.policy.kinds import names_policy
from klamm.properties import SettingsError, did_you_mean, merged_properties
from klamm.protocol.errors import InvalidConfigError
from klamm.server.arguments import CommandParser, whole_number
from klamm.server.listeners import Address, Listener, parse_listeners

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.broker.cluster import ClusterInfo

DEFAULT_LISTEN: Final = "127.0.0.1:9092"
DEFAULT_DATA_DIR: Final = "./klamm-data"
DEFAULT_NODE_ID: Final = 1
MAX_BROKERS: Final = 100
RACK: Final = "broker.rack"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """All settings that are fixed before the broker starts."""

    listeners: tuple[Listener, ...]
    """Listeners. The address of the first one is printed when the broker is ready."""
    data_dir: Path
    node_ids: tuple[int, ...]
    metrics: Address | None
    """Address of the metrics page; None means no such page."""
    static_configs: Mapping[str, str]
    """Settings of the properties file and of ``--set``, unparsed."""

    @property
    def racks(self) -> tuple[str | None, ...]:
        """Rack of each broker id. ``broker.rack`` is one rack for all ids, or a list with one for each."""
        text, count = self.static_configs.get(RACK), len(self.node_ids)
        racks = [text] if text is None or count == 1 else [rack.strip() for rack in text.split(",")]
        return tuple(rack or None for rack in (racks * count if len(racks) == 1 else racks))

    recovers_metadata: bool = False
    """``--recover``: create new metadata for logs whose metadata is missing or damaged."""


def parse_arguments(arguments: Sequence[str]) -> BrokerSettings:
    """Parse the command line.

    Raises:
        SettingsError: A value is not allowed. The message names the setting and the allowed values.
        SystemExit: ``--help`` was given, or argparse rejects a flag and has printed why.
    """
    parsed = _parser().parse_args(arguments)
    flags = {
        "listeners": ("--listen", parsed.listen),
        "advertised.listeners": ("--advertise", parsed.advertise),
        "log.dir": ("--data-dir", parsed.data_dir),
        "log.dirs": ("--data-dir", parsed.data_dir),
        METRICS_LISTEN: ("--metrics", parsed.metrics),
    }
    configs = merged_properties(
        parsed.config, parsed.set, {name: flag for name, (flag, value) in flags.items() if value is not None}
    )
    if parsed.metrics is not None:
        configs[METRICS_LISTEN] = parsed.metrics
    data_dir = parsed.data_dir or _data_dir(configs)
    _check(configs, data_dir)
    racks = configs.get(RACK, "").count(",") + 1
    if parsed.brokers > 1 and racks not in {1, parsed.brokers}:
        raise SettingsError(
            f"{RACK}={configs[RACK]}: expected one rack, or one for each of {parsed.brokers} broker ids"
        )
    first_id = int(configs.get("node.id", configs.get("broker.id", str(DEFAULT_NODE_ID))))
    node_ids = tuple(range(first_id, first_id + parsed.brokers))
    listen, flag = parsed.listen, "--listen"
    if listen is None:
        listen, flag = configs.get("listeners", DEFAULT_LISTEN), "listeners"
    return BrokerSettings(
        listeners=parse_listeners(
            listen,
            advertised=parsed.advertise or configs.get("advertised.listeners"),
            configs=configs,
            count=parsed.brokers,
            flag=flag,
        ),
        data_dir=data_dir,
        metrics=_metrics_address(configs.get(METRICS_LISTEN, "").strip()),
        node_ids=node_ids,
        static_configs=configs,
        recovers_metadata=parsed.recover,
    )


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="klamm broker",
        description="Run a broker that speaks the Kafka protocol: one process, durable, no JVM.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--listen",
        metavar="[NAME://]HOST:PORT",
        help=f"addresses to listen on, instead of the config listeners; port 0 means any free one (default"
        f" {DEFAULT_LISTEN}); with --brokers N a list of N addresses, or one whose port is incremented for each id;"
        " several listeners as in Kafka, NAME://HOST:PORT,...",
    )
    parser.add_argument(
        "--advertise",
        metavar="[NAME://]HOST:PORT",
        help="addresses that clients connect to, instead of the config advertised.listeners (default: the listen"
        " addresses)",
    )
    parser.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help=f"directory of metadata and logs, instead of the config log.dirs (default {DEFAULT_DATA_DIR})",
    )
    parser.add_argument(
        "--recover",
        action="store_true",
        help="create new metadata when metadata.sqlite is missing or damaged but logs exist: topics with records keep"
        " their ids and records and get unlimited retention; all configs, ACLs, SCRAM credentials, quotas, client"
        " configs, group offsets and empty topics are lost; open transactions are aborted."
        " Intact metadata is not changed",
    )
    parser.add_argument(
        "--brokers",
        type=whole_number(MAX_BROKERS, lowest=1),
        default=1,
        metavar="N",
        help="number of broker ids to present, each on its own port (default 1); records are not replicated",
    )
    parser.add_argument(
        "--metrics",
        metavar="HOST:PORT",
        help=f"address of the Prometheus page /metrics, instead of the config {METRICS_LISTEN} (default: no such page)",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="broker configs, as in Kafka's server.properties")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="one broker config; outranks the file"
    )
    return parser


def _data_dir(configs: Mapping[str, str]) -> Path:
    """Return the data directory of a properties file, or the default directory."""
    key = "log.dirs" if configs.get("log.dirs", "").strip() else "log.dir"
    text = configs.get(key, "").strip()
    if "," in text:
        raise SettingsError(f"{key}={text}: expected a single directory")
    directory = Path(text or DEFAULT_DATA_DIR)
    if (directory / "meta.properties").exists():
        raise SettingsError(
            f"{key}={text}: the directory belongs to an Apache Kafka broker; name another one with --data-dir"
        )
    return directory


def _metrics_address(text: str) -> Address | None:
    if not text:
        return None
    listeners = parse_listeners(text, advertised=None, configs={}, count=1, flag=METRICS_LISTEN)
    if len(listeners) != 1:
        raise SettingsError(f"{METRICS_LISTEN} {text!r}: expected one HOST:PORT")
    return listeners[0].listen[0]


def _check(configs: Mapping[str, str], data_dir: Path) -> None:
    try:
        parse_broker_settings(configs)
        check_broker_settings({**configs, "log.dirs": str(data_dir.absolute())})
    except InvalidConfigError as error:
        raise SettingsError(error.error_message or str(error)) from error
    reject_unknown(configs)


def reject_unknown(configs: Mapping[str, str]) -> None:
    """Reject configs that would have no effect.

    Raises:
        SettingsError: Neither Kafka nor klamm defines a config, and no policy is configured that may read it.
    """
    if not names_policy(configs) and (unknown := unknown_names(configs)):
        raise SettingsError("; ".join(map(describe_unknown, unknown)))


def unknown_names(configs: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names that neither Kafka nor klamm defines, sorted."""
    return tuple(sorted(name for name in configs if not _is_known(name)))


def _is_known(name: str) -> bool:
    if find_broker_config(name) is not None or name in AUTHORIZER_CONFIGS:
        return True
    # A listener's SASL mechanism may override any config: listener.name.<listener>.<mechanism>.<config>.
    return has_listener_prefix(name) and base_name(name).partition(".")[2] in broker_configs()


def describe_unknown(name: str) -> str:
    """Return an error message about an unknown config, with the most similar existing name."""
    return f"unknown config {name}{did_you_mean(name, (*broker_configs(), *AUTHORIZER_CONFIGS))}"


_ROLES: Final = "broker,controller"
"""Value of ``process.roles``. Every broker id is a controller as well, because there is one process."""


def start_configs(settings: BrokerSettings, cluster: ClusterInfo) -> Mapping[int, Mapping[str, str]]:
    """Return the configs that the command line implies, by broker id: ids, listeners with ports, data directory."""
    return {node_id: _of_broker(settings, cluster, index) for index, node_id in enumerate(cluster.node_ids)}


def _of_broker(settings: BrokerSettings, cluster: ClusterInfo, index: int) -> Mapping[str, str]:
    node_id = cluster.node_ids[index]
    configs = {
        "node.id": str(node_id),
        "broker.id": str(node_id),
        "process.roles": _ROLES,
        "log.dirs": str(settings.data_dir.absolute()),
        "listeners": ",".join(
            f"{listener.name}://{_with_port(listener.listen[index], cluster, listener.name, index)}"
            for listener in settings.listeners
        ),
    }
    if (rack := settings.racks[index]) is not None:
        configs["broker.rack"] = rack
    advertised = [
        f"{listener.name}://{listener.advertise[index]}" for listener in settings.listeners if listener.advertise
    ]
    return {**configs, "advertised.listeners": ",".join(advertised)} if advertised else configs


def _with_port(address: Address, cluster: ClusterInfo, listener: str, index: int) -> Address:
    """Return the listen address. Port 0 is replaced by the port that was bound, as far as it is advertised."""
    return address if address.port else Address(host=address.host, port=cluster.nodes_at(listener)[index].port)
