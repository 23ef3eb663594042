"""State of the test process that programs change: environment, working directory, import path, signals and logging.

A test that calls a command's ``main`` in its own process changes ``JAVA_HOME``, levels of loggers, or handlers of the
root logger. If this were not undone, later tests of the same worker would depend on it.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _Environment:
    """Environment variables as they were when a test began.

    To copy them takes a third of the time of a simple test. An audit hook tells whether there was a change since. It
    also runs while Python ends, when the names of modules have no values any more.
    """

    _CHANGES: Final = frozenset({"os.putenv", "os.unsetenv"})
    """Audit events of a changed environment variable."""
    _OF_PYTEST: Final = b"PYTEST_CURRENT_TEST"
    """Variable that pytest sets for each phase of each test."""

    def __init__(self) -> None:
        self._is_changed = True
        self._variables: dict[str, str] = {}
        sys.addaudithook(self._note)

    def _note(self, event: str, args: tuple[Any, ...]) -> None:
        if event in self._CHANGES and args[0] != self._OF_PYTEST:
            self._is_changed = True

    def keep(self) -> None:
        """Remember the current variables."""
        if self._is_changed:
            self._variables = dict(os.environ)
            self._is_changed = False

    def restore(self) -> None:
        """Set the variables that differ from the remembered ones."""
        if not self._is_changed:
            return
        for name in os.environ.keys() - self._variables.keys():
            del os.environ[name]
        os.environ.update({name: value for name, value in self._variables.items() if os.environ.get(name) != value})


class _Levels:
    """Levels of the loggers as they were when a test began, copied after a change only, as the environment is."""

    def __init__(self) -> None:
        self._is_changed = True
        self._levels: dict[str, int] = {}
        logging.Logger.setLevel = self._noted(logging.Logger.setLevel)  # type: ignore[method-assign]

    def _noted(self, set_level: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(set_level)
        def noted(logger: logging.Logger, level: int | str) -> None:
            self._is_changed = True
            set_level(logger, level)

        return noted

    def keep(self) -> None:
        """Remember the current levels."""
        if self._is_changed:
            self._levels = _levels()
            self._is_changed = False

    def restore(self) -> None:
        """Set the levels that differ from the remembered ones."""
        if self._is_changed:
            for name, _ in _levels().items() - self._levels.items():
                logging.getLogger(name).setLevel(self._levels.get(name, logging.NOTSET))


_ENVIRONMENT: Final = _Environment()
_LEVELS: Final = _Levels()


def restored() -> Iterator[None]:
    """Put all of it back as it was."""
    directory, path, handling = os.getcwd(), list(sys.path), _signal_handlers()
    root = logging.getLogger()
    _ENVIRONMENT.keep()
    _LEVELS.keep()
    handlers, filters = list(root.handlers), list(root.filters)
    try:
        yield
    finally:
        _ENVIRONMENT.restore()
        _LEVELS.restore()
        root.handlers[:], root.filters[:] = handlers, filters
        sys.path[:] = path
        os.chdir(directory)
        for number, handler in handling.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def _signal_handlers() -> dict[signal.Signals, Any]:
    """Return the handlers that were installed from Python, by signal."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)
    return {number: handler for number in numbers if (handler := signal.getsignal(number)) is not None}


def _levels() -> dict[str, int]:
    """Return the levels that are set, by logger; the root logger has the empty name."""
    loggers = list(logging.root.manager.loggerDict.items())  # other threads may add some
    named = {name: logger.level for name, logger in loggers if isinstance(logger, logging.Logger)}
    return {"": logging.root.level, **named}
