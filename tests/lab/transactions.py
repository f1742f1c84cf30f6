"""The scenarios of transactions: two or three clients each, on the real library (see spaces.py)."""

import dataclasses

import dirqueue
from dirqueue import Put
from dirqueue.space.commit import Attempt
from lab import neighbours, spaces, tasks
from lab.spaces import Scenario, Violation, clean, consume, fence, reduce, take_over, transact

#: How long leases last that are not over when a scenario begins: they are when it is recovered.
HELD = 1_000.0


def message(world, queue, body, client="z"):
    """Put a message in advance; return its id."""
    world._switch(client)
    return world.clients[client].space.put(queue, body)


def leased(world, queue, body, client="a"):
    """Put a message in advance, and let a client hold it."""
    message(world, queue, body)
    world._switch(client)
    lease = world.clients[client].space.get(queue, timeout=0)
    assert lease.message.body == body
    for each in world.clients.values():
        each.leases[body.decode()] = (
            each.space.queue(queue).lease(lease.handle) if each.name != client else lease
        )


def seen(world, queue, body):
    """Put a message in advance, and let every client see it."""
    id = message(world, queue, body)
    for each in world.clients.values():
        world._switch(each.name)
        each.leases[body.decode()] = each.space.queue(queue).message(id)


def prepared(**made):
    """Return a function that makes messages: body=(queue, "leased" or "seen")."""

    def prepare(world):
        # Leases first: a claim takes the oldest.
        for body, (queue, how) in sorted(made.items(), key=lambda each: each[1][1] != "leased"):
            (leased if how == "leased" else seen)(world, queue, body.encode())

    return prepare


def steps(*, ack=(), cancel=(), move=(), put=(), need=(), key=()):
    """Return a transaction; each names messages that were prepared, or (queue, body) to put."""

    def build(client, t):
        known = client.leases
        for each in ack:
            t.ack(known[each])
        for each in cancel:
            t.cancel(known[each])
        for each, queue in move:
            t.move(known[each], queue)
        for each in need:
            t.need(known[each])
        for queue, body in put:
            t.put(queue, body.encode())
        for queue, body in key:
            t.put(queue, body.encode(), id="K")

    return transact(build)


def then_put(queue, body, *cancel):
    """Return what a takeover commits: its ack, a put, and what else it takes."""

    def build(client, t, lease):
        t.ack(lease)
        for each in cancel:
            t.cancel(client.leases[each])
        t.put(queue, body.encode())

    return build


def mapped(world, ends):
    """If the map queue was empty, and the mapper's commit emptied it, its output was seen."""
    told = ends[1]
    if isinstance(told, tuple) and told[0] == "empty, then":
        for txn, work in world.works.items():
            if world.ghost.verdicts.get(txn) == "committed":
                missed = {each.id for each in work.insert} - told[1]
                if missed:
                    raise Violation(f"the map queue was empty, and {missed} was not seen: {told}")


def apart(world, ends):
    """Two things that were never there together were not found together."""
    if ends[0] == "committed":
        raise Violation("committed though what it needed was never there together")


ack_put = steps(ack=["x"], put=[("b", "y")])
x = prepared(x=("a", "leased"))
x12 = prepared(x1=("a", "leased"), x2=("a", "leased"))


def future(client, t):
    """Need a message that is not there yet, and one that will be gone by then."""
    space = client.space
    t.need(client.leases["d"])
    t.need(client.leases["new"])
    t.put("c", b"y")
    del space


def two_needs(world):
    """Let a transaction need `d`, which is there, and `new`, which another one puts when it takes `d`."""
    seen(world, "a", b"d")
    world._switch("b")
    id = f"{world.clock.ns // 1000 + 77}{world._processes['b']['unique']}"
    found = world.clients["a"].leases["d"]
    entry = found.entry._replace(id=id, place=id)
    from dirqueue.message import Message

    world.clients["a"].leases["new"] = Message(
        entry, world.clients["a"].space.queue("b").layout, found._codec
    )
    world.clients["b"].leases["id"] = id


def put_new(client, t):
    t.cancel(client.leases["d"])
    t.put("b", b"new")
    t._inserts[0] = t._inserts[0]._replace(id=client.leases["id"])


