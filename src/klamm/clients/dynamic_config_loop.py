"""Request loop of ``DynamicConfigs``, independent of the connection that carries the requests."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from klamm.clients.dynamic_config import ConfigUpdate, DynamicConfigs
    from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsResponse

logger = logging.getLogger(__name__)

MAX_WAIT_FOR_FIRST_S: Final = 5.0


class DynamicConfigLoop(ABC):
    """Coroutine that requests dynamic configs until they are disabled for good. It runs on one event loop.

    Args:
        configs: State that decides when to send a request and what an answer changes.
        apply: Applies an update to the client.
        on_change: The application's callback, called after ``apply``.
    """

    def __init__(
        self,
        configs: DynamicConfigs,
        apply: Callable[[ConfigUpdate], None],
        on_change: Callable[[ConfigUpdate], None] | None,
    ) -> None:
        self._configs = configs
        self._apply = apply
        self._on_change = on_change
        self._first = threading.Event()

    async def _run(self) -> None:
        try:
            while (delay_s := self._configs.due_in_s(time.monotonic())) is not None:
                if delay_s > 0:
                    await self._sleep(delay_s)
                else:
                    await self._ask_once()
        except Exception:
            if not self._is_closed:  # otherwise the client is closing and its event loop accepts no further waits
                logger.exception("Dynamic configs have stopped: the client keeps %s", dict(self._configs.effective))
        finally:
            self._first.set()

    @property
    @abstractmethod
    def _is_closed(self) -> bool:
        """Return whether the event loop is closed."""

    @abstractmethod
    async def _sleep(self, seconds: float) -> None:
        """Sleep on the event loop."""

    @abstractmethod
    async def _ask_once(self) -> None:
        """Send one request and call ``_answered``, or report to ``DynamicConfigs`` why there is no answer."""

    def _answered(self, response: DescribeClientConfigsResponse) -> None:
        update = self._configs.on_answer(time.monotonic(), response)
        if update is not None:
            self._take(update)
        self._first.set()

    def _take(self, update: ConfigUpdate) -> None:
        self._apply(update)
        if self._on_change is None:
            return
        try:
            self._on_change(update)
        except Exception:
            logger.exception("on_dynamic_config_change failed; the change itself is in force")
