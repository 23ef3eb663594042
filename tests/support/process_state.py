"""State of the test process that programs change: environment variables and logging.

A test that calls a command's ``main`` in its own process changes ``JAVA_HOME``, levels of loggers, or handlers of the
root logger. If this were not undone, later tests of the same worker would depend on it.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def restored() -> Iterator[None]:
    """Put environment variables and logging back as they were."""
    environment, levels, root = dict(os.environ), _levels(), logging.getLogger()
    handlers, filters = list(root.handlers), list(root.filters)
    try:
        yield
    finally:
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update({name: value for name, value in environment.items() if os.environ.get(name) != value})
        for name, _ in _levels().items() - levels.items():
            logging.getLogger(name).setLevel(levels.get(name, logging.NOTSET))
        root.handlers[:], root.filters[:] = handlers, filters


def _levels() -> dict[str, int]:
    """Return the levels that are set, by logger; the root logger has the empty name."""
    loggers = list(logging.root.manager.loggerDict.items())  # other threads may add some
    named = {name: logger.level for name, logger in loggers if isinstance(logger, logging.Logger)}
    return {"": logging.root.level, **named}