def with_key(world):
    """A message that has the id K."""
    world._switch("z")
    world.clients["z"].space.put("b", b"o", id="K")
    for each in world.clients.values():
        world._switch(each.name)
        each.leases["o"] = each.space.message("K", "b")


def half_done(*, held=False):
    """Return a preparation: a process committed ack+put, and died before it brought any name to its end."""

    def prepare(world):
        world._switch("z")
        space = world.clients["z"].space
        bodies = [b"x", b"w"] if held else [b"x"]
        for body in bodies:
            space.put("a", body)
        leases = [space.get("a", timeout=0) for _ in bodies]
        finish, Attempt._finish = Attempt._finish, lambda _: None
        try:
            with space.transaction() as t:
                for lease in leases:
                    t.ack(lease)
                t.put("b", b"y")
        finally:
            Attempt._finish = finish

    return prepare


def _retry_put(client, t):
    t.retry(client.leases["x"], 0.0, "no luck")
    t.put("b", b"y")


retry_put = transact(_retry_put)


def quick(client):
    """Acknowledge with a put, by the lease itself."""
    try:
        client.leases["x"].ack(then=[Put("b", b"y")])
    except dirqueue.Conflict as error:
        return "contended" if isinstance(error, dirqueue.Contended) else "refused"
    except dirqueue.InDoubt:
        return "in doubt"
    return "committed"


def _reject_put(client, t):
    t.reject(client.leases["x"], "bad")
    t.put("b", b"y")


reject_put = transact(_reject_put)
ack_two = steps(ack=["x1", "x2"], put=[("b", "y")])
move_put = steps(move=[("x", "b")], put=[("c", "z")])

