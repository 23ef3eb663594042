"""The walk of a request through klamm: which functions run, in which files, and which classes carry its values.

Counted are the functions of ``src/klamm``, on the event loop and in the threads that it hands work to. The parts of a
comprehension belong to the function that holds it. A function is a *hop* when it calls further functions of klamm: a
reader must go on from there to follow the request. The others are leaves, whose name says what they do.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import klamm

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType

SOURCE: Final = str(Path(klamm.__file__).parent) + "/"
_PARTS_OF_A_FUNCTION: Final = frozenset({"<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"})
_GENERATED: Final = "<string>"
"""File name of the code that dataclasses and named tuples generate."""


class Walk:
    """Functions that ran, named ``file:name``, and classes that were created with the value in them.

    Args:
        value: Value to look for.
        task: Name of the coroutine that serves the request. Other tasks of the event loop are not counted.
    """

    def __init__(self, value: str, task: str) -> None:
        self.functions: set[str] = set()
        self.hops: set[str] = set()
        self.forms: set[str] = set()
        self.is_recording = False
        self._value = value
        self._task = task

    def trace(self, frame: FrameType, event: str, _: Any) -> None:
        """Count a call. This is a function for ``sys.setprofile``."""
        if event != "call" or not self.is_recording or self._is_of_another_task():
            return
        if frame.f_code.co_name in ("__init__", "__new__") or "_cls" in frame.f_locals:  # the latter: a named tuple
            self._count_form(frame)
        if _is_of_klamm(frame.f_code) and frame.f_code.co_name not in _PARTS_OF_A_FUNCTION:
            self.functions.add(_name(frame.f_code))
            caller = frame.f_back
            while caller is not None and caller.f_code.co_filename == _GENERATED:
                caller = caller.f_back
            if caller is not None and _is_of_klamm(caller.f_code):
                self.hops.add(_name(caller.f_code))

    def _is_of_another_task(self) -> bool:
        try:
            task = asyncio.current_task()
        except RuntimeError:  # a thread without an event loop
            return False
        return task is not None and task.get_coro().__qualname__ != self._task  # type: ignore[union-attr]  # a coroutine

    def _count_form(self, frame: FrameType) -> None:
        local_values = frame.f_locals
        made = local_values.get("self", local_values.get("_cls"))
        kind = made if isinstance(made, type) else type(made)
        if kind.__module__.startswith("klamm.") and any(self._holds(value) for value in local_values.values()):
            self.forms.add(kind.__qualname__)

    def _holds(self, value: object) -> bool:
        if isinstance(value, dict):
            return self._value in value.values()
        return self._value in value if isinstance(value, tuple | list) else value == self._value


def files(functions: set[str]) -> set[str]:
    """Return the files of functions."""
    return {function.rpartition(":")[0] for function in functions}


@contextmanager
def walked(value: str, task: str) -> Iterator[Walk]:
    """Count what runs in this thread and in those started from now on, while ``Walk.is_recording`` is set."""
    walk = Walk(value, task)
    threading.setprofile(walk.trace)
    sys.setprofile(walk.trace)
    try:
        yield walk
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def _is_of_klamm(code: CodeType) -> bool:
    return code.co_filename.startswith(SOURCE)


def _name(code: CodeType) -> str:
    """Return file and name of a function; for a part of a comprehension, those of the function that holds it."""
    holder = code.co_qualname
    while holder.rpartition(".")[2] in _PARTS_OF_A_FUNCTION:
        holder = holder.rpartition(".<locals>.")[0]
    return f"{code.co_filename.removeprefix(SOURCE)}:{holder}"
