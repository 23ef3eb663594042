"""Errors that a peer receives (a code and a message), and framing errors, which close the connection."""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class ErrorCode(IntEnum):
    """Wire values of ``error_code`` (Kafka's ``Errors``)."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129


def error_name(error_code: int) -> str:
    """Return Kafka's name of an error code for display, or the number of an unknown code."""
    return ErrorCode(error_code).name if error_code in ErrorCode.__members__.values() else f"error code {error_code}"


MAX_MESSAGE_LENGTH = 8_000
"""Maximum length of an error message, in characters. A longer one might exceed a non-compact string (32,767 bytes)."""


class ProtocolError(Exception):
    """The peer's bytes violate the protocol. Nothing is applied and the connection is closed."""


class TooManyElementsError(ProtocolError):
    """The arrays of a message hold more elements than its frame size permits."""


class UnwritableMessageError(ValueError):
    """A value does not fit its field: it is out of range, too long, or None where null is not allowed."""


class KafkaApiError(Exception):
    """A well-formed request was rejected. The response carries ``error_code`` and a message for the peer."""

    error_code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR
    missing_right: str | None = None
    """Principal and missing right, as text. Only klamm's admin client sets it, on errors that an ACL causes."""

    def __init__(self, error_message: str | None = None) -> None:
        if error_message is not None:
            error_message = str(
                error_message
            )  # a user's policy may raise with any argument, such as a number or another exception
            if len(error_message) > MAX_MESSAGE_LENGTH:
                error_message = f"{error_message[: MAX_MESSAGE_LENGTH - 1]}…"
        super().__init__(error_message or self.error_code.name)
        self.error_message = error_message


class InvalidRequestError(KafkaApiError):
    """The request violates a rule of its schema or KIP."""

    error_code = ErrorCode.INVALID_REQUEST


class InvalidConfigError(KafkaApiError):
    """A config name or value is invalid."""

    error_code = ErrorCode.INVALID_CONFIG


class PolicyViolationError(KafkaApiError):
    """A policy rejects the request."""

    error_code = ErrorCode.POLICY_VIOLATION


class InvalidTopicError(KafkaApiError):
    """A topic name violates Kafka's naming rules, or is the name of an internal topic."""

    error_code = ErrorCode.INVALID_TOPIC_EXCEPTION


class UnknownTopicOrPartitionError(KafkaApiError):
    """The topic or partition does not exist."""

    error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class TopicAlreadyExistsError(KafkaApiError):
    """A topic of that name already exists."""

    error_code = ErrorCode.TOPIC_ALREADY_EXISTS


class InvalidPartitionsError(KafkaApiError):
    """The number of partitions is out of range."""

    error_code = ErrorCode.INVALID_PARTITIONS


class InvalidReplicationFactorError(KafkaApiError):
    """The replication factor is out of range."""

    error_code = ErrorCode.INVALID_REPLICATION_FACTOR


class InvalidReplicaAssignmentError(KafkaApiError):
    """A replica assignment names a broker or partition that cannot exist."""

    error_code = ErrorCode.INVALID_REPLICA_ASSIGNMENT


class UnsupportedVersionError(KafkaApiError):
    """The API or the version is not supported."""

    error_code = ErrorCode.UNSUPPORTED_VERSION


class ClusterAuthorizationError(KafkaApiError):
    """The principal lacks an ACL on the cluster."""

    error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class TopicAuthorizationError(KafkaApiError):
    """The principal lacks an ACL on the topic."""

    error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class GroupAuthorizationError(KafkaApiError):
    """The principal lacks an ACL on the group."""

    error_code = ErrorCode.GROUP_AUTHORIZATION_FAILED


class TransactionalIdAuthorizationError(KafkaApiError):
    """The principal lacks an ACL on the transactional id."""

    error_code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class SecurityDisabledError(KafkaApiError):
    """No authorizer is configured, so there are no ACLs."""

    error_code = ErrorCode.SECURITY_DISABLED


