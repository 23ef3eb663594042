"""Wait for a broker that lags behind its controller, because its answers would be outdated."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, Self

from klamm.admin import AdminClient, AlterConfigOp, ConfigEntry, ConfigResource, OpType, ResourceType
from tests.support.processes import wait_until
from tests.support.shared_cluster import unique

if TYPE_CHECKING:
    from types import TracebackType

_KEY: Final = "interval.ms"
_MARKS: Final = itertools.count(100_000)


class KeptUp:
    """Waiter until a broker knows all earlier changes. A context manager.

    A broker applies the controller's changes in order. So a broker that knows the last mark knows everything before it.
    """

    def __init__(self, address: str) -> None:
        self._admin = AdminClient(address)
        self._mark = ConfigResource(ResourceType.CLIENT_METRICS, unique("marks-"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._alter(None, OpType.DELETE)
        self._admin.close()

    def wait(self) -> None:
        """Return when the broker has caught up.

        Raises:
            TimeoutError: It has not caught up within a minute.
        """
        mark = str(next(_MARKS))
        self._alter(mark, OpType.SET)
        wait_until(lambda: self._seen() == mark, timeout_s=60, what="the broker to catch up with its controller")

    def wait_for_effect(self) -> None:
        """Return when the changes that the broker knows have taken effect, such as configs in its logs and groups.

        A broker shows a change before it has its effect, but not the next change.
        """
        self.wait()
        self.wait()

    def _alter(self, mark: str | None, how: OpType) -> None:
        op = AlterConfigOp(ConfigEntry(_KEY, mark), how)
        self._admin.incremental_alter_configs({self._mark: [op]}).all().result()

    def _seen(self) -> str | None:
        entry = self._admin.describe_configs([self._mark]).all().result()[self._mark].get(_KEY)
        return entry.value if entry else None
