"""What others do to the queues of a transaction: programs and scenarios (see spaces.py and transactions.py).

Redrive, flush, purge and delete of a queue, lots that Spark pins, and batches of puts.
"""

import contextlib

import dirqueue
from dirqueue.layouts.native import pins
from dirqueue.layouts.native.supply import claimable
from dirqueue.space import transaction
from dirqueue.tools.delete import delete as delete_queue
from lab.spaces import AT_ONCE, transact

CONSUMER = "spark"
#: After which a consumer of lots is given up: over when a scenario begins.
TIMEOUT = 1.0
#: The same, over when a scenario is recovered.
HELD = 1_000.0


def redrive(queue):
    """Return a program that makes the dead messages of a queue ready again."""

    def program(client):
        return ("redriven", len(client.space.queue(queue).redrive()))

    return program


def flush(queue):
    """Return a program that removes every message of a queue."""

    def program(client):
        return ("flushed", client.space.queue(queue).flush())

    return program


def tidy(*queues):
    """Return a program that purges queues by themselves, with everything in them stale."""

    def program(client):
        for queue in queues:
            layout = client.space.queue(queue).layout
            usual = layout._settings
            layout._settings = usual._replace(stale=AT_ONCE)
            layout.purge(None)
            layout._settings = usual
        return "tidied"

    return program


def delete(queue):
    """Return a program that deletes a queue with all that is in it."""

    def program(client):
        try:
            return ("deleted", delete_queue(client.space.queue(queue).layout))
        except dirqueue.QueueNotFound:
            return "not there"
        except dirqueue.QueueError:
            return "not deleted"

    return program


def put_many(queue, *bodies):
    """Return a program that puts several messages at once."""

    def program(client):
        client.space.queue(queue).put_many(bodies)
        return "put"

    return program


def batch(queue, *bodies):
    """Return a preparation: messages that were put together, which every client has seen."""

    def prepare(world):
        world._switch("z")
        made = world.clients["z"].space.queue(queue).put_many([body.encode() for body in bodies])
        for each in world.clients.values():
            world._switch(each.name)
            for body, id in zip(bodies, made, strict=True):
                each.leases[body] = each.space.message(id, queue)

    return prepare


# --- lots ----------------------------------------------------------------------------------------------------


def lots_of(client, queue):
    layout = client.space.queue(queue).layout
    return pins.Pins(layout.directory, layout.settings, CONSUMER)


def pinned(queue, *bodies):
    """Return a preparation: a lot of messages, pinned by a consumer that is past its timeout."""

    def prepare(world):
        world._switch("z")
        client = world.clients["z"]
        for body in bodies:
            client.space.put(queue, body.encode())
        lots = lots_of(client, queue)
        lots.register(TIMEOUT)
        pin(client, queue)

    return prepare


def registered(queue, prepare):
    """Return a preparation: another one, and a consumer that may pin messages."""

    def prepare_both(world):
        prepare(world)
        world._switch("z")
        lots_of(world.clients["z"], queue).register(HELD)

    return prepare_both


def pin(client, queue):
    layout = client.space.queue(queue).layout
    return lots_of(client, queue).pin(1, claimable(layout.directory, layout.settings), pins.Limit())


def end_lot(queue, put):
    """Return a program that acknowledges a lot and puts, in one transaction; then it finishes the lot."""

    def build(client, t):
        lots = lots_of(client, queue)
        transaction.rename(t, client.space.queue(queue).layout, f"{lots.base}/1", f"{lots.base}/1.ack")
        t.put(put, b"y")

    def program(client):
        end = transact(build)(client)
        if end == "committed":
            lots_of(client, queue).finish("1.ack", keep=False)
        return end

    return program


def give_up(queue):
    """Return a program that gives back the lots of consumers that are past their timeout."""

    def program(client):
        layout = client.space.queue(queue).layout
        return ("gave up", pins.release_stale(layout.directory, layout.settings))

    return program


def take_lot(queue):
    """Return a program that pins what there is, and acknowledges it."""

    def program(client):
        with contextlib.suppress(dirqueue.LeaseLost):
            if pin(client, queue):
                return ("pinned", lots_of(client, queue).ack(1))
        return "nothing"

    return program
