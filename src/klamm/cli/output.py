"""Results for people or for programs, on stdout; messages go to stderr."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from klamm.client_configs.printing import escaped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def say(line: str) -> None:
    """Write one line of a result."""
    sys.stdout.write(f"{line}\n")


def complain(line: str) -> None:
    """Write one line for whoever watches."""
    sys.stderr.write(f"{line}\n")


def write(output: str, document: object, human: Callable[[], Sequence[str]], *, has_tabs: bool = False) -> None:
    """Write a result in the form that was asked for.

    Args:
        output: ``human``, ``json`` or ``yaml``.
        document: Dictionaries, lists and plain values, for the two others.
        human: Makes the lines for people, which are escaped: names and values in them are chosen by others.
        has_tabs: The lines are columns between tabs, and what others chose in them is escaped already.
    """
    takes_all = (sys.stdout.encoding or "").lower().startswith("utf")  # where not, both forms have escapes of their own
    if output == "json":
        sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=not takes_all) + "\n")
    elif output == "yaml":
        import yaml  # noqa: PLC0415  # who does not ask for it does not wait for it

        text: Any = yaml.safe_dump(document, sort_keys=False, allow_unicode=takes_all, default_flow_style=False)
        sys.stdout.write(text)
    else:
        for line in human():
            say(line if has_tabs else escaped(line))
