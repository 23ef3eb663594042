"""Command line of klamm: ``klamm COMMAND ...``, with one module per command.

Exit codes: 0 success, 1 failure, 2 wrong usage. Results go to stdout and messages to stderr. The module of a command
is imported only when that command runs, so that ``klamm broker`` does not load the other commands.
"""

from __future__ import annotations

import errno
import os
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from klamm import __version__
from klamm.extras import MissingExtraError
from klamm.imports import import_program
from klamm.lazy_dataclass import dataclass
from klamm.properties import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_IMPACT: Final = 4
"""The predicted impact is, or may be, worse than ``--max-impact`` allows. 3 means that a plan has changes."""
_EXIT_INTERRUPTED: Final = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command and the function ``function(arguments)`` of a module that runs it and returns the exit code."""

    name: str
    module: str
    summary: str
    function: str = "main"


COMMANDS: Final = (
    Command(name="broker", module="klamm.broker.main", summary="run a broker that any Kafka client can talk to"),
    Command(
        name="gateway",
        module="klamm.gateway.main",
        summary="run a gateway that clients connect to instead of a Kafka cluster",
    ),
    Command(
        name="plan", module="klamm.cli.resources.plan", function="plan_main", summary="compare a cluster with files"
    ),
    Command(
        name="apply",
        module="klamm.cli.resources.plan",
        function="apply_main",
        summary="create and change resources of a cluster to match files",
    ),
    Command(
        name="export",
        module="klamm.cli.resources.export",
        function="export_main",
        summary="write the resources of a cluster to a file",
    ),
    Command(
        name="drift",
        module="klamm.cli.resources.drift",
        function="drift_main",
        summary="watch whether a cluster is as its files declare",
    ),
    Command(
        name="schema",
        module="klamm.cli.resources.schema",
        function="schema_main",
        summary="print the JSON Schema of files, for editors",
    ),
    Command(name="topics", module="klamm.cli.topics", summary="create, describe, change topics like kafka-topics.sh"),
    Command(
        name="configs",
        module="klamm.cli.configs",
        summary="describe, change and revert configs, like kafka-configs.sh",
    ),
    Command(
        name="rollout",
        module="klamm.cli.rollout",
        summary="change configs in waves; guards watch each, and all are reverted if one fails",
    ),
    Command(
        name="groups",
        module="klamm.cli.groups",
        summary="describe, reset, delete groups like kafka-consumer-groups.sh",
    ),
    Command(name="acls", module="klamm.cli.acls", summary="list, add and remove ACLs like kafka-acls.sh"),
    Command(
        name="produce",
        module="klamm.cli.produce",
        summary="send lines of stdin as records, like Kafka's console producer",
    ),
    Command(
        name="consume", module="klamm.cli.consume", summary="print the records of topics, like Kafka's console consumer"
    ),
    Command(name="offsets", module="klamm.cli.offsets", summary="print offsets like kafka-get-offsets.sh"),
    Command(name="policy", module="klamm.cli.policy", summary="test a policy: which existing topics would it deny?"),
    Command(
        name="clients",
        module="klamm.cli.clients",
        summary="list clients and whether they follow the configs set for them",
    ),
    Command(
        name="mirror",
        module="klamm.cli.mirror",
        summary="mirror clusters on Spark, as mm2.properties says",
    ),
    Command(
        name="registrations", module="klamm.cli.registrations", summary="report which clients support which configs"
    ),
    Command(name="doctor", module="klamm.cli.doctor", summary="show what this machine has and lacks"),
    Command(name="completion", module="klamm.cli.completion", summary="print the completion script for bash or zsh"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _open_what_is_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(
                errors="backslashreplace"
            )  # names and values may contain characters that the terminal's encoding lacks
    try:
        code = _run(words)
        flush_output()
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    except MissingExtraError as error:
        sys.stderr.write(f"klamm: {error}\n")
        return EXIT_USAGE
    except BrokenPipeError:  # the reader of the output closed the pipe early, as `head` does
        write_nothing_more()
        return EXIT_OK
    except OSError as error:
        if not is_output_full(error):
            raise
        write_nothing_more()
        sys.stderr.write(f"klamm: the output could not be written: {error.strerror}\n")
        return EXIT_FAILED
    return code


def _run(words: Sequence[str]) -> int:
    if not words:
        _usage(sys.stderr)
        return EXIT_USAGE
    if words[0] in {"-h", "--help", "help"}:
        _usage(sys.stdout)
        return EXIT_OK
    if words[0] == "--version":
        sys.stdout.write(version_line())
        return EXIT_OK
    command = next((command for command in COMMANDS if command.name == words[0]), None)
    if command is None:
        allowed = [command.name for command in COMMANDS]
        listed = ", ".join(allowed) + did_you_mean(words[0], allowed)
        sys.stderr.write(f"klamm: unknown command {words[0]!r}: expected one of {listed}\n")
        return EXIT_USAGE
    return int(getattr(import_program(command.module), command.function)(words[1:]))


def _open_what_is_closed() -> None:
    """Open ``os.devnull`` in place of each standard stream that the shell closed (``>&-``), where Python has None."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - for the rest of the process


def is_output_full(error: OSError) -> bool:
    """Return whether the disk of the redirected stdout is full. Errors of files that klamm opens name the file."""
    return error.errno == errno.ENOSPC and error.filename is None


def is_output_failure(error: BaseException) -> bool:
    """Return whether stdout takes no more, so that the command ends by ``main``.

    A command that catches errors of the network or of files raises such an error again: it is an OSError, too, and a
    BrokenPipeError is a ConnectionError. Those of connections are wrapped.
    """
    return isinstance(error, BrokenPipeError) or (isinstance(error, OSError) and is_output_full(error))


def write_nothing_more() -> None:
    """Redirect stdout to ``os.devnull``, so that flushing its buffer at exit cannot fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def flush_output() -> None:
    """Flush stdout. If the reader closed the pipe early, the buffered rest of the output is dropped."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        write_nothing_more()


def version_line() -> str:
    """Return klamm's version and whether its record modules are compiled, which makes them three times faster."""
    from klamm.protocol.records import is_compiled  # noqa: PLC0415 - loads the codecs, which few commands need

    return f"klamm {__version__}{' (compiled)' if is_compiled() else ''}\n"


def _usage(stream: TextIO) -> None:
    width = max(len(command.name) for command in COMMANDS)
    lines = [f"  {command.name:<{width}}  {command.summary}" for command in COMMANDS]
    stream.write(
        "\n".join(
            [
                "usage: klamm COMMAND ...",
                "",
                "commands:",
                *lines,
                "",
                "klamm COMMAND --help shows its flags.",
                "",
            ]
        )
    )
