"""Discovery of the modules that a policy consists of: those it imports from its own directory, and their imports."""

from __future__ import annotations

import dis
import sys
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType

_SHARED_DIRECTORIES: Final = frozenset({"site-packages", "dist-packages"})
"""Directories whose modules are unrelated to each other."""
_NEVER: Final = "klamm"
"""Package that is never reloaded: its classes must stay identical, because a denial is recognized by its class."""


def is_never_reloaded(name: str) -> bool:
    """Return whether a module is klamm's own."""
    return name.partition(".")[0] == _NEVER


def source_of(module: ModuleType) -> Path | None:
    """Return the source file of a module, or None if it has none."""
    origin = getattr(module, "__file__", None)
    return Path(origin) if origin is not None and origin.endswith(".py") else None


def own_modules(module: ModuleType) -> Mapping[str, Path]:
    """Return the modules that a module imports from its own directory or package, by name.

    Each module follows those that it imports. For a module in a package, only modules of the same package count,
    without ``__init__``. A source that cannot be read or parsed ends the search there.
    """
    paths: dict[str, Path] = {}
    source = source_of(module)
    if source is None or is_never_reloaded(module.__name__):
        return paths
    top, is_in_package, _ = module.__name__.partition(".")
    root = source.parents[module.__name__.count(".") - 1] if is_in_package else source.parent
    if root.name not in _SHARED_DIRECTORIES:
        _collect(module.__name__, source, root=root, package=top if is_in_package else None, paths=paths)
    return {name: path for name, path in paths.items() if name != module.__name__}


def _collect(name: str, source: Path, *, root: Path, package: str | None, paths: dict[str, Path]) -> None:
    visited = {name}
    for imported in _imports(name, source):
        path = _own_source(imported, root, package)
        if path is not None and imported not in paths and imported not in visited:
            visited.add(imported)
            paths[imported] = path  # prevents endless recursion on circular imports
            _collect(imported, path, root=root, package=package, paths=paths)
            paths[imported] = paths.pop(imported)


def _own_source(name: str, root: Path, package: str | None) -> Path | None:
    top = name.partition(".")[0]
    module = sys.modules.get(name)
    if module is None or is_never_reloaded(name) or (package is not None and top != package):
        return None
    path = source_of(module)
    if path is None or path.name == "__init__.py" or root not in path.parents:
        return None
    return path


def _imports(name: str, source: Path) -> Iterator[str]:
    """Iterate over possible names of imported modules.

    They are read from the compiled code. To build Python objects of the syntax tree fails in Python 3.11 if another
    thread does so meanwhile, such as one that formats a traceback.
    """
    try:
        codes = [compile(source.read_bytes(), str(source), "exec", dont_inherit=True)]
    except (OSError, SyntaxError, ValueError):
        return
    for code in codes:
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]
        loaded: list[Any] = []
        """The last two constants. Before an import, these are the number of parents, and the imported names or None."""
        for instruction in dis.get_instructions(code):
            if instruction.opname.startswith("LOAD_"):
                loaded = [*loaded[-1:], instruction.argval]
            elif instruction.opname == "IMPORT_NAME":
                level, imported = loaded
                base = ".".join([*(name.split(".")[:-level] if level else ()), *filter(None, [instruction.argval])])
                yield base
                yield from (f"{base}.{each}" for each in imported or ())
