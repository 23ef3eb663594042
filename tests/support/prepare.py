"""Write what many tests need of Apache Kafka, while no test waits for it yet: archives of its classes, and programs.

Without Java or Maven nothing is done: the tests that need them say so.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

from tests.support.java import JavaUnavailableError, broker_class_path, class_path
from tests.support.kafka import write_broker_archive, write_tools_archive
from tests.support.kafka_tools import compile_programs


def main() -> None:
    """Write everything, the archives at the same time."""
    with contextlib.suppress(JavaUnavailableError), ThreadPoolExecutor() as executor:
        class_path()
        broker_class_path()
        for step in [executor.submit(step) for step in (write_broker_archive, write_tools_archive, compile_programs)]:
            step.result()


if __name__ == "__main__":
    main()
