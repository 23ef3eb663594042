"""The mirror as a streaming source: a micro-batch is a lease, its rows say how far the copying is."""

from __future__ import annotations

import contextlib
import socket
import sys
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from klamm.mirror.errors import FlowFailedError
from klamm.mirror.spark.channel import ChannelClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql.types import StructType

FORMAT: Final = "klamm-mirror"
SCHEMA: Final = (
    "flow string, topic string, partition int, remote_topic string, next_offset long, end_offset long, "
    "records long, bytes long, last_timestamp long, state string, reason string, "
    "record_age struct<last double, least double, most double, mean double>, "
    "replication_latency struct<last double, least double, most double, mean double>"
)
_PLAN_TIMEOUT_S: Final = 30.0


class LeasePartition(InputPartition):
    """One group of a lease: what one task copies."""

    def __init__(self, lease: int, seconds: float, group: dict[str, Any]) -> None:
        super().__init__(group["number"])
        self.lease = lease
        self.seconds = seconds
        self.group = group


class MirrorSource(DataSource):
    """``spark.readStream.format("klamm-mirror")`` with the address and the token of the driver's side channel."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> str:
        """Return the fields of ``PartitionProgress``."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> MirrorReader:  # noqa: N802 - Spark's name
        """Return the reader."""
        _ = schema
        return MirrorReader(self.options)


class MirrorReader(DataSourceStreamReader):
    """Plans leases in Spark's planning process by asking the driver, and serves them in tasks.

    ``read`` is called on copies of this object in worker processes: it keeps nothing here.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._address = (options["host"], int(options["port"]))
        self._token = options["token"]
        self._channel: ChannelClient | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave the connection behind when the reader travels."""
        return {"_address": self._address, "_token": self._token, "_channel": None}

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        if self._channel is None:
            self._channel = ChannelClient(self._address, self._token)
        self._channel.send(question)
        answer = self._channel.receive(timeout_s=_PLAN_TIMEOUT_S)
        if answer is None:
            raise TimeoutError("The driver does not answer")
        if "failed" in answer:
            raise FlowFailedError(answer["failed"])
        return answer

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the number before the first lease."""
        return {"lease": 0}

    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the next lease, or ``start`` while there is nothing to copy."""
        _ = limit
        return {"lease": int(self._ask({"ask": "next", "after": start["lease"]})["lease"])}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return the groups of a lease. After a restart Spark may ask for one again: the plan of today counts."""
        if start["lease"] == end["lease"]:
            return []
        plan = self._ask({"ask": "groups", "lease": end["lease"]})
        return [LeasePartition(plan["lease"], plan["seconds"], group) for group in plan["groups"]]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Copy until the lease is over, then yield progress."""
        if not isinstance(partition, LeasePartition):
            raise TypeError(f"{partition!r} is no lease")
        try:
            # What the driver needs not, and a worker on another machine may not have.
            from klamm.mirror.spark import leases, worker  # noqa: PLC0415
        except ImportError as error:
            self._tell_what_is_missing(error)
            raise
        rows = worker.serve(
            leases.from_json(partition.group),
            lease=partition.lease,
            seconds=partition.seconds,
            address=self._address,
            token=self._token,
        )
        for row in rows:
            yield tuple(row.values())

    def _tell_what_is_missing(self, error: ImportError) -> None:
        """Let the driver end in clear words: trying again would change nothing."""
        reason = (
            f"Spark's Python on {socket.gethostname()} ({sys.executable}) can not run the mirror: {error}. Install "
            "klamm with its dependencies there (pip install klamm), or let PYSPARK_PYTHON name a Python that has them"
        )
        with contextlib.suppress(OSError):
            channel = ChannelClient(self._address, self._token)
            channel.send({"unable": reason})
            channel.close()

    def stop(self) -> None:
        """Close the connection to the driver."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
