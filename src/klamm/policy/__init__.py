"""Policies in Python for topics and configs (KIP-108, and the extensions that KIP-201 proposed).

A policy is a class named by ``create.topic.policy.class.name``, ``alter.config.policy.class.name``,
``create.partitions.policy.class.name`` or ``delete.topic.policy.class.name``::

    from klamm.policy import CreateTopicPolicy, PolicyViolationError, TopicDetails

    class AtLeastThree(CreateTopicPolicy):
        def validate(self, topic_details: TopicDetails) -> None:
            if (topic_details.num_partitions or 3) < 3:
                raise PolicyViolationError(f"{topic_details.topic}: at least 3 partitions, please")

``klamm.policy.testing`` has helpers for unit tests of a policy. ``klamm.policy.rules`` has a policy that is configured
by a file, without code.
"""

from klamm.policy.answers import Override, Throttle
from klamm.policy.base import AlterConfigPolicy, CreatePartitionsPolicy, CreateTopicPolicy, DeleteTopicPolicy, Policy
from klamm.policy.details import (
    AlterConfigDetails,
    ApiDetails,
    ClientDetails,
    CreatePartitionsDetails,
    DeleteTopicDetails,
    GroupDetails,
    ProduceDetails,
    RequestMetadata,
    TopicDetails,
)
from klamm.policy.errors import ImpactUnknownError, PolicyFailedError, PolicyLoadError, PolicyTimeoutError
from klamm.protocol.errors import InvalidRequestError, PolicyViolationError

# The names used in KIP-108, for authors who follow the KIP.
InvalidRequestException = InvalidRequestError
PolicyViolationException = PolicyViolationError

__all__ = [
    "AlterConfigDetails",
    "AlterConfigPolicy",
    "ApiDetails",
    "ClientDetails",
    "CreatePartitionsDetails",
    "CreatePartitionsPolicy",
    "CreateTopicPolicy",
    "DeleteTopicDetails",
    "DeleteTopicPolicy",
    "GroupDetails",
    "ImpactUnknownError",
    "InvalidRequestError",
    "InvalidRequestException",
    "Override",
    "Policy",
    "PolicyFailedError",
    "PolicyLoadError",
    "PolicyTimeoutError",
    "PolicyViolationError",
    "PolicyViolationException",
    "ProduceDetails",
    "RequestMetadata",
    "Throttle",
    "TopicDetails",
]
