"""Several queues that change together: spaces and transactions."""

from dirqueue.message import Put
from dirqueue.space.space import Space
from dirqueue.space.transaction import Committed, Transaction, Written

__all__ = ["Committed", "Put", "Space", "Transaction", "Written"]
