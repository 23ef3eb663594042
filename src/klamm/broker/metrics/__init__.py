"""Prometheus metrics of a broker. This package is imported only when ``metrics.listen`` is set."""

from klamm.broker.metrics.service import Metrics

__all__ = ["Metrics"]
