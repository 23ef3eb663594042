"""Flags of ``klamm configs``: those of Kafka 4.3's kafka-configs.sh, with its rules for combining them."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any, Final

from klamm.cli.arguments import Once, ToolParser, add_common, check_conflicts, flags_of
from klamm.cli.configs.entities import ENTITY_TYPES, Target
from klamm.cli.connection import RequestError
from klamm.cli.impact import IMPACT_FLAGS, add_impact_flags
from klamm.security.principals import user_name

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAME_FLAGS: Final = {
    "topic": ("topics", "the topic"),
    "client": ("clients", "the client id"),
    "user": ("users", "the user"),
    "broker": ("brokers", "the broker's id"),
    "broker-logger": ("broker-loggers", "the id of the broker whose log levels are meant"),
    "ip": ("ips", "the address"),
    "client-metrics": ("client-metrics", "the client metrics subscription"),
    "group": ("groups", "the group"),
}
_DEFAULT_FLAGS: Final = {
    "client-defaults": "clients",
    "user-defaults": "users",
    "broker-defaults": "brokers",
    "ip-defaults": "ips",
}
_WITH_DEFAULT: Final = ("users", "clients", "brokers", "ips")
_CHANGES: Final = ("add-config", "add-config-file", "delete-config", "append-config", "subtract-config")


class _EntityName(argparse.Action):
    """Argparse action that collects ``--entity-name`` and ``--entity-default`` in given order; "" is the default."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Append the name."""
        del parser
        name = values if isinstance(values, str) else ""
        namespace.entity_names = [*(namespace.entity_names or ()), name]
        if option_string == "--entity-default":
            namespace.entity_default = True


def parser() -> ToolParser:
    """Return the argument parser of ``klamm configs``."""
    flags = ToolParser(
        prog="klamm configs",
        description="Describe and change configs, with the flags and the output of kafka-configs.sh.\n\n"
        "Further commands, each with a --help of its own:\n"
        "  klamm configs plan PATH     the same as klamm plan\n"
        "  klamm configs apply PATH    the same as klamm apply\n"
        "  klamm configs export FILE   the same as klamm export\n"
        "  klamm configs history       show past config changes with time and principal\n"
        "  klamm configs revert        restore the configs that a topic, broker, ... had at a time\n"
        "The configs of users and clients have klamm clients history and klamm clients revert.",
        epilog="Exit codes: 0 done, 1 rejected by the cluster or the tool, 2 wrong or missing flags, 4 impact"
        " worse than --max-impact, or unknown.",
    )
    add_common(flags, instead=("bootstrap_controller",))
    flags.add_value("--bootstrap-controller", help=argparse.SUPPRESS)  # always rejected with a reason
    flags.add_switch("--alter", help="change configs")
    flags.add_switch("--describe", help="show configs")
    flags.add_switch("--all", help="show every config, not only those set for this entity")
    flags.add_argument("--entity-type", action="append", metavar="TYPE", help=f"one of {', '.join(ENTITY_TYPES)}")
    flags.add_argument("--entity-name", dest="entity_names", action=_EntityName, metavar="NAME", help="its name")
    flags.add_argument(
        "--entity-default", dest="entity_names", nargs=0, action=_EntityName, help="the default of users, clients ..."
    )
    for flag, (_, text) in _NAME_FLAGS.items():
        flags.add_value(f"--{flag}", metavar="NAME", help=text)
    for flag, entity_type in _DEFAULT_FLAGS.items():
        flags.add_switch(f"--{flag}", help=f"the default of all {entity_type}")
    flags.add_value(
        "--add-config",
        metavar="K=V,...",
        help="configs to set; k=[a,b] keeps commas together; .ms and .bytes accept units, such as 7d and 1GiB",
    )
    flags.add_value("--add-config-file", metavar="FILE", help="a properties file of configs to set")
    flags.add_argument("--delete-config", action="append", metavar="K,...", help="configs to set back to their default")
    flags.add_argument("--append-config", action=Once, metavar="K=V,...", help="values to append to lists")
    flags.add_argument("--subtract-config", action=Once, metavar="K=V,...", help="values to take out of lists")
    flags.add_value(
        "--percent",
        type=_percent,
        metavar="N",
        help="users: set the configs of --add-config for N percent of their clients only, always the same ones;"
        " raise it step by step to 100; 0 restores the value before, also after 100; without --percent the value"
        " becomes final",
    )
    flags.add_switch("--validate-only", help="check with the cluster and change nothing")
    add_impact_flags(flags)
    flags.set_defaults(entity_default=False)
    return flags


