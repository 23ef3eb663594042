"""Errors of the transaction coordinator."""

from __future__ import annotations

from klamm.protocol.errors import ErrorCode, KafkaApiError


class InvalidTransactionTimeoutError(KafkaApiError):
    """The transaction timeout is not positive, or above ``transaction.max.timeout.ms``."""

    error_code = ErrorCode.INVALID_TRANSACTION_TIMEOUT


class ConcurrentTransactionsError(KafkaApiError):
    """The previous transaction of the transactional id is still being ended. Retriable after a short wait."""

    error_code = ErrorCode.CONCURRENT_TRANSACTIONS


class ProducerFencedError(KafkaApiError):
    """A newer producer uses the transactional id."""

    error_code = ErrorCode.PRODUCER_FENCED


class TransactionAbortableError(KafkaApiError):
    """The transaction cannot be committed. The producer may abort it and continue (KIP-890)."""

    error_code = ErrorCode.TRANSACTION_ABORTABLE


class TransactionalIdNotFoundError(KafkaApiError):
    """The transactional id is unknown."""

    error_code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
