"""ListTransactions (key 66), v0-2.

Returns the transactional ids of the broker id that was asked, filtered by state, producer id, duration of the open
transaction (v1+, KIP-994) and a pattern of the id (v2). Ids without DESCRIBE are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.requests.checks import may_transactional_id
from klamm.broker.transactions.model import TransactionState
from klamm.patterns import PatternError, full_matcher
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from klamm.security.acls import AclOperation
from klamm.server.route import Route

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext
    from klamm.broker.transactions.model import Transaction

API: Final = Api(key=ApiKey.LIST_TRANSACTIONS, min_version=0, max_version=2)
_STATES: Final = frozenset(state.value for state in TransactionState)


async def handle(request: ListTransactionsRequest, context: RequestContext) -> ListTransactionsResponse:
    """List the transactional ids that pass all filters."""
    pattern, slices, now_ms = request.transactional_id_pattern, context.time_slice, context.services.now_ms()
    states, producer_ids = frozenset(request.state_filters), frozenset(request.producer_id_filters)
    try:
        matches = full_matcher(pattern, is_from_client=True) if pattern else _any
        transactions = [
            item
            async for item in slices.over(context.services.transactions.all())
            if (not states or item.state.value in states)
            and (not producer_ids or item.producer_id in producer_ids)
            and _lasts(item, request.duration_filter, now_ms)
            and matches(item.transactional_id)
            and _is_ours(item, context)
        ]
    except PatternError:
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    except KafkaApiError as error:
        return ListTransactionsResponse(error_code=error.error_code)
    return ListTransactionsResponse(
        unknown_state_filters=[state for state in request.state_filters if state not in _STATES],
        transaction_states=await slices.listed(
            ListTransactionsResponse.TransactionState(
                transactional_id=item.transactional_id,
                producer_id=item.producer_id,
                transaction_state=item.state.value,
            )
            for item in transactions
        ),
    )


def _any(_: str) -> bool:
    return True


def _lasts(item: Transaction, duration_ms: int, now_ms: int) -> bool:
    """Return whether a transaction has been open for longer than a duration. A negative one accepts all."""
    return duration_ms < 0 or (item.started_ms >= 0 and now_ms - item.started_ms > duration_ms)


def _is_ours(item: Transaction, context: RequestContext) -> bool:
    name = item.transactional_id
    return context.services.cluster.coordinator(name) == context.node_id and may_transactional_id(
        context, AclOperation.DESCRIBE, name
    )


ROUTE: Final = Route(api=API, request=ListTransactionsRequest, handle=handle)
