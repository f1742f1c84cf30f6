"""Interleavings of transactions: the real library on a simulated space, every call a turn, every client mortal.

A scenario prepares a space and names its clients. `exhaust` runs all schedules of them; each client may be killed
before each of its calls. A ghost watches every change of a name and knows which transactions were really committed.
Each end, once, is then recovered in two ways: by purges, which are killed at each of their calls and begun again, and
by consumers that only get; afterwards exactly the messages that the ghost expects must be there, and nothing else.
"""

import contextlib
import random
import re
from dataclasses import dataclass, field

import dirqueue
from dirqueue import states
from dirqueue.disk import fs as seam_fs
from dirqueue.disk import identity
from dirqueue.disk.mount import LOCAL
from dirqueue.layouts.native import conditions, publish, resolve, sidefile
from dirqueue.space import Space, ids, owner, probe, purge, transaction
from dirqueue.space import ground as ground_module
from dirqueue.space.commit import Attempt
from lab import seam, tasks
from lab.explore import Clock, Count
from lab.rewind import Moment
from lab.schedule import (
    DepthFirst,
    Endless,
    Event,
    Pruned,
    Random,
    Recorded,
    Scheduler,
    kill_of,
    shorten,
    written,
)
from lab.simfs import SimFS

LEASE = 10.0
MARGIN = 1.0
#: Longer than a lease, than anybody's patience, and than what is stale in the scenarios.
TICK = 15.0
STALE = 12.0
LONG = 100_000.0
#: Abandoned at once: whoever meets the name of an open transaction aborts it.
AT_ONCE = -1e6
ROOT = "/sim/s"
#: How often a random schedule may choose a death or the passing of time.
EVENTFUL = 0.05
LOT = re.compile(r"s/[^/]+/\.spark/pins/[^/]+/[0-9]+")
ACKED_LOT = re.compile(LOT.pattern + r"\.ack/")
REGISTER = re.compile(r"s/\.space/txn/([0-9]{25})/([0-9]+)")


@dataclass(frozen=True)
class Scenario:
    """What to run: `prepare(world)` makes messages and leases, each program is a function of its client."""

    name: str
    prepare: object
    programs: tuple
    queues: str = "abc"
    #: Whether open transactions are aborted by whoever meets them, at once.
    impatient: bool = True
    kills: int = 2
    ticks: int = 0
    lossy: int = 0
    fstype: str = "tmpfs"
    lean: bool = True
    tries: int = 1
    sliced: bool = False
    settings: tuple = ()
    #: Called with (world, ends) after each run; raises Violation.
    check: object = None
    #: Whether recoveries are killed at each of their calls.
    deep: bool = True


class Violation(Exception):
    """A promise was broken."""


@dataclass
class Ghost:
    """What really happened, told by the calls that succeeded."""

    #: T -> "committed" or "aborted".
    verdicts: dict = field(default_factory=dict)
    #: id of a message -> what consumed it.
    gone: dict = field(default_factory=dict)
    #: id -> (queue, body) of all messages that are to be there at the end, unless they are gone.
    there: dict = field(default_factory=dict)
    #: Of these, the ones that are kept as done or dead: nobody gets them.
    ended: dict = field(default_factory=dict)
    #: (id, version) of every task so far -> its exact name.
    versions: dict = field(default_factory=dict)
    wrong: list = field(default_factory=list)

    def digest(self):
        return hash(
            (
                tuple(sorted(self.verdicts.items())),
                tuple(sorted(self.gone.items())),
                tuple(sorted(self.there.items())),
                tuple(sorted(self.ended.items())),
            )
        )


class Client:
    """One process: its own space object, its own names."""

    def __init__(self, world, name, settings):
        self.world, self.name = world, name
        self.space = Space(
            ROOT, lease=LEASE, margin=MARGIN, stale=STALE, sync=False, max_attempts=0, **settings
        )
        self.leases = {}
        self.end = None

    def lease(self, queue):
        """Claim the next message of a queue in advance; return a function that finds the lease again."""
        self.leases[queue, len(self.leases)] = lease = self.space.get(queue, timeout=0, lease=LEASE)
        return lease


