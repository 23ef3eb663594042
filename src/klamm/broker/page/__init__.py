"""Status page of a broker, read-only, at ``/`` of the metrics listener. Imported only if ``metrics.listen`` is set."""

from klamm.broker.page.service import BrokerPage

__all__ = ["BrokerPage"]