def _percent(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= 100:  # noqa: PLR2004  # percent
        raise argparse.ArgumentTypeError(f"{text}: expected a number from 0 to 100")
    if number and not round(number * 100):
        raise argparse.ArgumentTypeError(f"{text}: expected 0, or a number from 0.01 to 100")
    return number


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the flags and reject those for which Kafka's tool prints its usage.

    Raises:
        SystemExit: The flags conflict (2), or only the help or the version was requested (0).
    """
    flags = parser()
    options = flags.parse_args(list(words))
    used_flags = flags_of(options)
    if ("alter" in used_flags) == ("describe" in used_flags):
        flags.error("Command must include exactly one action: --describe, --alter")
    if options.bootstrap_controller is None:
        flags.require_server(options)
    check_conflicts(flags, used_flags, "describe", (*_CHANGES, "validate-only", "percent", *IMPACT_FLAGS))
    check_conflicts(flags, used_flags, "alter", ("all",))
    return options


def target(options: argparse.Namespace) -> Target:
    """Return the entities to describe or alter.

    Raises:
        RequestError: Kafka's tool rejects these flags too; the message is that of Kafka's tool.
    """
    short_types = [kind for flag, (kind, _) in _NAME_FLAGS.items() if _value(options, flag) is not None]
    short_types += [kind for flag, kind in _DEFAULT_FLAGS.items() if _value(options, flag)]
    short_names = [_value(options, flag) for flag in _NAME_FLAGS if _value(options, flag) is not None]
    short_names += ["" for flag in _DEFAULT_FLAGS if _value(options, flag)]
    types = (*(options.entity_type or ()), *short_types)
    names = _without_principal_type(types, (*(options.entity_names or ()), *short_names))
    _check_types(types)
    if (options.entity_type or options.entity_names) and short_types:
        raise RequestError("--entity-{type,name,default} should not be used in conjunction with specific entity flags")
    _check_connection(options)
    selected = Target(types=types, names=names)
    selected.check_ids()
    if options.describe:
        _check_describe(options, selected)
    else:
        _check_alter(options, selected)
    return selected


def _without_principal_type(types: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Return the user name without ``User:``, because ``klamm clients list`` prints users as principals.

    Raises:
        RequestError: Nothing follows ``User:``. As an empty name it would mean the default user.
    """
    if ("users", "User:") in zip(types, names, strict=False):
        raise RequestError("User: has no user name behind it; --user-defaults is for the default user")
    kinds = (*types, *([""] * len(names)))
    return tuple(user_name(name) if kind == "users" else name for kind, name in zip(kinds, names, strict=False))


def _value(options: argparse.Namespace, flag: str) -> Any:
    return getattr(options, flag.replace("-", "_"))


def _check_types(types: Sequence[str]) -> None:
    duplicates = [kind for kind in dict.fromkeys(types) if types.count(kind) > 1]
    if duplicates:
        raise RequestError(f"Duplicate entity type(s) specified: {','.join(duplicates)}")
    for kind in types:
        if kind not in ENTITY_TYPES:
            raise RequestError(
                f"Invalid entity type {kind}, the entity type must be one of {', '.join(ENTITY_TYPES)} "
                "with a --bootstrap-server or --bootstrap-controller argument"
            )
    if not types:
        raise RequestError("At least one entity type must be specified")
    if len(types) > 1 and set(types) != {"users", "clients"}:
        raise RequestError("Only 'users' and 'clients' entity types may be specified together")


def _check_connection(options: argparse.Namespace) -> None:
    if options.bootstrap_controller is not None:
        raise RequestError(
            "--bootstrap-controller is not served: klamm's brokers are their own controllers, use --bootstrap-server"
        )


def _check_describe(options: argparse.Namespace, selected: Target) -> None:
    listed = ",".join(selected.types)
    if options.entity_default and not any(kind in _WITH_DEFAULT for kind in selected.types):
        raise RequestError(f"--entity-default must not be specified with --describe of {listed}")
    if "broker-loggers" in selected.types and not any(selected.names):
        raise RequestError(f"An entity name must be specified with --describe of {listed}")
    if len(selected.names) > len(selected.types):
        raise RequestError("More entity names specified than entity types")


def _check_percent(options: argparse.Namespace, selected: Target) -> None:
    if options.percent is None:
        return
    if selected.types != ("users",):
        raise RequestError("--percent is for the clients of a user: --entity-type users, or --user or --user-defaults")
    if options.add_config is None and options.add_config_file is None:
        raise RequestError("--percent needs --add-config: the value that some of the clients get")


def _check_alter(options: argparse.Namespace, selected: Target) -> None:
    _check_percent(options, selected)
    if any(kind in _WITH_DEFAULT for kind in selected.types):
        if not selected.names:
            raise RequestError(
                "An entity-name or default entity must be specified with --alter of users, clients, brokers or ips"
            )
    elif not any(selected.names):
        raise RequestError(f"An entity name must be specified with --alter of {','.join(selected.types)}")
    if options.add_config is not None and options.add_config_file is not None:
        raise RequestError("Only one of --add-config or --add-config-file must be specified")
    if not any(_value(options, flag) for flag in _CHANGES):
        raise RequestError(
            "At least one of --add-config, --add-config-file, or --delete-config must be specified with --alter"
        )
    if len(selected.types) != len(selected.names):
        raise RequestError("An entity name must be specified for every entity type")
