"""Threads: one queue object, many users."""

import threading

from support.kit import PATIENCE, drain, put_all

from dirqueue import Empty


def test_many_threads_share_one_object(queue):
    """Puts and gets from all sides: each message once."""
    put, got, errors = [], [], []
    done = threading.Event()

    def produce(n):
        for each in range(60):
            body = f"{n}-{each}".encode()
            if each % 10:
                queue.put(body)
                put.append(body)
            else:
                put_all(queue, [body, body + b"+"])
                put.extend([body, body + b"+"])

    def consume():
        while True:
            try:
                lease = queue.get(timeout=0.02)
            except Empty:
                if done.is_set():
                    return
                continue
            with lease as message:
                got.append(message.body)

    def guarded(function, *arguments):
        try:
            function(*arguments)
        except BaseException as error:  # noqa: BLE001 - shown below
            errors.append(error)

    producers = [threading.Thread(target=guarded, args=(produce, n)) for n in range(3)]
    consumers = [threading.Thread(target=guarded, args=(consume,)) for _ in range(3)]
    for thread in producers + consumers:
        thread.start()
    for thread in producers:
        thread.join(PATIENCE)
    done.set()
    for thread in consumers:
        thread.join(PATIENCE)
    assert errors == []
    got += drain(queue)
    assert sorted(got) == sorted(put)


def test_signal_handler_may_put(queue):
    """A handler that interrupts a put or a get in any line can use the queue itself."""
    put, got, handled = _put_in_handlers(queue)
    assert got.count(b"main") == put
    assert got.count(b"handler") == handled


def test_signal_handler_may_put_where_other_threads_take_signals(queue):
    """The signal comes to a thread of somebody else, and its handler runs in the middle of what the main one does."""
    over = threading.Event()
    other = threading.Thread(target=over.wait, args=(PATIENCE,))
    other.start()
    try:
        put, got, handled = _put_in_handlers(queue)
    finally:
        over.set()
        other.join(PATIENCE)
    assert got.count(b"main") == put
    assert got.count(b"handler") == handled


def _put_in_handlers(queue):
    """Return how many were put, what was got, and how many a signal handler put."""
    import signal

    def handler(*_):
        if inside or count[0] >= 200:
            return  # a slow machine's next signal must not come on top of this one
        inside.append(1)
        count[0] += 1
        queue.put(b"handler")
        inside.clear()

    count, inside = [0], []
    before = signal.signal(signal.SIGVTALRM, handler)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.001, 0.001)
    try:
        put = 0
        got = []
        while count[0] < 50 or put < 300:
            queue.put(b"main")
            put += 1
            got += drain(queue, 2)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    got += drain(queue)
    return put, got, count[0]
