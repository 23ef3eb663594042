"""Command ``klamm consume``: the counterpart of Kafka's console consumer, which prints records of topics.

Flags, properties and stdout are those of Kafka 4.3's ConsoleConsumer, with the names of newer releases in addition
(``--formatter-property``, ``--command-property``, ``--command-config``). These differences are deliberate:

- Conflicting flags exit with 2. An error while consuming exits with 1; Kafka's tool logs the error and exits with 0.
- Without ``--group`` no group is created: the consumer reads all partitions on its own. Kafka's tool invents a group.
- ``--formatter`` takes only DefaultMessageFormatter and NoOpMessageFormatter, and a deserializer is one of Kafka's own.
- ``--last`` and ``--from-time`` are additional: the first record to read, by number or by time.
- ``-o json`` prints one line of JSON per record, ``-o yaml`` one document.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, Final

from klamm.cli.arguments import (
    INT32_MAX,
    INT64_MAX,
    TO_HELP,
    ToolParser,
    add_common,
    add_timeout,
    moment_ms,
    searched_ms,
)
from klamm.cli.connection import RequestError, connect, guarded
from klamm.cli.console.formatter import RecordFormatter
from klamm.cli.console.interrupts import Interrupts
from klamm.cli.console.settings import (
    kafka_python_settings,
    read_pairs,
    unknown_properties,
    with_socket_options,
)
from klamm.cli.output import print_document, print_error, print_line
from klamm.config_providers import resolve
from klamm.properties import split_servers
from klamm.server.arguments import whole_number

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from klamm.cli.console.formatter import ConsumedRecord

_PROG: Final = "klamm consume"
_NO_OUTPUT: Final = "NoOpMessageFormatter"
_FORMATTERS: Final = tuple(
    f"{package}{name}"
    for name in ("DefaultMessageFormatter", _NO_OUTPUT)
    for package in ("", "org.apache.kafka.tools.consumer.")
)
_ISOLATION_LEVELS: Final = ("read_committed", "read_uncommitted")
EARLIEST: Final = -2
LATEST: Final = -1


def parser() -> ToolParser:
    """Return the argument parser of ``klamm consume``."""
    tool = ToolParser(
        prog=_PROG,
        description="Print the records of a topic, with the flags and the output of kafka-console-consumer.sh.",
        epilog="Properties of the formatter: print.timestamp, print.partition, print.offset, print.headers, print.key\n"
        "and print.value (true or false; only print.value is true by default), key.separator (default: tab),\n"
        "line.separator, headers.separator (default: comma), null.literal (default: null), key.deserializer,\n"
        "value.deserializer and headers.deserializer.\n\n"
        "Exit codes: 0 done, 1 rejected by the cluster or the tool, 2 wrong or missing flags, 130 interrupted,\n"
        "143 or 129 after SIGTERM or SIGHUP.",
    )
    add_common(tool, timeout_ms=None)
    add_timeout(tool, "time limit for the first answer; default.api.timeout.ms of --consumer.config, else 60000")
    tool.add_value("--topic", metavar="TOPIC", help="the topic to read")
    tool.add_value("--include", metavar="REGEX", help="regular expression for the topics to read")
    tool.add_value("--partition", type=whole_number(INT32_MAX, lowest=0), metavar="N", help="read only this partition")
    tool.add_value(
        "--offset", metavar="OFFSET", help="with --partition: earliest, latest (default) or the first offset to read"
    )
    tool.add_value(
        "--last",
        type=whole_number(INT32_MAX, lowest=0),
        metavar="N",
        help="begin with the last N records of each partition, without a group; markers of transactions count",
    )
    tool.add_value(
        "--from-time",
        type=moment_ms,
        metavar="TIME",
        help=f"begin with the first record of each partition from this time on, without a group; {TO_HELP}",
    )
    tool.add_switch("--from-beginning", help="begin with the first record if the group has no committed offset")
    tool.add_value("--group", metavar="GROUP", help="read as a member of this group and commit offsets")
    tool.add_value("--max-messages", type=whole_number(INT32_MAX), metavar="N", help="end after this many records")
    tool.add_value(
        "--timeout-ms", type=whole_number(INT64_MAX), metavar="MS", help="end if no record arrives within this time"
    )
    tool.add_value("--isolation-level", metavar="LEVEL", help="read_committed or read_uncommitted (default)")
    tool.add_value("--formatter", metavar="CLASS", help="DefaultMessageFormatter or NoOpMessageFormatter")
    tool.add_value("--key-deserializer", metavar="CLASS", help="such as LongDeserializer; as the property")
    tool.add_value("--value-deserializer", metavar="CLASS", help="such as LongDeserializer; as the property")
    tool.add_switch("--skip-message-on-error", help="skip a record that cannot be formatted")
    tool.add_switch("--enable-systest-events", help="print shutdown_complete at the end")
    for flags, file, text in (
        (("--property", "--formatter-property"), "--formatter-config", "of the formatter"),
        (("--consumer-property", "--command-property"), "--consumer.config", "of the Java consumer"),
    ):
        tool.add_argument(
            *flags, action="append", default=[], metavar="NAME=VALUE", help=f"a property {text}; may be repeated"
        )
        dest = {"dest": "command_config"} if file == "--consumer.config" else {}
        tool.add_value(file, metavar="FILE", help=f"properties {text}; values given by flag take precedence", **dest)
    return tool


def main(arguments: Sequence[str]) -> int:
    """Print records. Return 0 on success and 1 on failure; wrong flags exit with 2 (SystemExit)."""
    flags = parser()
    options = flags.parse_args(list(arguments))
    _check(flags, options)
    try:
        offset = parse_offset(options.offset, from_beginning=options.from_beginning)
    except RequestError as error:
        flags.error(str(error))
    return guarded(_PROG, lambda: _run(flags, options, offset))


def _check(flags: ToolParser, options: argparse.Namespace) -> None:
    if (options.topic is None) == (options.include is None):
        flags.error("Exactly one of the following arguments is required: [topic], [include]")
    if options.partition is not None:
        if options.topic is None:
            flags.error("The topic is required when partition is specified.")
        if options.from_beginning and options.offset is not None:
            flags.error("Options from-beginning and offset cannot be specified together.")
    elif options.offset is not None:
        flags.error("The partition is required when offset is specified.")
    _check_start(flags, options)
    flags.require_server(options)
    if options.formatter not in (None, *_FORMATTERS):
        flags.error(f"--formatter {options.formatter}: expected {_FORMATTERS[0]} or {_NO_OUTPUT}")
    if options.isolation_level not in (None, *_ISOLATION_LEVELS):
        flags.error(f"--isolation-level {options.isolation_level}: expected {' or '.join(_ISOLATION_LEVELS)}")


def _check_start(flags: ToolParser, options: argparse.Namespace) -> None:
    """Exit with 2 if ``--last`` or ``--from-time`` is combined with another flag for the first record to read."""
    for flag, value in (("--last", options.last), ("--from-time", options.from_time)):
        if value is None:
            continue
        others = {"--include": options.include, "--offset": options.offset, "--group": options.group}
        others["--from-beginning"] = options.from_beginning or None
        others["--from-time"] = options.from_time if flag == "--last" else None
        if conflicting := [name for name, other in others.items() if other is not None]:
            flags.error(f"{flag} cannot be combined with {', '.join(conflicting)}")


def parse_offset(text: str | None, *, from_beginning: bool) -> int:
    """Parse an ``--offset`` value: return the offset, ``EARLIEST`` or ``LATEST``.

    Raises:
        RequestError: The value is neither a name nor a number from 0.
    """
    if text is None:
        return EARLIEST if from_beginning else LATEST
    names = {"earliest": EARLIEST, "latest": LATEST}
    if text.lower() in names:
        return names[text.lower()]
    if not re.fullmatch(r"\+?[0-9]+", text) or int(text) > INT64_MAX:
        raise RequestError(
            f"The provided offset value '{text}' is incorrect. Valid values are 'earliest', 'latest', or a"
            " non-negative long."
        )
    return int(text)


def group_of(flags: ToolParser, options: argparse.Namespace, properties: Mapping[str, str]) -> str | None:
    """Return the group id, which may be given by the flag and by the properties.

    Raises:
        SystemExit: The given ids differ, or a partition is given, too.
    """
    from_flag = read_pairs(None, options.consumer_property, "--consumer-property").get("group.id")
    groups = {group for group in (options.group, from_flag, properties.get("group.id")) if group is not None}
    if len(groups) > 1:
        listed = ", ".join(f"'{group}'" for group in sorted(groups))
        flags.error(
            "The group ids provided in different places (directly using '--group', via '--consumer-property', or via"
            f" '--consumer.config') do not match. Detected group ids: {listed}"
        )
    if groups and options.partition is not None:
        flags.error("Options group and partition cannot be specified together.")
    return next(iter(groups), None)


def _run(flags: ToolParser, options: argparse.Namespace, offset: int) -> int:
    shown = read_pairs(options.formatter_config, options.property, "--property")
    for field in ("key", "value"):
        if (name := getattr(options, f"{field}_deserializer")) is not None:
            shown.setdefault(f"{field}.deserializer", name)
    write = _writer(options, RecordFormatter.of(shown))
    properties = resolve(read_pairs(options.command_config, options.consumer_property, "--consumer-property"))
    reset = properties.setdefault("auto.offset.reset", "earliest" if options.from_beginning else "latest")
    if options.from_beginning and reset != "earliest":
        flags.error(
            f"Can't simultaneously specify --from-beginning and 'auto.offset.reset={reset}', please remove one option"
        )
    group = group_of(flags, options, properties)
    if group is not None and (options.last is not None or options.from_time is not None):
        flags.error("--last and --from-time cannot be combined with a group, which has its own offsets")
    with connect(options, properties=properties) as admin:  # reports servers that do not answer
        admin.describe_cluster().result()
    from klamm.cli.console.receiver import Interest, RecordReceiver  # noqa: PLC0415  # --help needs no network library

    interest = Interest(
        topic=options.topic,
        include=options.include,
        partition=options.partition,
        offset=offset,
        last=options.last,
        from_ms=None if options.from_time is None else searched_ms(options.from_time),
    )
    interrupts = Interrupts()
    settings = _settings(options, properties, group)
    receiver = RecordReceiver(interest, settings, flush=sys.stdout.flush, interrupts=interrupts)
    try:
        with interrupts.deferred(), receiver:
            for record in receiver.records(at_most=options.max_messages, timeout_ms=options.timeout_ms):
                write(record)
        interrupts.check()  # a signal that arrived while the consumer committed its offsets
    finally:
        print_error(f"Processed a total of {receiver.count} messages")
        if options.enable_systest_events:
            print_line("shutdown_complete")
    return 0


def _writer(options: argparse.Namespace, formatter: RecordFormatter) -> Callable[[ConsumedRecord], object]:
    if (options.formatter or "").endswith(_NO_OUTPUT):
        return lambda record: None

    def print_record(record: ConsumedRecord) -> None:
        if options.output == "human":
            sys.stdout.buffer.write(formatter.line(record))
        else:
            print_document(options.output, formatter.document(record))

    def write(record: ConsumedRecord) -> None:
        try:
            print_record(record)
        except RequestError as error:
            if not options.skip_message_on_error:
                raise
            print_error(f"Error processing message, skipping this message: {error}")

    return write


def _settings(options: argparse.Namespace, properties: Mapping[str, str], group: str | None) -> dict[str, Any]:
    from kafka import KafkaConsumer  # noqa: PLC0415  # wrong flags need no network library

    defaults = KafkaConsumer.DEFAULT_CONFIG
    properties_of_flags = read_pairs(None, options.consumer_property, "--consumer-property")
    for name in unknown_properties(properties_of_flags, defaults):
        print_error(f"Warning: the property {name} has no effect on this consumer")
    settings = {
        "client_id": "console-consumer",
        **with_socket_options(kafka_python_settings(properties, defaults), defaults),
    }
    if options.isolation_level is not None:
        settings["isolation_level"] = options.isolation_level
    if group is None:
        settings["enable_auto_commit"] = False
    return {**settings, "group_id": group, "bootstrap_servers": list(split_servers(options.bootstrap_server))}
