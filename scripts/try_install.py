"""Try an installed klamm: a broker, a producer, a consumer, a policy and the command line.

Usage: ``PYTHON scripts/try_install.py`` with the Python of the environment that klamm is installed in. Prints what it
found as one line of JSON. Needs no extra of klamm and nothing of this repository.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import distribution
from pathlib import Path

POLICY = """
from klamm.policy import PolicyViolationError

class SmallTopics:
    def validate(self, request):
        if (request.num_partitions or 0) > 12:
            raise PolicyViolationError("at most 12 partitions")
"""


def main() -> None:
    """Use every part of the base install once."""
    from kafka import KafkaConsumer, KafkaProducer  # noqa: PLC0415

    import klamm  # noqa: PLC0415 - after the policy's directory is on the path of this process and of the broker
    from klamm.admin import AdminClient, NewTopic  # noqa: PLC0415

    with klamm.Broker(config={"create.topic.policy.class.name": "rules:SmallTopics"}) as broker:
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, compression_type="gzip")
        producer.send("orders", b"1").get(timeout=10)
        producer.close()
        consumer = KafkaConsumer("orders", bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest")
        value = next(consumer).value.decode()
        consumer.close()
        with AdminClient(broker.bootstrap_servers) as admin:
            rejected = admin.create_topics([NewTopic(name="large", num_partitions=13)]).values()["large"].exception()
        listed = _klamm("topics", "--bootstrap-server", broker.bootstrap_servers, "--list").split()
    files = {str(file) for file in distribution("klamm").files or ()}
    found = {
        "value": value,
        "rejected": str(rejected),
        "listed": listed,
        "version": _klamm("--version").strip(),
        "has_type_marker": "klamm/py.typed" in files,
        "has_licence": any(file.endswith("dist-info/licenses/LICENSE") for file in files),
        "plugin": [point.value for point in distribution("klamm").entry_points if point.group == "pytest11"],
        "extensions": sum(file.endswith((".so", ".pyd")) for file in files),
        "python": sys.version.split()[0],
    }
    print(json.dumps(found))


def _klamm(*arguments: str) -> str:
    command = [sys.executable, "-m", "klamm.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="klamm-try-") as folder:
        Path(folder, "rules.py").write_text(POLICY)
        sys.path[0] = folder  # instead of the directory of this script
        os.chdir(folder)
        main()
