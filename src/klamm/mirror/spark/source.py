"""Streaming data source of the mirror. A micro-batch is a lease, and its rows are the progress per partition."""

from __future__ import annotations

import contextlib
import socket
import sys
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from klamm.mirror.progress.flow_progress import FlowFailedError
from klamm.mirror.progress.partition_progress import spark_schema
from klamm.mirror.spark.channel import ChannelClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql.types import StructType

FORMAT: Final = "klamm-mirror"
_PLAN_TIMEOUT_S: Final = 30.0


class LeasePartition(InputPartition):
    """Work of one task in a lease: one group, or any of all groups, as the driver then decides."""

    def __init__(self, lease: int, seconds: float, task: int, groups: Sequence[dict[str, Any]]) -> None:
        super().__init__(task)
        self.lease = lease
        self.seconds = seconds
        self.task = task
        self.groups = groups


class MirrorSource(DataSource):
    """Data source ``klamm-mirror``. Its options are host, port and token of the driver's side channel."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Return the fields of ``PartitionProgress`` as a Spark schema."""
        return spark_schema()

    def streamReader(self, schema: StructType) -> MirrorReader:  # noqa: N802 - Spark's name
        """Return the reader. The schema is fixed."""
        _ = schema
        return MirrorReader(self.options)


class MirrorReader(DataSourceStreamReader):
    """Stream reader that plans leases in Spark's planning process and serves them in tasks.

    Spark pickles this object to send it to the tasks. ``initialOffset``, ``latestOffset`` and ``partitions`` run in
    the planning process, which keeps one connection to the driver. ``read`` runs on a copy in a worker process, so
    it must not keep state in this object.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._address = (options["host"], int(options["port"]))
        self._token = options["token"]
        self._channel: ChannelClient | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the connection, which cannot be pickled."""
        return {"_address": self._address, "_token": self._token, "_channel": None}

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        if self._channel is None:
            self._channel = ChannelClient(self._address, self._token)
        self._channel.send(question)
        answer = self._channel.receive(timeout_s=_PLAN_TIMEOUT_S)
        if answer is None:
            raise TimeoutError(f"The mirror's driver did not answer within {_PLAN_TIMEOUT_S:g} s")
        if "failed" in answer:
            raise FlowFailedError(answer["failed"])
        return answer

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return lease number 0, which precedes the first lease."""
        return {"lease": 0}

    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the next lease, or ``start`` if there is nothing to copy."""
        _ = limit
        return {"lease": int(self._ask({"ask": "next", "after": start["lease"]})["lease"])}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return the input partitions of a lease, one per group of topic partitions.

        After a restart, Spark may ask again for the groups of a lease that did not finish. The answer is a new
        plan made from the current partitions, not the earlier one: progress depends only on the source offsets
        on the target.
        """
        if start["lease"] == end["lease"]:
            return []
        plan = self._ask({"ask": "groups", "lease": end["lease"]})
        groups = plan["groups"]
        return [
            LeasePartition(plan["lease"], plan["seconds"], group["number"], groups if plan["any_task"] else [group])
            for group in groups
        ]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Copy until the lease is over, then yield one row of progress per partition."""
        if not isinstance(partition, LeasePartition):
            raise TypeError(f"Expected a LeasePartition, got {partition!r}")
        try:
            # The driver's planning process does not need these modules. A worker on another machine may lack them.
            from klamm.mirror.spark import leases, worker  # noqa: PLC0415
        except ImportError as error:
            self._report_missing_module(error)
            raise
        context = TaskContext.get()
        # An earlier attempt may have copied records in another process. A session that this process has kept since
        # before then would write them again, and set the source offsets back.
        retry = {"session": ""} if context is not None and context.attemptNumber() else {}
        yield from worker.serve(
            [leases.from_json({**group, **retry}) for group in partition.groups],
            task=partition.task,
            lease=partition.lease,
            seconds=partition.seconds,
            address=self._address,
            token=self._token,
        )

    def _report_missing_module(self, error: ImportError) -> None:
        """Report the missing module to the driver, which then ends the mirror: a retry would not help."""
        reason = (
            f"Spark's Python on {socket.gethostname()} ({sys.executable}) cannot run the mirror: {error}. Install "
            "klamm with its dependencies there (pip install klamm), or set PYSPARK_PYTHON to a Python that has them"
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