class StorageError(KafkaApiError):
    """The disk rejected a read or write. Nothing of the request was applied."""

    error_code = ErrorCode.KAFKA_STORAGE_ERROR


class CorruptBatchError(KafkaApiError):
    """The sizes, magic, checksum or records of a record batch are inconsistent."""

    error_code = ErrorCode.CORRUPT_MESSAGE


class DecompressedTooLargeError(CorruptBatchError):
    """The decompressed records of a batch exceed the limit of the reader."""

    error_code = ErrorCode.MESSAGE_TOO_LARGE


class InvalidRecordError(KafkaApiError):
    """A record batch is well-formed but may not be appended."""

    error_code = ErrorCode.INVALID_RECORD


class MessageTooLargeError(KafkaApiError):
    """A record batch exceeds ``max.message.bytes``."""

    error_code = ErrorCode.MESSAGE_TOO_LARGE


class RecordListTooLargeError(KafkaApiError):
    """The record batches of one produce request exceed the size of a segment."""

    error_code = ErrorCode.RECORD_LIST_TOO_LARGE


class InvalidTimestampError(KafkaApiError):
    """A timestamp differs from the current time by more than the topic allows."""

    error_code = ErrorCode.INVALID_TIMESTAMP


class OffsetOutOfRangeError(KafkaApiError):
    """An offset is below the log start offset or above the log end offset."""

    error_code = ErrorCode.OFFSET_OUT_OF_RANGE


class OutOfOrderSequenceError(KafkaApiError):
    """A sequence number does not follow the last one of its producer."""

    error_code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class InvalidProducerEpochError(KafkaApiError):
    """A producer epoch is older than the latest one: the producer is fenced."""

    error_code = ErrorCode.INVALID_PRODUCER_EPOCH


class TransactionCoordinatorFencedError(KafkaApiError):
    """A transaction marker comes from a transaction coordinator that has been replaced."""

    error_code = ErrorCode.TRANSACTION_COORDINATOR_FENCED


class UnsupportedCompressionTypeError(KafkaApiError):
    """A compression type is unknown, or not allowed in this version of the request."""

    error_code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class NotLeaderOrFollowerError(KafkaApiError):
    """Another broker is the leader of the partition."""

    error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER


class UnknownTopicIdError(KafkaApiError):
    """No topic has this id."""

    error_code = ErrorCode.UNKNOWN_TOPIC_ID


class FencedLeaderEpochError(KafkaApiError):
    """The leader epoch of the request is older than the partition's."""

    error_code = ErrorCode.FENCED_LEADER_EPOCH


class UnknownLeaderEpochError(KafkaApiError):
    """The leader epoch of the request is newer than the partition's."""

    error_code = ErrorCode.UNKNOWN_LEADER_EPOCH


class InvalidRequiredAcksError(KafkaApiError):
    """``acks`` is not 0, 1 or -1."""

    error_code = ErrorCode.INVALID_REQUIRED_ACKS


class InvalidTxnStateError(KafkaApiError):
    """A transactional write arrived outside of a transaction."""

    error_code = ErrorCode.INVALID_TXN_STATE


class InvalidProducerIdMappingError(KafkaApiError):
    """The producer id does not belong to the transactional id."""

    error_code = ErrorCode.INVALID_PRODUCER_ID_MAPPING


class ThrottlingQuotaExceededError(KafkaApiError):
    """The client exceeded its controller mutation quota, or pushes metrics too often."""

    error_code = ErrorCode.THROTTLING_QUOTA_EXCEEDED


class UnknownSubscriptionIdError(KafkaApiError):
    """The subscriptions of the client have changed; it has to fetch them again (KIP-714)."""

    error_code = ErrorCode.UNKNOWN_SUBSCRIPTION_ID


class TelemetryTooLargeError(KafkaApiError):
    """The pushed metrics are larger than ``telemetry.max.bytes``."""

    error_code = ErrorCode.TELEMETRY_TOO_LARGE
