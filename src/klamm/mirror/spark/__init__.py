"""MirrorMaker's Spark runtime: driver, side channel, leases and tasks, and ``start`` for notebooks and jobs.

::

    from klamm.mirror.spark import start

    query = start(spark, "mm2.properties")
    print(query.flows)
    query.stop()

Spark schedules the copying and retries it. It never sees a record: a task is a long-running copier that reads from the
source cluster and writes to the target cluster itself.

**Processes**

=====================  =================================  ===========================================================
process                started by                         job
=====================  =================================  ===========================================================
mirror (the driver)    the user                           control loops, ``Coordinator``, side channel, metrics page
JVM                    the mirror (``jvm.launch``), or    Spark's scheduler; runs one streaming query whose
                       spark-submit, or a notebook        micro-batches are leases
planning process       the JVM                            runs ``MirrorReader.latestOffset`` and ``partitions``:
                                                          asks the driver for the next lease and its groups
Python daemon          the JVM, one per executor          forks the task workers (``daemon`` for a local mirror)
task worker            the Python daemon                  runs ``MirrorReader.read``: one group of partitions
=====================  =================================  ===========================================================

**What travels where**

- Mirror to JVM (py4j): start and stop of the session and the query. The JVM returns the state of the query, and
  how many tasks can run at the same time.
- JVM to planning process and tasks (Spark's own pipes): the lease number as Spark's offset, and one ``LeasePartition``
  per task. Rows of progress return this way when the lease is over; only Spark counts them.
- Planning process and tasks to mirror (side channel, see ``channel``): lease requests and live progress. The mirror
  sends plans and the end of a lease back.
- Tasks to Kafka: records, source offsets and offset syncs.

**What ends what**

- Orderly stop: the mirror ends the lease on the side channel. The tasks wait for produce requests in flight, write
  their source offsets and return. Then the mirror stops the query, the session and the JVM.
- Tasks that are too slow: the mirror kills the JVM that it started. Records in flight are copied again after the next
  start. A JVM that spark-submit or a notebook started keeps running; only the query is stopped.
- The mirror dies: the kernel closes the standard input of the JVM, so the JVM ends, and with it daemon and workers. The
  broken side channel makes each task stop copying even earlier, also on other machines.
- The JVM dies: ``SparkRun`` starts another one and resumes from the source offsets on the target.
- A task dies: Spark retries it, and the new attempt resumes from the source offsets on the target.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.extras import require_extra

if TYPE_CHECKING:
    from klamm.mirror.spark.query import MirrorQuery, start

__all__ = ["MirrorQuery", "start"]


def __getattr__(name: str) -> object:
    """Import the public names on first use. Tasks import this package as well and need neither name."""
    if name in __all__:
        require_extra("spark", feature=f"klamm.mirror.spark.{name}")
        from klamm.mirror.spark import query  # noqa: PLC0415 - see above

        return getattr(query, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
