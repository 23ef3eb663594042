"""CRC-32C of a record batch.

The ``crc32c`` package imports ``importlib.metadata`` and ``argparse`` for its version number and its command line.
That is a tenth of the broker's start, so its extension module is loaded without the package where that is possible.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, cast

if TYPE_CHECKING:
    from types import ModuleType

_EXTENSION: Final = "crc32c._crc32c"

Buffer: TypeAlias = bytes | bytearray | memoryview


class Checksum(Protocol):
    """Signature of ``crc32c.crc32c``."""

    def __call__(self, data: Buffer, value: int = 0, /) -> int:
        """Return the CRC-32C of bytes that follow others whose CRC-32C is ``value``."""


def _extension() -> ModuleType | None:
    """Import only the compiled module of the ``crc32c`` package. Return None if the package has another layout."""
    if _EXTENSION in sys.modules:
        return sys.modules[_EXTENSION]
    package = find_spec("crc32c")
    spec = PathFinder.find_spec(_EXTENSION, package.submodule_search_locations) if package else None
    if spec is None or spec.loader is None:
        return None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[_EXTENSION] = module  # an import of the whole package takes this module and does not load it again
    return module


def _load() -> Checksum:
    function = getattr(_extension(), "crc32c", None)
    if function is None:
        from crc32c import crc32c as function  # noqa: PLC0415 - the fallback; see above
    return cast("Checksum", function)


crc32c: Final = _load()
