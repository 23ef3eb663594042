"""Output of results on stdout, for people or for programs, and of messages on stderr."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from klamm.display import escaped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def say(line: str) -> None:
    """Write one line of a result to stdout."""
    sys.stdout.write(f"{line}\n")


def complain(line: str) -> None:
    """Write one line of a message to stderr."""
    sys.stderr.write(f"{line}\n")


def write(output: str, document: object, human: Callable[[], Sequence[str]], *, has_tabs: bool = False) -> None:
    """Write a result in the requested form.

    Args:
        output: ``human``, ``json`` or ``yaml``.
        document: Dictionaries, lists and plain values, for JSON and YAML.
        human: Function that returns the lines for people. They are escaped, because clients choose the names and values
            in them.
        has_tabs: Whether the lines are columns separated by tabs whose names and values are escaped already.
    """
    takes_all = _takes_all()
    if output == "json":
        sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=not takes_all) + "\n")
    elif output == "yaml":
        import yaml  # noqa: PLC0415  # who does not ask for it does not wait for it

        text: Any = yaml.safe_dump(document, sort_keys=False, allow_unicode=takes_all, default_flow_style=False)
        sys.stdout.write(text)
    else:
        for line in human():
            say(line if has_tabs else escaped(line))


def write_document(output: str, document: object) -> None:
    """Write one of many results: a line of JSON, or a YAML document that begins with ``---``."""
    takes_all = _takes_all()
    if output == "json":
        sys.stdout.write(json.dumps(document, ensure_ascii=not takes_all) + "\n")
        return
    import yaml  # noqa: PLC0415  # who does not ask for it does not wait for it

    sys.stdout.write(yaml.safe_dump(document, sort_keys=False, allow_unicode=takes_all, explicit_start=True))


def _takes_all() -> bool:
    """Return whether stdout's encoding has every character; for others JSON and YAML define escapes."""
    return (sys.stdout.encoding or "").lower().startswith("utf")
