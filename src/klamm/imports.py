"""Import of the modules of a program at its start."""

from __future__ import annotations

import gc
from importlib import import_module
from types import ModuleType  # noqa: TC003 - types is loaded anyway, typing is not


def import_program(module: str) -> ModuleType:
    """Import a module and return it, without garbage collections: almost every object that imports create stays."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return import_module(module)
    finally:
        if was_enabled:
            gc.enable()
