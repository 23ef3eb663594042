"""A broker in a container for tests, with testcontainers-python: for teams that run everything else of a test that way.

``klamm.Broker`` and the pytest fixtures need no container and start in a fraction of the time. This example needs
Docker, ``pip install testcontainers`` and the image: ``docker build -f Containerfile -t klamm .``
"""

from __future__ import annotations

import socket

from kafka import KafkaConsumer, KafkaProducer
from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import LogMessageWaitStrategy


class KlammContainer(DockerContainer):
    """A container with a broker. Its port is chosen before the start, because the broker advertises it to clients."""

    def __init__(self, image: str = "klamm") -> None:
        super().__init__(image)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.with_bind_ports(9092, self.port)
        self.with_command(command(self.port))
        self.waiting_for(LogMessageWaitStrategy("klamm broker ready"))

    @property
    def bootstrap_servers(self) -> str:
        """Address of the broker for clients on this machine."""
        return f"127.0.0.1:{self.port}"


def command(port: int) -> str:
    """Return the command of the container; the broker advertises the port of the host."""
    return f"broker --listen PLAINTEXT://:9092 --advertise 127.0.0.1:{port} --data-dir /data --metrics 0.0.0.0:9404"


def main() -> None:
    """Write a record and read it back."""
    with KlammContainer() as broker:
        with KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
            producer.send("orders", b"hello").get(timeout=30)
        with KafkaConsumer(
            "orders", bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest"
        ) as consumer:
            print(next(consumer).value.decode())


if __name__ == "__main__":
    main()