def transact(build):
    """Return a program that runs one transaction."""

    def program(client):
        try:
            with client.space.transaction() as t:
                build(client, t)
        except dirqueue.Conflict as error:
            return "contended" if isinstance(error, dirqueue.Contended) else "refused"
        except dirqueue.InDoubt:
            return "in doubt"
        return "committed"

    return program


def consume(*queues, times=1):
    """Return a program that gets and acknowledges what there is."""

    def program(client):
        got = []
        for _ in range(times):
            for queue in queues:
                try:
                    lease = client.space.get(queue, timeout=0)
                except dirqueue.Empty:
                    continue
                got.append(lease.message.body)
                with contextlib.suppress(dirqueue.LeaseLost):
                    lease.ack()
        return ("got", tuple(got))

    return program


def take_over(queue, build=None):
    """Return a program that claims an expired lease, then acknowledges it, or commits a transaction with it."""

    def program(client):
        try:
            lease = client.space.get(queue, timeout=0)
        except dirqueue.Empty:
            return "nothing"
        if build is None:
            try:
                lease.ack()
            except dirqueue.LeaseLost:
                return "lost"
            return "acked"
        return transact(lambda client, t: build(client, t, lease))(client)

    return program


def clean(client):
    """Fence every process and bring all names to their ends, as two purges do that come very late."""
    client.space.stale = AT_ONCE
    purge.clean(client.space, client.space._ground.directory)
    purge.clean(client.space, client.space._ground.directory)
    return "purged"


def fence(client):
    """Fence every process, and do nothing else."""
    fd = client.space._ground.directory.fd
    for process in purge._listed(purge.REGISTERS, fd):
        if not process.endswith(purge.GONE):
            purge._fence(f"{purge.REGISTERS}/{process}", fd)
    return "fenced"


def reduce(first, second):
    """Return a program that looks whether a queue is empty, then at what is in another one."""

    def program(client):
        if not client.space.empty(first):
            return "busy"
        layout = client.space.queue(second).layout
        seen = {
            entry.id for _ in range(2) for entry in layout.entries(states.LIVE) if entry.state in states.LIVE
        }
        return ("empty, then", frozenset(seen))

    return program


