"""What a policy looks like."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.policy.details import AlterConfigDetails, CreatePartitionsDetails, DeleteTopicDetails, TopicDetails


class Policy(ABC):  # noqa: B024 -- what is abstract is what its kinds validate
    """What all policies have in common.

    The broker makes one instance, without arguments, on a thread of the policy's own; everything that happens to the
    instance happens there, one call at a time, unless it only computes. Inheriting is a convenience: any class with a
    ``validate`` will do.

    A class that several properties name is one instance. It has one ``validate``, which tells by the type of its
    argument what it is asked, or a method for each kind: ``validate_create_topic``, ``validate_alter_config``,
    ``validate_create_partitions``, ``validate_delete_topic``.

    When the module changes or the broker gets SIGHUP, a new instance takes over; so it does after a call that took
    longer than ``policy.timeout.ms``. A policy may name further files to be watched in ``watched_files``.
    """

    only_computes: bool = False
    """Whether ``validate`` does nothing but compute, in microseconds: no files, no network, no locks, no sleep.

    The broker then calls it where it decides, on its event loop, which waits for it whatever happens, and saves the way
    to the policy's thread; ``configure`` and ``close`` stay there. After a call that took milliseconds it is asked on
    its thread like others. May be decided in ``configure``.
    """

    def configure(self, configs: Mapping[str, Any]) -> None:  # noqa: B027 -- optional
        """Take the broker's properties; called once, before anything else.

        An exception keeps the broker from starting, and a reloaded policy from taking over.
        """

    def close(self) -> None:  # noqa: B027 -- optional
        """Let go of what ``configure`` took; called once, when the instance has served."""


class CreateTopicPolicy(Policy):
    """Decides whether a topic may be created (KIP-108); named by ``create.topic.policy.class.name``."""

    @abstractmethod
    def validate(self, topic_details: TopicDetails) -> None:
        """Return to allow, raise to refuse.

        Raises:
            PolicyViolationError: The client is told POLICY_VIOLATION (44) with the message.
            InvalidRequestError: The client is told INVALID_REQUEST (42) with the message, as KIP-108 has it.
        """


class AlterConfigPolicy(Policy):
    """Decides whether configs may change; named by ``alter.config.policy.class.name``. Loggers are not its business."""

    @abstractmethod
    def validate(self, alter_config_details: AlterConfigDetails) -> None:
        """Return to allow, raise to refuse everything that the request wants of this resource.

        Raises:
            PolicyViolationError: The client is told POLICY_VIOLATION (44) with the message.
            InvalidRequestError: The client is told INVALID_REQUEST (42) with the message.
        """


class CreatePartitionsPolicy(Policy):
    """Decides whether a topic may grow; named by ``create.partitions.policy.class.name``."""

    @abstractmethod
    def validate(self, create_partitions_details: CreatePartitionsDetails) -> None:
        """Return to allow, raise to refuse.

        Raises:
            PolicyViolationError: The client is told POLICY_VIOLATION (44) with the message.
            InvalidRequestError: The client is told INVALID_REQUEST (42) with the message.
        """


class DeleteTopicPolicy(Policy):
    """Decides whether a topic may be deleted; named by ``delete.topic.policy.class.name``."""

    @abstractmethod
    def validate(self, delete_topic_details: DeleteTopicDetails) -> None:
        """Return to allow, raise to refuse.

        Raises:
            PolicyViolationError: The client is told POLICY_VIOLATION (44) with the message.
            InvalidRequestError: The client is told INVALID_REQUEST (42) with the message.
        """
