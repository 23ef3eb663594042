"""klamm: Kafka configuration that can be changed safely while everything runs."""

from __future__ import annotations

TYPE_CHECKING = False
"""As in ``typing``, whose import would take longer than the rest of this module."""

if TYPE_CHECKING:
    from klamm.embedded.broker import Broker
    from klamm.embedded.gateway import Gateway
    from klamm.embedded.server_process import BrokerStartError

__all__ = ["Broker", "BrokerStartError", "Gateway", "__version__"]

__version__ = "0.1.0"
"""Version of klamm. The packages take it from here."""


def __getattr__(name: str) -> object:
    """Import a class on first use: the broker's own process imports this package, too, and starts faster so."""
    if name == "Broker":
        from klamm.embedded.broker import Broker  # noqa: PLC0415 - see above

        return Broker
    if name == "Gateway":
        from klamm.embedded.gateway import Gateway  # noqa: PLC0415 - see above

        return Gateway
    if name == "BrokerStartError":
        from klamm.embedded.server_process import BrokerStartError  # noqa: PLC0415 - see above

        return BrokerStartError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