class World:
    """A scenario that is set up; within a `with` block `run` may be called any number of times."""

    def __init__(self, scenario):
        self.scenario = scenario
        self.clock = Clock(self)
        self.fs = SimFS(self.clock.now_ns, fstype=scenario.fstype)
        self.scheduler = Scheduler(Recorded())
        self.ghost = Ghost()
        self.clients, self._processes = {}, {}
        self._current = None
        self.works = {}
        self._judged, self._recovered = set(), set()
        self._memories = {}
        self._context = contextlib.ExitStack()
        self.recoveries = 0
        self.ends = {}

    @property
    def seconds(self):
        return self.clock.ns / 1e9

    @property
    def place(self):
        """The number of the client whose turn it is."""
        return list(self._processes).index(self._current)

    # --- setting up ----------------------------------------------------------------------------------------

    def _patch(self, module, name, value):
        saved = getattr(module, name)
        self._context.callback(setattr, module, name, saved)
        setattr(module, name, value)

    def __enter__(self):
        scenario, saved = self.scenario, identity.PROCESS.__dict__

        @self._context.callback
        def restore():
            identity.PROCESS.__dict__ = saved

        self._context.enter_context(seam.replaced("dirqueue", seam_fs.CALLS, fs=self.fs, clock=self.clock))
        self._patch(random, "random", lambda: 0.5)
        world = self

        class Watched(Attempt):
            def __init__(self, owner, work):
                super().__init__(owner, work)
                world.works[self._txn] = work
                self._lean = self._lean and scenario.lean

        self._patch(transaction, "Attempt", Watched)
        self._patch(ground_module, "Attempt", Watched)
        self._patch(sidefile, "new_number", lambda: next(identity.PROCESS.count) * 10 + world.place)
        self._patch(transaction, "TRIES", scenario.tries)
        self._patch(transaction, "PAUSE", 0)
        self._patch(probe, "_known", {})
        if scenario.impatient:
            self._patch(resolve, "PATIENCE", AT_ONCE)
        if scenario.sliced:
            self._patch(publish, "DEEP", -1)
        try:
            self._set_up()
        except BaseException:
            self._context.close()
            raise
        return self

    def __exit__(self, *_):
        for client in self.clients.values():
            client.space._ground.owner().reset()  # its finalizer has nothing to leave
        self._context.close()

    def _client(self, name):
        process = {**identity.PROCESS.__dict__, "count": Count(), "last": identity.MIN_TIME}
        place = len(self._processes) + 1
        self._processes[name] = process | {"stem": f"{name}-", "random": name, "unique": f"{place:09d}"}
        self._switch(name)
        client = self.clients[name] = Client(self, name, dict(self.scenario.settings))
        for queue in self.scenario.queues:
            client.space._ground.transacted(queue)
            client.space.empty(queue)
        client.space._ground.owner().begin()
        client.space.now()
        return client

    def _switch(self, name):
        if name in self._processes:
            identity.PROCESS.__dict__ = self._processes[name]
            self._current = name

    def _set_up(self):
        self.fs.mkdir(ROOT)
        for queue in self.scenario.queues:
            self.fs.mkdir(f"{ROOT}/{queue}")
        self._client("z")
        for place in range(len(self.scenario.programs)):
            self._client(chr(ord("a") + place))
        self.fs.watch = self.watch
        self.scenario.prepare(self)
        for name in ("y", "x"):
            self._client(name)
        # Leases have expired: a takeover is possible, and no lease is lost that nobody takes.
        self.clock.advance(LEASE + 2 * MARGIN)
        for name, client in self.clients.items():
            self._switch(name)
            client.space.now()
            for queue in self.scenario.queues:
                layout = client.space.queue(queue).layout
                layout.directory.clock.now()
                layout._cursor.stale()
                if self.scenario.impatient:
                    layout._cursor._resolver._stale = int(AT_ONCE * 1e6)
        self.clock.advance(1.0)
        self._current = None
        for path, body in self.fs.tree().items():
            found = re.fullmatch(r"s/([^./]+)/(?:[^/]+/)*([0-9]{25})[^/]*", path)
            if found and body is not None and not path.endswith(".error") and found[2] not in self.ghost.gone:
                self.ghost.there[found[2]] = (found[1], tasks.effective(self.fs.tree(), path, body))
        roots = [self.fs, self.clock, *self.clients.values(), *self._processes.values()]
        self._beginning = Moment([*roots, self.ghost, self.works], stop=(World, Scheduler))

    # --- the ghost -----------------------------------------------------------------------------------------

    def watch(self, kind, old, new, inode, replaced):
        ghost = self.ghost
        register = REGISTER.fullmatch(new or "")
        if register:
            self._decided(f"{register[1]}-{register[2]}", kind)
        file = replaced is not None and replaced.entries is None and not new.endswith((".error", ".json"))
        if file and "/.space/" not in new:
            ghost.wrong.append(f"{old} was renamed onto {new}, which is lost")
        if old is None or old.startswith("s/.space/"):
            return
        if kind == "rename" and inode.entries is not None:
            self._folder(old, new, inode)
            return
        if kind == "rename" and not new.startswith("s/.space/"):
            ghost.wrong += tasks.changed(old, new, ghost.versions)
        name = conditions.parse(old.rpartition("/")[2])
        inside = new is not None and not new.startswith("s/.space/")
        if name is None:
            self._plain(kind, old, new, inode)
        elif kind == "rename" and inside and conditions.parse(new.rpartition("/")[2]) is None:
            committed = ghost.verdicts.get(name.txn) == "committed"
            if name.how == "if" and not committed:
                ghost.wrong.append(f"{old} became visible before its transaction was committed")
            if name.how != "if" and committed and new == old.removesuffix(name.text) + name.base.text:
                ghost.wrong.append(f"{old} came back after its transaction was committed")
        elif kind == "unlink" and (name.how == "if") == (ghost.verdicts.get(name.txn) == "committed"):
            ghost.wrong.append(f"{old} was thrown away, against its verdict {ghost.verdicts.get(name.txn)}")

    def _folder(self, old, new, inode):
        """A directory of messages became visible, or a lot was acknowledged by itself."""
        if old.endswith(".batch.new") and new.endswith(".batch"):
            for name, message in inode.entries.items():
                self.ghost.there[name] = (new.split("/")[1], message.data)
        elif LOT.fullmatch(old) and new == old + ".ack":
            for id in self._inside(inode):
                self._consumed(id, "ack of its lot")

    def _inside(self, inode):
        """Return the ids of the messages in a directory and in those in it."""
        return [
            name[:25]
            for part in inode.entries.values()
            for name in (part.entries if part.entries is not None else ())
        ]

    def _plain(self, kind, old, new, inode):
        """A call on a plain name: a put, an ack, a claim, or a move."""
        from dirqueue.layouts.native import names

        name = names.parse(old.rpartition("/")[2])
        if kind == "rename" and name is not None and name.kind == "new":
            self.ghost.there[name.id] = (new.split("/")[1], inode.data)
        if name is None or name.id not in self.ghost.there or name.kind not in states.LIVE:
            return
        if ACKED_LOT.match(old):
            return  # consumed when its lot was
        if kind == "rename":
            if "/dead/" in old and "/dead/" not in new:
                self.ghost.ended.pop(name.id, None)  # redriven
            self._kept(name.id, new)
            self._replaced(name, new, inode)
        acked = kind == "rename" and (new or "").endswith(".ack")
        if acked or kind == "unlink":
            self._consumed(name.id, f"ack of {name.token}")
        if kind == "rename" and "/leased/" in (new or ""):
            body = tasks.effective(self.fs.tree(), new, inode.data) if "~" in new else inode.data
            if body != self.ghost.there[name.id][1]:
                self.ghost.wrong.append(f"{old} was claimed before it was written: {body!r}")

    def _replaced(self, name, new, inode):
        """A change by itself: from now on the message has the body that its new name means."""
        after = tasks.name_in(new)
        if after is None or after.card is None or after.card.side == (name.card.side if name.card else 0):
            return
        if conditions.parse(new.rpartition("/")[2]) is None:
            body = tasks.effective(self.fs.tree(), new, inode.data)
            if body is None:
                self.ghost.wrong.append(f"{new} means a side file that is not there")
            self.ghost.there[name.id] = (new.split("/")[1], body)

    def _kept(self, id, path):
        if "/done/" in path or "/dead/" in path:
            self.ghost.ended[id] = path

    def _decided(self, txn, kind):
        ghost, work = self.ghost, self.works.get(txn)
        if kind == "mkdir":
            # Of a committed one only after it was forgotten: no name of it is left that could be undone.
            ghost.verdicts.setdefault(txn, "aborted")
            return
        if ghost.verdicts.get(txn) == "aborted":
            ghost.wrong.append(f"{txn} was committed after it was aborted")
        if ghost.verdicts.get(txn) == "committed":
            return
        ghost.verdicts[txn] = "committed"
        for each in work.consume:
            if LOT.fullmatch(f"s/{each.path}"):
                for id in self._inside(self.fs._lookup(f"/sim/s/{each.path}.mv.{txn}", None)):
                    self._consumed(id, txn)
            elif each.target:
                self._kept(each.id, each.target)
                body = ghost.there.get(each.id, ("", b""))[1]
                for side in work.sides:
                    if side.details.body is not None and f"/{each.id[-25:]}." in side.path:
                        body = side.details.body
                ghost.there[each.id] = (each.target.partition("/")[0], body)
            else:
                self._consumed(each.id, txn)
        for each in work.insert:
            ghost.there[each.id] = (each.path.partition("/")[0], each.data)

    def _consumed(self, id, by):
        if id in self.ghost.gone:
            self.ghost.wrong.append(f"{id} was consumed twice: by {self.ghost.gone[id]} and by {by}")
        self.ghost.gone[id] = by

    # --- one run -------------------------------------------------------------------------------------------

    def run(self, chooser):
        """Run the scenario once from its beginning; return what was wrong."""
        self._beginning.back()
        self._current = None
        scenario = self.scenario
        scheduler = self.scheduler = self.fs.scheduler = Scheduler(
            chooser, self._switch, self._state, self._memories
        )
        self.fs.watch = self.watch
        names = [chr(ord("a") + place) for place in range(len(scenario.programs))]
        events = (
            {"~tick": Event(lambda: self.clock.tick(TICK), times=scenario.ticks)} if scenario.ticks else {}
        )
        left = [scenario.kills]

        def kill(name):
            scheduler.kill(name)
            left[0] -= 1
            if not left[0]:
                for each, event in scheduler._events.items():
                    if each.startswith("~~kill"):
                        event.times = 0

        for name in names if scenario.kills else ():
            events[f"~~kill {name}"] = Event(lambda name=name: kill(name), kill_of(name))
        self.fs.lossy = scenario.lossy

        def body(client, program):
            client.end = program(client)

        bodies = {
            name: (lambda client=self.clients[name], program=program: body(client, program))
            for name, program in zip(names, scenario.programs, strict=True)
        }
        try:
            scheduler.run(bodies, events)
        except Endless:
            return [("endless", f"not finished after {scheduler.step} calls")]
        self.fs.lossy = 0
        wrong = [("ghost", text) for text in self.ghost.wrong]
        wrong += [
            (f"raised {type(e).__name__}", f"{name}: {type(e).__name__}: {e}")
            for name, e in scheduler.errors.items()
        ]
        if not wrong:
            wrong = self._judge(names)
        return wrong

    def _state(self):
        return (self.fs.digest, self.clock.ns, self.fs.lossy, self.ghost.digest(), len(self.ghost.wrong))

    def _judge(self, names):
        """Judge one end, each different one once."""
        scenario, ghost = self.scenario, self.ghost
        ends = tuple("killed" if name in self.scheduler.killed else self.clients[name].end for name in names)
        key = (self.fs.digest, self.clock.ns, ghost.digest(), ends)
        if key in self._judged:
            return []
        self._judged.add(key)
        for end in ends:
            shown = end[0] if isinstance(end, tuple) else str(end)
            self.ends[shown] = self.ends.get(shown, 0) + 1
        try:
            self._agree(names, ends)
            self._serializable()
            if scenario.check:
                scenario.check(self, ends)
            if key[:3] not in self._recovered:
                self._recovered.add(key[:3])
                self._recover()
        except Violation as error:
            return [("violation", str(error))]
        return [("ghost", text) for text in ghost.wrong]

    def _agree(self, names, ends):
        """What clients were told is what happened."""
        for name, end in zip(names, ends, strict=True):
            mine = [txn for txn in self.works if self._owner_of(txn) == name]
            committed = [txn for txn in mine if self.ghost.verdicts.get(txn) == "committed"]
            if end == "committed" and mine and len(committed) != 1:
                raise Violation(f"{name} was told committed, and these are: {committed}")
            if end in ("refused", "contended") and committed:
                raise Violation(f"{name} was told {end}, and {committed} is committed")

    def _owner_of(self, txn):
        unique = txn.partition("-")[0][-9:]
        return next(name for name, process in self._processes.items() if process["unique"] == unique)

    def _serializable(self):
        """Committed transactions fit into one order: whoever needs a name comes before whoever takes it away."""
        done = [
            (txn, work) for txn, work in self.works.items() if self.ghost.verdicts.get(txn) == "committed"
        ]
        before = set()
        for one, x in done:
            for two, y in done:
                uses = {*x.need, *(each.path for each in x.consume)}
                takes = {each.path for each in y.consume}
                reads = {*y.need, *takes}
                if one != two and (uses & takes or reads & {each.path for each in x.insert}):
                    before.add((one, two))
        for one, two in before:
            if (two, one) in before:
                raise Violation(f"{one} and {two} are both committed, in no order")

    # --- recovery ------------------------------------------------------------------------------------------

    def _recover(self):
        roots = [
            self.fs,
            self.clock,
            *self.clients.values(),
            *self._processes.values(),
            self.ghost,
            self.works,
        ]
        here = Moment(roots, stop=(World, Scheduler))
        try:
            calls = self._purge("y", None)
            self._left("after purges")
            if self.scenario.deep:
                for stop in range(1, calls):
                    here.back()
                    self._purge("y", stop)
                    self._purge("x", None)
                    self._left(f"after a purge that died at call {stop} and another one")
            here.back()
            self._drain()
        finally:
            here.back()

    def _purge(self, name, stop):
        """Purge as client `name`, killed at its call number `stop`; return the number of its calls."""
        self.recoveries += 1
        if stop is None:
            self.clock.advance(LONG)
        scheduler = self.fs.scheduler = Scheduler(Prefix(name, stop), self._switch)

        def body():
            space = self.clients[name].space
            space.stale = AT_ONCE
            for queue in self.scenario.queues:
                space.queue(queue).layout.purge(None)
            purge.clean(space, space._ground.directory)
            purge.clean(space, space._ground.directory)

        events = {"~~kill": Event(lambda: scheduler.kill(name), kill_of(name))}
        scheduler.run({name: body}, events)
        for error in scheduler.errors.values():
            raise Violation(f"a purge raised {type(error).__name__}: {error}") from error
        if self.ghost.wrong:
            raise Violation(f"in recovery: {self.ghost.wrong[0]}")
        self.fs.scheduler = self.scheduler
        return scheduler.step

    def _left(self, when):
        """Exactly what the ghost expects is there."""
        tree = self.fs.tree()
        found = {}
        for path, body in tree.items():
            if conditions.parse(path.rpartition("/")[2]) is not None or (
                path.startswith("s/.space/txn/") and path != "s/.space/txn/"
            ):
                raise Violation(f"{when}: {path} is left")
            match = re.fullmatch(r"s/([^./]+)/(?:[^/]+/)*([0-9]{25})[^/]*", path)
            if match and body is not None and not path.endswith(".error"):
                if match[2] in found:
                    raise Violation(f"{when}: {match[2]} is there twice")
                found[match[2]] = (match[1], tasks.effective(tree, path, body))
        for path in tasks.strays(tree, certain=self.scenario.fstype in LOCAL):
            raise Violation(f"{when}: {path} is left, and nothing means it")
        self._compare(found, when)
        self._keys(tree, found, when)

    def _compare(self, found, when):
        expected = {id: where for id, where in self.ghost.there.items() if id not in self.ghost.gone}
        if found != expected:
            raise Violation(
                f"{when}: there is {found}, expected {expected}; {self.ghost.verdicts} {self.ghost.gone}"
            )

    def _keys(self, tree, found, when):
        """Each message with an id of its own still has it, and no other one has."""
        holders = {}
        for txn, work in self.works.items():
            if self.ghost.verdicts.get(txn) == "committed":
                for each in work.insert:
                    if each.key and each.id in found:
                        holders.setdefault(each.key, []).append(each.id)
        for key, messages in holders.items():
            if len(messages) > 1:
                raise Violation(f"{when}: {messages} have the same id {key}")
            if f"{ids.folder_of(key)}/{messages[0]}".replace(".space", "s/.space", 1) not in tree:
                raise Violation(f"{when}: {messages[0]} lost its id {key}")

    def _drain(self):
        """Consumers that only get find everything, with no purge."""
        self.recoveries += 1
        self.fs.scheduler = Scheduler(Recorded())
        self.clock.advance(LONG)
        self._switch("x")
        space = self.clients["x"].space
        space.now()
        over = self.ghost.gone.keys() | self.ghost.ended.keys()
        expected = {id: where for id, where in self.ghost.there.items() if id not in over}
        got = {}
        for _ in range(20):
            for queue in self.scenario.queues:
                with contextlib.suppress(dirqueue.Empty):
                    lease = space.get(queue, timeout=0)
                    if lease.message.id in got:
                        raise Violation(f"{lease.message.id} was delivered twice")
                    got[lease.message.id] = (queue, lease.message.body)
                    lease.ack()
        self.fs.scheduler = self.scheduler
        if got != expected:
            raise Violation(f"by get alone: {got}, expected {expected}; {self.ghost.verdicts}")
        for path in self.fs.tree():
            if not path.startswith("s/.space/") and conditions.parse(path.rpartition("/")[2]) is not None:
                raise Violation(f"by get alone: {path} is left")
        if self.ghost.wrong:
            raise Violation(f"by get alone: {self.ghost.wrong[0]}")


