"""kafka-python's producer with an ``acks`` that can be changed centrally while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import kafka

from klamm.client_configs.definitions import ACKS
from klamm.clients.dynamic_config import ConfigUpdate, DynamicConfigs, Values, normalise_producer
from klamm.clients.kafka_python_loop import KafkaPythonLoop, named_kafka_client

if TYPE_CHECKING:
    from collections.abc import Callable

_WIRE_ACKS: Final = {"all": -1, "0": 0, "1": 1}


class KafkaProducer(kafka.KafkaProducer):  # type: ignore[misc]  # kafka-python is untyped
    """A ``kafka.KafkaProducer`` that follows the dynamic config ``acks`` (KIP-649).

    The constructor makes the first request and waits for it at most five seconds, so that the first record already uses
    the dynamic value. A producer with idempotence or transactions accepts only ``all``.

    Args:
        enable_dynamic_config: Whether to request dynamic configs (``enable.dynamic.config``).
        on_dynamic_config_change: Called after each change in the producer's network thread. It must not block.
        configs: All arguments of kafka-python's producer.
    """

    def __init__(
        self,
        *,
        enable_dynamic_config: bool = True,
        on_dynamic_config_change: Callable[[ConfigUpdate], None] | None = None,
        **configs: Any,
    ) -> None:
        if enable_dynamic_config:
            configs.setdefault("kafka_client", named_kafka_client())
        super().__init__(**configs)
        if enable_dynamic_config:
            KafkaPythonLoop(
                manager=self._sender._client._manager,
                configs=self._dynamic_configs(),
                apply=self._apply_dynamic_configs,
                on_change=on_dynamic_config_change,
            ).start()

    def _dynamic_configs(self) -> DynamicConfigs:
        is_idempotent = bool(self.config["enable_idempotence"])

        def normalise(values: Values) -> Values:
            return normalise_producer(values, is_idempotent=is_idempotent)

        return DynamicConfigs(
            client_id=self.config["client_id"],
            static={ACKS: str(self.config["acks"])},
            normalise=normalise,
            interval_s=self.config["metadata_max_age_ms"] / 1000,
            retry_backoff_s=self.config["retry_backoff_ms"] / 1000,
        )

    def _apply_dynamic_configs(self, update: ConfigUpdate) -> None:
        """Apply the value to later Produce requests. Runs in the sender's thread, which creates them."""
        acks = _WIRE_ACKS[update.effective[ACKS]]
        self.config["acks"] = acks
        self._sender.config["acks"] = acks
