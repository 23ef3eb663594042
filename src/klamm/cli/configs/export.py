"""Command ``klamm configs export [FILE]``: write the topics of a cluster to a file that ``plan`` and ``apply`` read."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from klamm.cli import EXIT_FAILED, EXIT_OK
from klamm.cli.arguments import ToolParser, add_common
from klamm.cli.connection import RequestError, connect, guarded
from klamm.cli.output import print_error
from klamm.cli.topics.names import matching
from klamm.display import counted, escaped

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from klamm.cli.configs.plan_diff import CurrentTopic

_PROG: Final = "klamm configs export"
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)")
_STDOUT: Final = "-"


def parser() -> ToolParser:
    """Return the argument parser of ``klamm configs export``."""
    found = ToolParser(
        prog=_PROG,
        description="Write the topics of a cluster and the configs set on them to a file for klamm configs plan.",
        epilog="Exit codes: 0 done, 1 rejected by the cluster or the tool, 2 wrong or missing flags.",
    )
    found.add_argument(
        "file", nargs="?", default=_STDOUT, metavar="FILE", help="file to write or replace; - for stdout (default)"
    )
    add_common(found)
    found.add_value(
        "--topic", metavar="TOPIC", help="regular expression for the topics (default: all but internal ones)"
    )
    return found


def main(arguments: Sequence[str]) -> int:
    """Write the file. Return 0 on success and 1 on failure; wrong flags exit with 2 (SystemExit)."""
    flags = parser()
    options = flags.parse_args(list(arguments[1:]))
    if options.bootstrap_server is None:
        flags.error("--bootstrap-server must be specified")
    return guarded(_PROG, lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    from klamm.cli.configs import plan_cluster  # noqa: PLC0415  # wrong flags need no network library
    from klamm.mirror.naming import DefaultReplicationPolicy  # noqa: PLC0415

    is_internal = DefaultReplicationPolicy().is_internal_topic  # of Kafka, of MirrorMaker and of klamm

    with connect(options) as admin:
        names = matching(admin.list_topics().result(), options.topic, exclude_internal=True)
        found = plan_cluster.current_topics(admin, [name for name in names if not is_internal(name)])
    topics = {name: topic for name, topic in found.items() if topic.problem is None}
    for name, topic in found.items():
        if topic.problem is not None:
            print_error(f"{_PROG}: left out topic {name}: {escaped(topic.problem)}")
    code = EXIT_OK if len(topics) == len(found) else EXIT_FAILED
    text = as_text(document(topics), options.output)
    if options.file == _STDOUT:
        sys.stdout.write(text)
        return code
    try:
        Path(options.file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{options.file}: cannot be written: {error.strerror}") from error
    print_error(f"Wrote {counted(len(topics), 'topic')} to {options.file}.")
    return code


def document(topics: Mapping[str, CurrentTopic]) -> dict[str, Any]:
    """Return topics as the file declares them, with the configs that are set on the topics themselves."""
    return {
        "topics": {
            name: {
                "partitions": topic.partitions,
                "replication_factor": topic.replication_factor,
                **({"configs": configs} if (configs := _own_configs(topic)) else {}),
            }
            for name, topic in sorted(topics.items())
        }
    }


def _own_configs(topic: CurrentTopic) -> dict[str, str | int | bool]:
    return {name: _plain(config.value) for name, config in topic.own_configs.items() if config.value is not None}


def _plain(value: str) -> str | int | bool:
    """Return a value as a person would write it in YAML, if it is read back as the same text."""
    if value in ("true", "false"):
        return value == "true"
    return int(value) if _NUMBER.fullmatch(value) and value != "-0" else value


def as_text(content: object, output: str) -> str:
    """Return the file: JSON if requested, which is YAML as well, otherwise YAML."""
    if output == "json":
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    import yaml  # noqa: PLC0415  # --help needs none of it

    text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, default_flow_style=False)
    return text