SCENARIOS = {
    "1": Scenario("1 ack+put, a consumer of the target settles at once", x, (ack_put, consume("b"))),
    "2": Scenario("2 ack+put, a patient consumer", x, (ack_put, consume("b")), impatient=False),
    "3": Scenario("3 ack+put against a takeover and its ack", x, (ack_put, take_over("a"))),
    "4": Scenario(
        "4 ack+put against a takeover with its own ack+put", x, (ack_put, take_over("a", then_put("c", "z")))
    ),
    "5": Scenario(
        "5 two transactions want the same two messages",
        x12,
        (steps(ack=["x1", "x2"], put=[("b", "y")]), steps(ack=["x2", "x1"], put=[("c", "z")])),
    ),
    "6": Scenario(
        "6 write skew: each takes what the other needs",
        prepared(r=("a", "seen"), d=("b", "seen")),
        (
            steps(cancel=["r"], put=[("b", "y")], need=["d"]),
            steps(cancel=["d"], put=[("c", "z")], need=["r"]),
        ),
    ),
    "7": Scenario(
        "7 one needs two, the other moves one of them",
        prepared(r=("a", "seen"), d=("b", "seen"), x=("a", "leased")),
        (steps(ack=["x"], put=[("b", "y")], need=["d", "r"]), steps(move=[("d", "c")], put=[("c", "z")])),
    ),
    "8": Scenario(
        "8 puts into two queues, a consumer of both",
        prepared(),
        (steps(put=[("b", "y"), ("c", "z")]), consume("b", "c")),
    ),
    "9": Scenario(
        "9 move+put against a takeover", x, (steps(move=[("x", "b")], put=[("c", "z")]), take_over("a"))
    ),
    "10": Scenario(
        "10 move+put, a consumer of the target", x, (steps(move=[("x", "b")], put=[("c", "z")]), consume("b"))
    ),
    "11": Scenario(
        "11 the same id of the user's own into two queues",
        prepared(),
        (steps(key=[("b", "y")]), steps(key=[("c", "z")])),
    ),
    "12": Scenario(
        "12 a message with an id goes while the id is put again",
        with_key,
        (steps(cancel=["o"], put=[("b", "y")]), steps(key=[("c", "z")])),
    ),
    "13": Scenario("13 map queue empty, so its output is seen", x, (ack_put, reduce("a", "b")), check=mapped),
    "14": Scenario("14 the same, held", x, (ack_put, reduce("a", "b")), check=mapped, lean=False),
    "15": Scenario("15 ack+put against a purge that fences", x, (ack_put, clean)),
    "16": Scenario(
        "16 move+ack+put+need against a purge that fences",
        prepared(x1=("a", "leased"), x2=("a", "leased"), d=("b", "seen")),
        (steps(move=[("x1", "b")], ack=["x2"], put=[("c", "z")], need=["d"]), clean),
    ),
    "17": Scenario(
        "17 three and two held, overlapping, with a move",
        prepared(x1=("a", "leased"), x2=("a", "leased"), x3=("a", "leased")),
        (steps(ack=["x1", "x2"], move=[("x3", "b")]), steps(ack=["x2", "x3"], put=[("c", "z")])),
    ),
    "18": Scenario(
        "18 two needs that never hold together",
        two_needs,
        (transact(future), transact(put_new)),
        impatient=False,
        kills=1,
        check=apart,
    ),
    "19": Scenario(
        "19 ack+put, a takeover that takes two, a consumer of the target",
        prepared(x=("a", "leased"), w=("c", "seen")),
        (ack_put, take_over("a", then_put("b", "z", "w")), consume("b")),
        kills=1,
        deep=False,
    ),
    "20": Scenario(
        "20 ack+put, a purge that fences, a consumer of the target",
        x,
        (ack_put, clean, consume("b")),
        kills=1,
        deep=False,
    ),
    "21": Scenario(
        "21 committed by a dead process: a consumer, and a purge that fences",
        half_done(),
        (consume("b"), clean),
    ),
    "22": Scenario("22 the same, two purges", half_done(held=True), (clean, clean)),
    "24": Scenario(
        "24 ack+put, a fence, a consumer of the target",
        x,
        (ack_put, fence, consume("b")),
        kills=0,
        deep=False,
    ),
    "25": Scenario("25 lease.ack(then=) against a takeover and its ack", x, (quick, take_over("a"))),
    "26": Scenario("26 lease.ack(then=) against a purge that fences", x, (quick, clean)),
    "27": Scenario(
        "27 ack+put in a deep queue, a consumer of its slices", x, (ack_put, consume("b")), sliced=True
    ),
    "28": Scenario(
        "28 ack+put where history is kept, against a takeover",
        x,
        (ack_put, take_over("a")),
        settings=(("keep_done", True),),
    ),
    "29": Scenario(
        "29 ack+put of links against a takeover", x, (ack_put, take_over("a")), settings=(("links", True),)
    ),
    "30": Scenario("30 retry+put against a takeover", x, (retry_put, take_over("a"))),
    "31": Scenario(
        "31 a task is changed while it is claimed, renewed and acknowledged",
        tasks.task("a", "t"),
        (tasks.change("t", body=b"new"), tasks.claim("a", "bob")),
    ),
    "32": Scenario(
        "32 a held task is changed by its holder, with a put, against its renewal",
        tasks.task("a", "t", held_for=HELD),
        (tasks.change("t", put="b", body=b"new"), tasks.renew("lease")),
    ),
    "33": Scenario(
        "33 a task with a replaced body is changed, with a put, against a plain consumer",
        tasks.task("a", "t", replaced=True),
        (tasks.change("t", put="b", body=b"new", queue="c"), consume("a")),
    ),
    "34": Scenario(
        "34 two holders change the same version",
        tasks.task("a", "t", replaced=True),
        (tasks.change("t", body=b"one"), tasks.change("t", holder="bob", put="b", body=b"two")),
        check=tasks.once,
    ),
    "35": Scenario(
        "35 a change with a put against the removal of side files",
        tasks.task("a", "t", replaced=True),
        (tasks.change("t", put="a", put_failures=0, body=b"new"), tasks.clean_sides),
        queues="a",
    ),
    "36": Scenario(
        "36 a change by itself against the removal of side files",
        tasks.task("a", "t", replaced=True),
        (tasks.change("t", body=b"new"), tasks.clean_sides),
    ),
    "37": Scenario(
        "37 a task that ann holds is changed by bob, while ann renews and acknowledges",
        tasks.task("a", "t", held_for=HELD),
        (tasks.change("t", holder="bob", put="b", body=b"new"), tasks.renew("lease")),
        check=tasks.refused,
    ),
    "38": Scenario(
        "38 a task in a queue of links: changed, against a plain consumer",
        tasks.task("a", "t"),
        (tasks.change("t", put="b", body=b"new"), consume("a", "b")),
        settings=(("links", True),),
    ),
    "39": Scenario("39 reject+put against a redrive", x, (reject_put, neighbours.redrive("a"))),
    "40": Scenario(
        "40 two acks and a put against a flush of their queue", x12, (ack_two, neighbours.flush("a"))
    ),
    "41": Scenario("41 ack+put against a flush of the target", x, (ack_put, neighbours.flush("b"))),
    "42": Scenario("42 move+put against a flush of the source", x, (move_put, neighbours.flush("a"))),
    "43": Scenario("43 ack+put against purges of both queues", x, (ack_put, neighbours.tidy("a", "b"))),
    "44": Scenario("44 move+put against purges of both queues", x, (move_put, neighbours.tidy("a", "b"))),
    "45": Scenario("45 ack+put, the queue of the message is deleted", x, (ack_put, neighbours.delete("a"))),
    "46": Scenario("46 ack+put, the target is deleted", x, (ack_put, neighbours.delete("b"))),
    "47": Scenario("47 move+put, the source is deleted", x, (move_put, neighbours.delete("a"))),
    "48": Scenario("48 move+put, the target is deleted", x, (move_put, neighbours.delete("b"))),
    "49": Scenario(
        "49 a pinned lot ends with a put, against giving up its consumer",
        neighbours.pinned("a", "l"),
        (neighbours.end_lot("a", "b"), neighbours.give_up("a")),
    ),
    "50": Scenario(
        "50 cancel+put of a message that is being pinned",
        neighbours.registered("a", prepared(d=("a", "seen"))),
        (steps(cancel=["d"], put=[("b", "y")]), neighbours.take_lot("a")),
    ),
    "51": Scenario(
        "51 ack+put beside a batch of puts into the same queue",
        x,
        (ack_put, neighbours.put_many("b", b"1", b"2")),
    ),
    "52": Scenario(
        "52 cancel+put of a message in a batch, against a consumer of it",
        neighbours.batch("a", "d", "e"),
        (steps(cancel=["d"], put=[("b", "y")]), consume("a", times=2)),
    ),
    "23": Scenario("23 the same, two consumers", half_done(held=True), (consume("b"), consume("b", "a"))),
}
#: Of which no test sees the end: for the campaign.
LARGE = {
    "53": Scenario(
        "53 a change with a put against a purge that fences",
        tasks.task("a", "t", replaced=True),
        (tasks.change("t", put="b", body=b"new"), clean),
    ),
    "54": Scenario(
        "54 a change by itself against a purge that fences",
        tasks.task("a", "t", replaced=True),
        (tasks.change("t", body=b"new"), clean),
    ),
    "55": Scenario(
        "55 a pinned lot of two ends with a put, against giving up its consumer",
        neighbours.pinned("a", "l1", "l2"),
        (neighbours.end_lot("a", "b"), neighbours.give_up("a")),
    ),
}


def campaign(scale, progress):
    """Run every scenario, completely or up to a number of schedules; then some with lost replies, at random."""
    states, complete, recoveries, at_random, wrong = 0, 0, 0, 0, []
    limit, some = max(50, int(200_000 * scale)), max(5, int(20_000 * scale))
    for scenario in (*SCENARIOS.values(), *LARGE.values()):
        search = spaces.exhaust(scenario, limit)
        states, recoveries = states + search.states, recoveries + search.recoveries
        complete += search.complete
        wrong += [str(search)] if search.failure else []
        if "pinned" in scenario.name:
            continue  # on a network filesystem by threads, which one thread cannot simulate
        lossy = dataclasses.replace(scenario, kills=1, lossy=1, fstype="nfs4", deep=False)
        search = spaces.wander(lossy, some, seed="campaign")
        at_random += search.runs
        wrong += [str(search)] if search.failure else []
        progress(states, limit * len(SCENARIOS | LARGE), len(wrong))
    detail = (
        f"{complete} of {len(SCENARIOS | LARGE)} scenarios complete, {recoveries:,} recoveries; "
        f"{at_random:,} schedules at random with lost replies"
    )
    return states, detail, wrong