class Prefix(Recorded):
    """Let one client run, and kill it before its call number `stop`."""

    def __init__(self, name, stop):
        super().__init__()
        self._name, self._stop = name, stop

    def pick(self, scheduler):
        return "~~kill" if self._stop is not None and scheduler.step >= self._stop else self._name


class Calm(Random):
    """Choose at random, but seldom an event: a client that is killed at once shows nothing."""

    def pick(self, scheduler):
        agents = scheduler.agents()
        clients = sum(not agent.startswith("~") for agent in agents)
        choice = int(self._dice() * (len(agents) if self._dice() < EVENTFUL else clients))
        self.made.append(choice)
        return agents[choice]


# --- many runs ---------------------------------------------------------------------------------------------


@dataclass
class Search:
    """What a search has done."""

    scenario: Scenario
    runs: int = 0
    pruned: int = 0
    states: int = 0
    ends: int = 0
    recoveries: int = 0
    complete: bool = False
    failure: str = ""
    outcomes: dict = field(default_factory=dict)

    def __str__(self):
        return (
            f"{self.scenario.name}: {self.states:,} states, {self.runs + self.pruned:,} runs, {self.ends:,} ends, "
            f"{self.recoveries:,} recoveries, {'complete' if self.complete else 'NOT complete'}; {self.outcomes}"
            + (f"\n{self.failure}" if self.failure else "")
        )


