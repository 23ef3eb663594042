"""Output of results on stdout, for people or for programs, and of messages on stderr.

It includes the values that a policy stored in place of the requested ones.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from klamm.cli import write_nothing_more
from klamm.display import escaped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from klamm.admin import PolicyOverride


def print_line(line: str) -> None:
    """Write one line of a result to stdout."""
    sys.stdout.write(f"{line}\n")


def print_error(line: str) -> None:
    """Write one line of a message to stderr."""
    sys.stderr.write(f"{line}\n")


def write_result(text: str, *, ends_without_reader: bool = False) -> None:
    """Write the text of a result to stdout.

    If the reader closed the pipe early, as ``head`` does, the rest of the output is dropped. The command continues, so
    that its messages and its exit code are the same as with a reader.

    Args:
        text: The whole text, with its last line break.
        ends_without_reader: Whether the command ends then, by a BrokenPipeError.
    """
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        if ends_without_reader:
            raise
        write_nothing_more()


def print_result(
    output: str,
    document: object,
    human: Callable[[], Sequence[str]],
    *,
    has_tabs: bool = False,
    ends_without_reader: bool = False,
) -> None:
    """Write a result in the requested form.

    Args:
        output: ``human``, ``json`` or ``yaml``.
        document: Dictionaries, lists and plain values, for JSON and YAML.
        human: Function that returns the lines for people. They are escaped, because clients choose the names and values
            in them.
        has_tabs: Whether the lines are columns separated by tabs whose names and values are escaped already.
        ends_without_reader: As in ``write_result``.
    """
    has_all = is_unicode()
    if output == "json":
        text: Any = json.dumps(document, indent=2, ensure_ascii=not has_all) + "\n"
    elif output == "yaml":
        import yaml  # noqa: PLC0415  # imported lazily: only -o yaml needs it

        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=has_all, default_flow_style=False)
    else:
        text = "".join(f"{line if has_tabs else escaped(line)}\n" for line in human())
    write_result(text, ends_without_reader=ends_without_reader)


def print_document(output: str, document: object) -> None:
    """Write one of many results: a line of JSON, or a YAML document that begins with ``---``."""
    has_all = is_unicode()
    if output == "json":
        sys.stdout.write(json.dumps(document, ensure_ascii=not has_all) + "\n")
        return
    import yaml  # noqa: PLC0415  # imported lazily: only -o yaml needs it

    sys.stdout.write(yaml.safe_dump(document, sort_keys=False, allow_unicode=has_all, explicit_start=True))


def table_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines whose columns are aligned to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def is_unicode() -> bool:
    """Return whether stdout's encoding has every character; for others JSON and YAML define escapes."""
    return (sys.stdout.encoding or "").lower().startswith("utf")


def override_lines(override: PolicyOverride | None, requested: Mapping[str, str | None]) -> list[str]:
    """Return one line per stored value, and the reason of the policy; none without an override."""
    if override is None:
        return []
    lines = [
        f"  policy: {name}={_text(value)} in place of {_text(requested.get(name))}"
        for name, value in override.values.items()
    ]
    return [*lines, f"  policy: {override.reason}"]


def override_document(override: PolicyOverride | None) -> dict[str, Any] | None:
    """Return an override for JSON or YAML output."""
    return None if override is None else {"stored": dict(override.values), "reason": override.reason}


def _text(value: str | None) -> str:
    return "(not set)" if value is None else value
