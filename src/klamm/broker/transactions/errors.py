"""Refusals of the transaction coordinator."""

from __future__ import annotations

from klamm.protocol.errors import ErrorCode, KafkaApiError


class InvalidTransactionTimeoutError(KafkaApiError):
    """A transaction timeout that is not positive, or above ``transaction.max.timeout.ms``."""

    error_code = ErrorCode.INVALID_TRANSACTION_TIMEOUT


class ConcurrentTransactionsError(KafkaApiError):
    """The last transaction is just being ended: ask again in a moment."""

    error_code = ErrorCode.CONCURRENT_TRANSACTIONS


class ProducerFencedError(KafkaApiError):
    """Another producer has taken over the transactional id."""

    error_code = ErrorCode.PRODUCER_FENCED


class TransactionAbortableError(KafkaApiError):
    """The transaction cannot be committed; the producer may abort it and go on (KIP-890)."""

    error_code = ErrorCode.TRANSACTION_ABORTABLE


class TransactionalIdNotFoundError(KafkaApiError):
    """Nobody uses this transactional id."""

    error_code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