def exhaust(scenario, limit=None):
    """Run every schedule of a scenario, or the first `limit`."""
    chooser, search = DepthFirst(), Search(scenario)
    with World(scenario) as world:
        while True:
            chooser.begin()
            try:
                wrong = world.run(chooser)
                search.runs += 1
            except Pruned:
                wrong = [("ghost", text) for text in world.ghost.wrong]
                search.pruned += 1
            if wrong:
                search.failure = explain(world, chooser.made, wrong)
                break
            if not chooser.next():
                search.complete = True
                break
            if limit is not None and search.runs + search.pruned >= limit:
                break
        search.states, search.ends = chooser.states, len(world._judged)
        search.recoveries, search.outcomes = world.recoveries, dict(world.ends)
    return search


def wander(scenario, runs, seed=0):
    """Run random schedules."""
    search = Search(scenario)
    with World(scenario) as world:
        for number in range(runs):
            chooser = Calm(f"{seed}-{number}")
            wrong = world.run(chooser)
            search.runs += 1
            if wrong:
                search.failure = explain(world, chooser.made, wrong)
                break
        search.ends, search.recoveries, search.outcomes = (
            len(world._judged),
            world.recoveries,
            dict(world.ends),
        )
    return search


def explain(world, choices, wrong):
    """Shorten a failing schedule and describe it."""
    kind, text = wrong[0]

    def fails(trial):
        world._judged.clear()
        world._recovered.clear()
        return any(each[0] == kind for each in world.run(Recorded(trial)))

    if not fails(choices):
        return f"not repeatable: {kind}: {text}"
    best = shorten(choices, fails)
    world._judged.clear()
    world._recovered.clear()
    text = next(each[1] for each in world.run(Recorded(best)) if each[0] == kind)
    steps = "\n".join(f"    {client}: {call}" for client, call in world.scheduler.log)
    return f"{kind}: {text}\n  replay with {written(best)!r}\n{steps}"


__all__ = [
    "AT_ONCE",
    "Scenario",
    "World",
    "consume",
    "exhaust",
    "owner",
    "reduce",
    "take_over",
    "transact",
    "wander",
]
