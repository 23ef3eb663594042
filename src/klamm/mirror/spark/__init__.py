"""The mirror inside Spark: what the driver plans and what the tasks do; ``start`` for notebooks and jobs.

::

    from klamm.mirror.spark import start

    query = start(spark, "mm2.properties")
    print(query.flows)
    query.stop()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.extras import require_extra

if TYPE_CHECKING:
    from klamm.mirror.spark.query import MirrorQuery, start

__all__ = ["MirrorQuery", "start"]


def __getattr__(name: str) -> object:
    """Import on first use: the tasks import this package too and need none of it."""
    if name in __all__:
        require_extra("spark", feature=f"klamm.mirror.spark.{name}")
        from klamm.mirror.spark import query  # noqa: PLC0415 - see above

        return getattr(query, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
