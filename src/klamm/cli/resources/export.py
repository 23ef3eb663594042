"""Command ``klamm export [FILE]``: write the resources of a cluster to a file that ``plan`` and ``apply`` read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.atomic_file import replace_file
from klamm.cli import EXIT_FAILED, EXIT_OK
from klamm.cli.arguments import ToolParser, add_common
from klamm.cli.connection import RequestError, connect, guarded
from klamm.cli.output import is_unicode, print_error, write_result
from klamm.cli.topics.names import matching
from klamm.display import counted, escaped
from klamm.kafka_client.errors import explain
from klamm.resources.model import Kind, ResourceKey

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from klamm.resources.model import Existing

_STDOUT: Final = "-"


def parser(prog: str) -> ToolParser:
    """Return the argument parser of ``klamm export``."""
    tool = ToolParser(
        prog=prog,
        description="Write the resources of a cluster, and what is set on them, to a file for klamm plan.",
        epilog="Exit codes: 0 done, 1 rejected by the cluster or the tool, 2 wrong or missing flags.",
    )
    tool.add_argument(
        "file", nargs="?", default=_STDOUT, metavar="FILE", help="file to write or replace; - for stdout (default)"
    )
    add_common(tool)
    tool.add_argument(
        "--kind", action="append", choices=[str(kind) for kind in Kind], help="only these resources; may be repeated"
    )
    tool.add_value("--topic", metavar="TOPIC", help="regular expression for topics; only topics are written")
    return tool


def export_main(arguments: Sequence[str], *, prog: str = "klamm export") -> int:
    """Write the file. Return 0 on success and 1 on failure; wrong flags exit with 2 (SystemExit)."""
    flags = parser(prog)
    options = flags.parse_args(list(arguments))
    flags.require_server(options)
    return guarded(prog, lambda: _run(options, prog))


def _run(options: argparse.Namespace, prog: str) -> int:
    from klamm.resources.cluster import observe  # noqa: PLC0415  # wrong flags need no network library
    from klamm.resources.export import as_text, document  # noqa: PLC0415

    kinds = [Kind.TOPIC] if options.topic is not None else [Kind(name) for name in options.kind or Kind]
    with connect(options) as admin:
        observation = observe(admin, {}, kinds)
    is_optional = options.kind is None and options.topic is None
    problems = {
        str(kind): explain(error)
        for kind, error in observation.failures.items()
        if not (is_optional and kind in observation.missing_kinds)
    }
    resources = {key: existing for key, existing in observation.resources.items() if existing.problem is None}
    problems |= {str(key): existing.problem for key, existing in observation.resources.items() if existing.problem}
    if options.topic is not None:
        names = set(matching((key.name for key in resources), options.topic, exclude_internal=True))
        resources = {key: existing for key, existing in resources.items() if key.name in names}
    for name, problem in problems.items():
        print_error(f"{prog}: left out {name}: {escaped(problem or '')}")
    code = EXIT_FAILED if problems else EXIT_OK
    content = document(resources)
    if options.file == _STDOUT:
        write_result(as_text(content, options.output, is_unicode=is_unicode()))
        return code
    try:
        replace_file(Path(options.file), as_text(content, options.output))
    except OSError as error:
        raise RequestError(f"{options.file}: cannot be written: {error.strerror}") from error
    print_error(f"Wrote {_counts(resources)} to {options.file}.")
    return code


def _counts(resources: Mapping[ResourceKey, Existing]) -> str:
    kinds = [key.kind for key, existing in resources.items() if key.kind is Kind.TOPIC or existing.own]
    topics = kinds.count(Kind.TOPIC)
    others = len(kinds) - topics
    return counted(topics, "topic") + (f" and {counted(others, 'other resource')}" if others else "")
