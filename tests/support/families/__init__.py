"""Four client families with one interface: each scenario is written once and run with every family."""

from __future__ import annotations

from tests.support.families.aio import AIOKAFKA
from tests.support.families.confluent import CONFLUENT_KAFKA
from tests.support.families.java_tools import JAVA
from tests.support.families.kafka_python import KAFKA_PYTHON
from tests.support.families.model import Delivery, Family

FAMILIES = (KAFKA_PYTHON, CONFLUENT_KAFKA, AIOKAFKA, JAVA)

__all__ = ["AIOKAFKA", "CONFLUENT_KAFKA", "FAMILIES", "JAVA", "KAFKA_PYTHON", "Delivery", "Family"]
