"""Spark sink ``klamm-kafka``. Each task writes its own rows; in a stream, in one transaction with the batch id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    NullType,
    StringType,
    StructType,
    TimestampType,
)

from klamm.dataframes.batch_transaction import BatchTransaction
from klamm.dataframes.errors import UnansweredError, WritingError
from klamm.dataframes.rows import WRITTEN, rows_of
from klamm.dataframes.writer import RecordWriter, TargetCluster
from klamm.lazy_dataclass import dataclass
from klamm.properties import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from klamm.dataframes.options import WriteOptions

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties that Spark sets for the tasks of a stream (``StreamExecution``, ``MicroBatchExecution``)."""
_KINDS: Final = {
    "key": (BinaryType, StringType),
    "value": (BinaryType, StringType),
    "topic": (StringType,),
    "partition": (IntegerType,),
    "timestamp": (TimestampType,),
}
_HEADERS: Final = "array<struct<key:string,value:binary>>"


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """Commit message of one task."""

    records: int


def checked(schema: StructType, options: WriteOptions) -> None:
    """Reject unknown columns, columns of a wrong type, and schemas without a value or topic column.

    Raises:
        SettingsError: The message names the columns.
    """
    for field in schema:
        if field.name not in WRITTEN:
            raise SettingsError(
                f"column {field.name}: not a part of a record; expected columns out of {', '.join(WRITTEN)}: drop it"
            )
        if not _fits(field.name, field.dataType):
            kinds = _HEADERS if field.name == "headers" else " or ".join(k.typeName() for k in _KINDS[field.name])
            raise SettingsError(f"column {field.name} {field.dataType.simpleString()}: expected {kinds}")
    if "value" not in schema.names:
        raise SettingsError("column value: missing; a tombstone has the value null")
    if options.topic is None and "topic" not in schema.names:
        raise SettingsError("topic: expected the option, or a column of this name")


def _fits(name: str, kind: DataType) -> bool:
    if isinstance(kind, NullType):
        return name != "topic"
    if name != "headers":
        return isinstance(kind, _KINDS[name])
    element = kind.elementType if isinstance(kind, ArrayType) else None
    return isinstance(element, StructType) and [(one.name, type(one.dataType)) for one in element] == [
        ("key", StringType),
        ("value", BinaryType),
    ]


class KafkaWriter(DataSourceArrowWriter):
    """Writer of a batch query: at least once, because a task that Spark retries writes again."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Written:
        """Write the rows of one task."""
        return _write_plainly(self._options, iterator)


class KafkaStreamWriter(DataSourceStreamArrowWriter):
    """Writer of a stream: exactly once, or at least once by option."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Written:
        """Write the rows of one task in one micro-batch."""
        if self._options.exactly_once:
            return _write_in_transaction(self._options, iterator)
        return _write_plainly(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: the tasks have already committed."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: failed tasks abort their transactions, and the next attempt those that are still open."""


def _write_plainly(options: WriteOptions, batches: Iterator[Any]) -> Written:
    target = TargetCluster(options)
    try:
        writer = RecordWriter(target, options, spread=_context().partitionId())
        count = 0
        for batch in batches:
            writer.write(rows_of(batch, options.topic))
            count += batch.num_rows
        writer.flush()
    finally:
        target.close()
    return Written(count)


def _write_in_transaction(options: WriteOptions, batches: Iterator[Any]) -> Written:
    context = _context()
    query_id, batch_id = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
    if query_id is None or batch_id is None:
        raise WritingError("Spark did not pass the query id and the batch id to the task: expected exactlyOnce=false")
    task = context.partitionId()
    target = TargetCluster(options)
    transaction = BatchTransaction(target, options, query_id=query_id, task=task, batch_id=int(batch_id))
    writer: RecordWriter | None = None
    try:
        count = 0
        for batch in batches:
            if count == 0 and batch.num_rows:  # a task without rows needs no connection
                transaction.begin()
                if not transaction.is_written:
                    writer = RecordWriter(target, options, transaction=transaction, spread=task)
            count += batch.num_rows
            if writer is not None:
                writer.write(rows_of(batch, options.topic))
        if writer is not None:
            writer.flush()
            if writer.any_partition is not None:
                transaction.commit(writer.any_partition, count)
        transaction.check_repeated(count)
    except Exception as error:
        if writer is not None and not isinstance(error, UnansweredError) and writer.is_answered():
            transaction.abort()
        raise
    finally:
        target.close()
    return Written(count)


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise WritingError("klamm-kafka can write only inside a Spark task")
    return context
