"""What a broker tells Prometheus: only imported when it is asked for (``metrics.listen``)."""

from klamm.broker.metrics.service import Metrics

__all__ = ["Metrics"]
