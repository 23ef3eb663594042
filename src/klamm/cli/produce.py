"""Command ``klamm produce``: the counterpart of Kafka's console producer, which sends lines of stdin as records.

Flags and properties are those of Kafka 4.3's ConsoleProducer, with the names of newer releases in addition
(``--reader-property``, ``--command-property``, ``--command-config``). These differences are deliberate:

- A record that could not be sent makes the exit code 1. Kafka's tool only logs it.
- Requests are retried as by Kafka's client libraries: each with 30 seconds, a record for two minutes in all. Kafka's
  tool waits 1.5 seconds and retries three times.
- ``--line-reader`` takes no other class than LineMessageReader.
- With ``-o json`` or ``-o yaml``, a document is printed for each acknowledged record.
"""

from __future__ import annotations

import os
import sys
from codecs import getincrementaldecoder
from collections import deque
from io import IncrementalNewlineDecoder
from typing import TYPE_CHECKING, Any, Final

from klamm.cli.arguments import INT32_MAX, INT64_MAX, ToolParser, add_common
from klamm.cli.connection import RequestError, connect, guarded
from klamm.cli.console.interrupts import Interrupts
from klamm.cli.console.line_reader import LineReader
from klamm.cli.console.settings import (
    kafka_python_settings,
    read_pairs,
    unknown_properties,
    with_socket_options,
)
from klamm.cli.output import print_error
from klamm.config_providers import resolve
from klamm.properties import split_servers
from klamm.server.arguments import whole_number

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

_PROG: Final = "klamm produce"
_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_READERS: Final = ("LineMessageReader", "org.apache.kafka.tools.LineMessageReader")
_MAX_MEMORY_BYTES: Final = 32 * 1024 * 1024
_READ_BYTES: Final = 64 * 1024
_FLAG_SETTINGS: Final = {
    "batch_size": "batch_size",
    "max_partition_memory_bytes": "batch_size",
    "message_send_max_retries": "retries",
    "retry_backoff_ms": "retry_backoff_ms",
    "request_timeout_ms": "request_timeout_ms",
    "metadata_expiry_ms": "metadata_max_age_ms",
    "max_block_ms": "max_block_ms",
    "socket_buffer_size": "send_buffer_bytes",
}
"""Settings of kafka-python by the flag that sets them; of two flags for one setting the last one wins, as in Kafka."""


def parser() -> ToolParser:
    """Return the argument parser of ``klamm produce``."""
    tool = ToolParser(
        prog=_PROG,
        description="Send each line of stdin as a record, with the flags of kafka-console-producer.sh.",
        epilog="Properties of the reader, with their defaults: parse.key=false, key.separator=\\t,\n"
        "parse.headers=false, headers.delimiter=\\t, headers.separator=, headers.key.separator=:\n"
        "ignore.error=false, null.marker (none).\n"
        'With keys and headers a line is "h1:v1,h2:v2<TAB>key<TAB>value".\n\n'
        "--timeout is that of Kafka's tool. --command-property default.api.timeout.ms=MS limits the time to connect\n"
        "(default: 60000).\n\n"
        "Exit codes: 0 all sent, 1 a record could not be sent or read, 2 wrong or missing flags,\n"
        "130 interrupted, 143 or 129 after SIGTERM or SIGHUP. Lines that were read before a signal are sent;\n"
        "a second Ctrl-C drops them.",
    )
    add_common(tool, timeout_ms=None)
    number, size = whole_number(INT32_MAX, lowest=0), whole_number(INT32_MAX, lowest=1)
    tool.add_value("--topic", metavar="TOPIC", help="the topic to write to")
    tool.add_switch("--sync", help="wait for the acknowledgement of each record before the next one is sent")
    tool.add_argument(
        "--compression-codec",
        nargs="?",
        const="gzip",
        metavar="CODEC",
        help=f"one of {', '.join(_CODECS)}; gzip if none is given",
    )
    tool.add_value("--request-required-acks", metavar="ACKS", help="0, 1, or -1 and all for every replica (default)")
    tool.add_value("--timeout", type=number, metavar="MS", help="time to wait for a full batch (default 1000)")
    tool.add_value("--batch-size", type=size, metavar="BYTES", help="size of a batch (default 16384)")
    tool.add_value("--max-partition-memory-bytes", type=size, metavar="BYTES", help="same as --batch-size")
    tool.add_value(
        "--max-memory-bytes", type=whole_number(INT64_MAX, lowest=1), metavar="BYTES",
        help="memory for records that are not acknowledged yet (default 32 MiB)",
    )  # fmt: skip
    tool.add_value("--message-send-max-retries", type=number, metavar="N", help="retries of a request (default: many)")
    tool.add_value("--retry-backoff-ms", type=number, metavar="MS", help="wait before a retry (default 100)")
    tool.add_value("--request-timeout-ms", type=size, metavar="MS", help="limit of a request (default 30000)")
    tool.add_value("--metadata-expiry-ms", type=number, metavar="MS", help="maximum age of metadata (default 300000)")
    tool.add_value("--max-block-ms", type=number, metavar="MS", help="limit for finding the topic (default 60000)")
    tool.add_value("--socket-buffer-size", type=size, metavar="BYTES", help="size of the socket's send buffer")
    tool.add_value("--line-reader", metavar="CLASS", help="only LineMessageReader, the default")
    for flags, file, text in (
        (("--property", "--reader-property"), "--reader-config", "of the reader of lines"),
        (("--producer-property", "--command-property"), "--producer.config", "of the Java producer"),
    ):
        tool.add_argument(
            *flags, action="append", default=[], metavar="NAME=VALUE", help=f"a property {text}; may be repeated"
        )
        dest = {"dest": "command_config"} if file == "--producer.config" else {}
        tool.add_value(file, metavar="FILE", help=f"properties {text}; values given by flag take precedence", **dest)
    return tool


