"""Write docs/public_api.txt: every public name of klamm, one a line.

A name in this file may be removed or renamed only as docs/compatibility.md says. Run this script before each release,
and whenever ``tests/unit/test_public_api.py`` asks for it; it fails if it would remove a line. To remove one on
purpose, edit the file by hand.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.cli import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

PAGE: Final = Path(__file__).parents[1] / "docs" / "public_api.txt"
MODULES: Final = (
    "klamm",
    "klamm.admin",
    "klamm.clients",
    "klamm.clients.aio",
    "klamm.clients.confluent",
    "klamm.dataframes.spark",
    "klamm.extras",
    "klamm.mirror.spark",
    "klamm.policy",
    "klamm.policy.testing",
    "klamm.pytest_plugin",
    "klamm.testing",
)
"""The modules to import from. Everything else is internal."""


WITH_MEMBERS: Final = ("klamm.Broker", "klamm.Gateway", "klamm.admin.AdminClient")
"""Classes whose methods and properties are recorded as well."""


def exported(module: ModuleType) -> list[str]:
    """Return the public names of a module: ``__all__``, or else what is defined in it."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return sorted(listed)
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith(("_", "pytest_")) and getattr(value, "__module__", None) == module.__name__
    )


def names() -> Iterator[str]:
    """Yield every public name: exported names, members of the main classes, and commands."""
    for module_name in MODULES:
        module = import_module(module_name)
        for name in exported(module):
            yield f"{module_name}.{name}"
            if f"{module_name}.{name}" in WITH_MEMBERS:
                yield from (f"{module_name}.{name}.{member}" for member in _members(getattr(module, name)))
    yield from (f"$ klamm {command.name}" for command in COMMANDS)


def _members(owner: type) -> list[str]:
    """Return the public members that the class or a base class in klamm defines."""
    own = (base for base in owner.__mro__ if base.__module__.startswith("klamm."))
    return sorted({name for base in own for name in vars(base) if not name.startswith("_")})


def recorded() -> list[str]:
    """Return the names in the file."""
    return PAGE.read_text(encoding="utf-8").splitlines() if PAGE.exists() else []


def main() -> None:
    """Add the names that the file lacks."""
    found = list(dict.fromkeys(names()))
    gone = sorted(set(recorded()) - set(found))
    if gone:
        sys.exit(f"These public names are gone: {', '.join(gone)}")
    PAGE.write_text("".join(f"{name}\n" for name in found), encoding="utf-8")


if __name__ == "__main__":
    main()
