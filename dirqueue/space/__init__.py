"""Several queues that change together: spaces and transactions."""

from dirqueue.message import Put
from dirqueue.space.results import Committed, Written
from dirqueue.space.space import Space
from dirqueue.space.transaction import Transaction

__all__ = ["Committed", "Put", "Space", "Transaction", "Written"]