def main(arguments: Sequence[str]) -> int:
    """Send stdin. Return 0 on success and 1 on failure.

    Raises:
        KeyboardInterrupt: Ctrl-C interrupted the command.
        SystemExit: Wrong flags (2), SIGTERM (143) or SIGHUP (129).
    """
    flags = parser()
    options = flags.parse_args(list(arguments))
    if options.topic is None:
        flags.error('Missing required argument "[topic]"')
    flags.require_server(options)
    if options.compression_codec not in (None, *_CODECS):
        flags.error(f"--compression-codec {options.compression_codec}: expected one of {', '.join(_CODECS)}")
    if options.line_reader not in (None, *_READERS):
        flags.error(f"--line-reader {options.line_reader}: Java classes cannot be run; expected LineMessageReader")
    return guarded(_PROG, lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    reader = LineReader.of(read_pairs(options.reader_config, options.property, "--property"))
    properties = resolve(read_pairs(options.command_config, options.producer_property, "--producer-property"))
    with connect(options, properties=properties) as admin:  # reports servers that do not answer
        admin.describe_cluster().result()
    from klamm.cli.console.sender import RecordSender  # noqa: PLC0415  # wrong flags need no network library

    sender = RecordSender(
        options.topic,
        _settings(options, properties),
        max_bytes=options.max_memory_bytes or _MAX_MEMORY_BYTES,
        output=options.output,
        waits=options.sync,
    )
    interrupts = Interrupts()
    with interrupts.deferred(), sender:
        for number, line in enumerate(_lines(interrupts), 1):
            sender.send(reader.parse(line, number))
    return 1 if sender.failed else 0


def _lines(interrupts: Interrupts) -> Iterator[str]:
    """Iterate over the lines of stdin without their ends. A terminal gets the prompt of Kafka's tool."""
    decoder = IncrementalNewlineDecoder(getincrementaldecoder("utf-8")("surrogateescape"), translate=True)
    is_terminal, descriptor = sys.stdin.isatty(), sys.stdin.fileno()
    lines, begun, is_open = deque[str](), list[str](), True
    while True:
        if is_terminal:
            sys.stdout.write(">")
            sys.stdout.flush()
        while not lines and is_open:
            interrupts.wait_for(descriptor)
            read = os.read(descriptor, _READ_BYTES)
            is_open = bool(read)
            *ends, last = decoder.decode(read, final=not read).split("\n")
            for end in ends:
                lines.append("".join((*begun, end)))
                begun.clear()
            if last:
                begun.append(last)
            if begun and not is_open:
                lines.append("".join(begun))
        if not lines:
            return
        yield lines.popleft()


def _settings(options: argparse.Namespace, properties: Mapping[str, str]) -> dict[str, Any]:
    from kafka import KafkaProducer  # noqa: PLC0415  # wrong flags need no network library

    names = set(read_pairs(None, options.producer_property, "--producer-property"))
    for name in unknown_properties(dict.fromkeys(names, ""), KafkaProducer.DEFAULT_CONFIG):
        print_error(f"Warning: the property {name} has no effect on this producer")
    settings = {
        "client_id": "console-producer",
        "linger_ms": 1000,
        **kafka_python_settings(properties, KafkaProducer.DEFAULT_CONFIG),
        **{
            setting: getattr(options, flag)
            for flag, setting in _FLAG_SETTINGS.items()
            if getattr(options, flag) is not None
        },
        "bootstrap_servers": list(split_servers(options.bootstrap_server)),
    }
    if options.timeout is not None:
        settings["linger_ms"] = options.timeout
    # As in Java, where only a delivery.timeout.ms that is set may be too low for the other two.
    defaults = KafkaProducer.DEFAULT_CONFIG
    lowest_ms = settings["linger_ms"] + settings.get("request_timeout_ms", defaults["request_timeout_ms"])
    settings.setdefault("delivery_timeout_ms", max(defaults["delivery_timeout_ms"], lowest_ms))
    if options.compression_codec is not None:
        settings["compression_type"] = options.compression_codec
    if settings.get("compression_type") == "none":
        settings["compression_type"] = None
    if options.request_required_acks is not None:
        settings["acks"] = options.request_required_acks
    settings["acks"] = _acks(settings.get("acks", -1))
    if (settings["acks"] != -1 or settings.get("retries") == 0) and "enable.idempotence" not in properties:
        settings["enable_idempotence"] = False  # as in Java, where idempotence needs all replicas and retries
    if "transactional_id" in settings:
        raise RequestError("transactional.id: this command writes without transactions")
    return with_socket_options(settings, KafkaProducer.DEFAULT_CONFIG)


def _acks(text: str | int) -> int:
    allowed = {"all": -1, "-1": -1, "0": 0, "1": 1}
    if str(text) not in allowed:
        raise RequestError(f"acks={text}: expected 0, 1, -1 or all")
    return allowed[str(text)]
