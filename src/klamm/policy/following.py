"""Which modules beside a policy it is made of: what it imports from its own directory, and what those import."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType

_SHARED_DIRECTORIES: Final = frozenset({"site-packages", "dist-packages"})
"""Where neighbours have nothing to do with each other."""
_NEVER: Final = "klamm"
"""Its classes must stay the same: a refusal is told by its class."""


def source_of(module: ModuleType) -> Path | None:
    """Return the file that a module is written in; None when there is none."""
    origin = getattr(module, "__file__", None)
    return Path(origin) if origin is not None and origin.endswith(".py") else None


def own_modules(module: ModuleType) -> Mapping[str, Path]:
    """Return the modules that are imported from the directory of a module or of its package, by name.

    Each stands behind those that it imports itself. Modules of a package count when they are of the same package; a
    package's own ``__init__`` does not. A source that cannot be read or parsed ends the search there.
    """
    found: dict[str, Path] = {}
    source = source_of(module)
    if source is None or module.__name__.partition(".")[0] == _NEVER:
        return found
    top, is_in_package, _ = module.__name__.partition(".")
    root = source.parents[module.__name__.count(".") - 1] if is_in_package else source.parent
    if root.name not in _SHARED_DIRECTORIES:
        _collect(module.__name__, source, root=root, package=top if is_in_package else None, found=found)
    return {name: path for name, path in found.items() if name != module.__name__}


def _collect(name: str, source: Path, *, root: Path, package: str | None, found: dict[str, Path]) -> None:
    visited = {name}
    for imported in _imports(name, source):
        path = _own_source(imported, root, package)
        if path is not None and imported not in found and imported not in visited:
            visited.add(imported)
            found[imported] = path  # keeps the search from going round in circles
            _collect(imported, path, root=root, package=package, found=found)
            found[imported] = found.pop(imported)


def _own_source(name: str, root: Path, package: str | None) -> Path | None:
    top = name.partition(".")[0]
    module = sys.modules.get(name)
    if module is None or top == _NEVER or (package is not None and top != package):
        return None
    path = source_of(module)
    if path is None or path.name == "__init__.py" or root not in path.parents:
        return None
    return path


def _imports(name: str, source: Path) -> Iterator[str]:
    """Yield what may be the names of imported modules."""
    try:
        tree = ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = name.split(".")[: -node.level]
                base = ".".join([*parents, *filter(None, [node.module])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
