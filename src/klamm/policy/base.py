"""Base classes of policies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.policy.answers import Override
    from klamm.policy.details import AlterConfigDetails, CreatePartitionsDetails, DeleteTopicDetails, TopicDetails


class Policy(ABC):  # noqa: B024 -- what is abstract is what its kinds validate
    """Base class of all policies.

    The broker creates one instance, without arguments, on a thread dedicated to the policy. All methods are called on
    that thread, one at a time, unless the policy sets ``only_computes``. Inheriting is optional: any class with a
    ``validate`` method works.

    A class that several properties name has only one instance. It has either one ``validate``, which checks the type of
    its argument, or one method per kind of request: ``validate_create_topic``, ``validate_alter_config``,
    ``validate_create_partitions``, ``validate_delete_topic``.

    A new instance replaces the old one when the module changes, when the broker receives SIGHUP, and after a call that
    exceeded ``policy.timeout.ms``. A policy can list further files to watch in ``watched_files``.
    """

    only_computes: bool = False
    """Whether ``validate`` only computes, within microseconds: no files, no network, no locks, no sleep.

    The broker then calls it directly on its event loop, which it blocks, and saves the hop to the policy's thread.
    ``configure`` and ``close`` still run on the thread. After a call that took milliseconds, the broker calls the
    policy on its thread like any other. May be set in ``configure``.
    """

    def configure(self, configs: Mapping[str, Any]) -> None:  # noqa: B027 -- optional
        """Configure the policy with the broker's properties. Called once, before any other method.

        An exception prevents the broker from starting, or a reloaded policy from replacing the current one.
        """

    def close(self) -> None:  # noqa: B027 -- optional
        """Release the resources acquired in ``configure``. Called once, when the instance is no longer used."""


class CreateTopicPolicy(Policy):
    """Policy that decides whether a topic may be created (KIP-108); named by ``create.topic.policy.class.name``."""

    @abstractmethod
    def validate(self, topic_details: TopicDetails) -> Override | None:
        """Return None to allow the request, an ``Override`` to change it, raise to deny it.

        Raises:
            PolicyViolationError: Denies the request. The client receives POLICY_VIOLATION (44) with the message.
            InvalidRequestError: Denies the request. The client receives INVALID_REQUEST (42) with the message, as in
                KIP-108.
        """


class AlterConfigPolicy(Policy):
    """Policy that decides whether configs may change; named by ``alter.config.policy.class.name``.

    Not asked for loggers.
    """

    @abstractmethod
    def validate(self, alter_config_details: AlterConfigDetails) -> Override | None:
        """Return None to allow the request, an ``Override`` to change it, raise to deny it.

        A denial concerns all changes of this resource in the request.

        Raises:
            PolicyViolationError: Denies the changes. The client receives POLICY_VIOLATION (44) with the message.
            InvalidRequestError: Denies the changes. The client receives INVALID_REQUEST (42) with the message.
        """


class CreatePartitionsPolicy(Policy):
    """Policy that decides whether a topic may get more partitions; named by ``create.partitions.policy.class.name``."""

    @abstractmethod
    def validate(self, create_partitions_details: CreatePartitionsDetails) -> None:
        """Return to allow the request, raise to deny it.

        Raises:
            PolicyViolationError: Denies the request. The client receives POLICY_VIOLATION (44) with the message.
            InvalidRequestError: Denies the request. The client receives INVALID_REQUEST (42) with the message.
        """


class DeleteTopicPolicy(Policy):
    """Policy that decides whether a topic may be deleted; named by ``delete.topic.policy.class.name``."""

    @abstractmethod
    def validate(self, delete_topic_details: DeleteTopicDetails) -> None:
        """Return to allow the request, raise to deny it.

        Raises:
            PolicyViolationError: Denies the request. The client receives POLICY_VIOLATION (44) with the message.
            InvalidRequestError: Denies the request. The client receives INVALID_REQUEST (42) with the message.
        """
