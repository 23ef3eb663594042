"""Thread that follows the metadata log of a KRaft cluster and publishes images of the metadata."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from klamm.kafka_client.errors import FATAL_ERRORS, ConnectionLostError, error_text
from klamm.kraft.controllers import ControllerChannel
from klamm.kraft.metadata_log import MetadataLogReader
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.messages.fetch_snapshot import FetchSnapshotResponse
from klamm.protocol.primitives import ZERO_UUID
from klamm.retries import Backoff, LoggedReasons

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from klamm.kafka_client.connection.transport import ConnectionSettings
    from klamm.kraft.image import ClusterImage

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 0.05
_MAX_PAUSE_S: Final = 1.0


class MetadataObserver:
    """Follows the metadata log in a thread of its own.

    Args:
        controllers: Connection settings, with controllers as ``bootstrap_servers``.
        node_id: Node id of the broker that observes; -1 for a process that is no broker.
        cluster_id: Expected cluster id. None: any.
        log_dir: Id of the broker's log directory. Zero for a process that is no broker.
    """

    def __init__(
        self,
        controllers: ConnectionSettings,
        *,
        node_id: int = -1,
        cluster_id: str | None = None,
        log_dir: UUID = ZERO_UUID,
    ) -> None:
        self._channel = ControllerChannel(controllers)
        self._reader = MetadataLogReader(node_id, cluster_id, log_dir)
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._callbacks: list[Callable[[ClusterImage], None]] = []
        self._thread = threading.Thread(target=self._run, name="klamm-metadata-observer", daemon=True)
        self._failures = LoggedReasons()
        self.image: ClusterImage = self._reader.image
        """Latest committed image. Empty, with offset -1, until the observer has caught up: a snapshot, and what follows
        it piece by piece, are history, in which a broker that is gone may be live.
        """
        self.error: Exception | None = None
        """Error that ended the observer."""
        self.reason: str | None = None
        """Error of the latest attempt to fetch, which is repeated; None after a success."""
        self.caught_up_at = float("-inf")
        """Time on the monotonic clock of the latest fetch after which the image was up to date."""

    def start(self) -> None:
        """Start to follow the log."""
        self._thread.start()

    def close(self) -> None:
        """Stop and wait for the thread. The last image stays."""
        self._stopping.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def subscribe(self, callback: Callable[[ClusterImage], None]) -> Callable[[], None]:
        """Call a function with each new image, in the observer's thread. It must return quickly.

        Returns:
            A function that ends the subscription.
        """
        with self._changed:
            self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def wait_for(self, predicate: Callable[[ClusterImage], bool], timeout_s: float) -> ClusterImage:
        """Wait for an image and return it. The empty image before the observer has caught up is not one.

        Args:
            predicate: Function that returns whether an image is the wanted one.
            timeout_s: Time limit in seconds.

        Raises:
            TimeoutError: No such image was published in time.
            MembershipError: The observer ended. Also any other error that ended it.
        """

        def is_done() -> bool:
            return self.error is not None or (self.image.offset >= 0 and predicate(self.image))

        with self._changed:
            is_in_time = self._changed.wait_for(is_done, timeout_s)
            if self.error is not None:
                raise self.error
            if not is_in_time:
                reason = f": {self.reason}" if self.reason else f" (its offset is {self.image.offset})"
                raise TimeoutError(f"The expected metadata did not appear within {timeout_s:g} s{reason}")
            return self.image

    def wait_until_caught_up(self, timeout_s: float) -> ClusterImage:
        """Wait until the image holds all records that were committed, and return it.

        Raises:
            TimeoutError: The observer has not caught up in time.
            MembershipError: The observer ended. Also any other error that ended it.
        """
        return self.wait_for(lambda _: True, timeout_s)

    def _run(self) -> None:
        backoff = Backoff(_FIRST_PAUSE_S, _MAX_PAUSE_S)
        try:
            while not self._stopping.is_set():
                try:
                    self._fetch()
                except (ConnectionLostError, TimeoutError) as error:
                    if isinstance(error, FATAL_ERRORS) and self.image.offset < 0:
                        raise
                    self._channel.lose()
                    self.reason = error_text(error)
                    if self._failures.is_new(self.reason):
                        logger.warning("Cannot follow the metadata of the cluster, will retry: %s", self.reason)
                    self._stopping.wait(backoff.next_s())
                else:
                    backoff.reset()
                    self.reason = None
                    self._failures.clear()
        except Exception as error:  # reported to all who wait for an image
            logger.exception("Stopped following the metadata of the cluster")
            with self._changed:
                self.error = error
                self._changed.notify_all()
        finally:
            self._channel.close()

    def _fetch(self) -> None:
        """Send one request and publish the image after its response."""
        request = self._reader.request()
        sent_at = time.monotonic()
        response: FetchResponse | FetchSnapshotResponse
        if isinstance(request, FetchRequest):
            response = self._channel.call(request, FetchResponse)
        else:
            response = self._channel.call(request, FetchSnapshotResponse)
        self._reader.receive(response)
        with self._changed:
            before = self.image
            if self._reader.is_caught_up:
                self.caught_up_at = sent_at
            if self.caught_up_at > float("-inf"):
                self.image = self._reader.image
            self._changed.notify_all()
            callbacks = list(self._callbacks) if self.image is not before else []
        for callback in callbacks:
            callback(self.image)
