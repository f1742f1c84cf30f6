"""Interleavings of the real library: programs of short operations, run in all orders or in many.

A program is a string with one letter per operation; `"p|ga|tG"` is three clients. The public queue object runs on a
simulated directory. Clients are switched at each filesystem call and between operations, where the books are updated:
some verdicts depend on what returned before what began.

A world is set up once per plan and reset to that moment before each run.
"""

import contextlib
import importlib
import pkgutil
import random
from dataclasses import dataclass, field
from unittest import mock

import dirqueue
import dirqueue.layouts
from dirqueue.disk import fs as seam_fs
from dirqueue.disk import identity, signals
from dirqueue.layouts.dirq import names as dirq_names
from dirqueue.layouts.native import publish
from dirqueue.layouts.text import turn
from dirqueue.layouts.vsqs import layout as vsqs
from lab import seam
from lab.account import Books
from lab.rewind import Moment, picture
from lab.schedule import (
    DepthFirst,
    Endless,
    Event,
    Pruned,
    Random,
    Recorded,
    Scheduler,
    kill_of,
    read,
    shorten,
    written,
)
from lab.simfs import SimFS

# A module that is imported only while a world runs would get the real clock.
for _found in pkgutil.walk_packages(dirqueue.layouts.__path__, "dirqueue.layouts."):
    importlib.import_module(_found.name)

LEASE = 10.0
MARGIN = 1.0
#: Of the native layout; the others are not limited.
ATTEMPTS = 3
#: One tick is longer than a lease and its margin, and shorter than the time a measured clock is trusted.
TICK = 15.0
LONG = 100_000.0
#: The directory number of the books, for footprints.
BOOKS = "books"


@dataclass(frozen=True)
class Plan:
    """What to run, and what may happen."""

    programs: tuple
    before: str = "p"
    ticks: int = 0
    tick: float = TICK
    lossy: int = 0
    kills: int = 0
    layout: str = "native"
    fstype: str = "tmpfs"
    noreplace: bool = True
    links: bool = True
    sliced: bool = False
    #: Whether leased/ is there from the beginning, as in every queue that the library made.
    rooms: bool = True
    #: Kinds of violations that the layout of this plan cannot exclude.
    forgiven: tuple = ()
    settings: tuple = ()

    @classmethod
    def of(cls, text, **more):
        return cls(tuple(text.split("|")), **more)

    def __str__(self):
        usual = Plan(self.programs)
        extra = [f"{name}={value!r}" for name, value in vars(self).items() if value != getattr(usual, name)]
        return f"{'|'.join(self.programs)} ({', '.join(extra)})"


@dataclass
class Outcome:
    wrong: list
    made: list
    log: list = field(default_factory=list)


class Count:
    """A counter that can be reset."""

    def __init__(self):
        self.last = 0

    def __next__(self):
        self.last += 1
        return self.last


class Person:
    """One process: its own queue object, its own names, its own leases."""

    def __init__(self, world, name, settings):
        self.world = world
        self.name = name
        self.queue = dirqueue.Queue("/sim/q", **settings)
        self.leases = []
        self._count = Count()
        self._rest = ""
        self._result = ()

    def body(self):
        return f"{self.name}{next(self._count)}".encode()

    def run(self, program):
        """Run the operations one after the other."""
        self._rest = program
        self.between()
        while self._rest:
            letter, self._rest = self._rest[0], self._rest[1:]
            OPERATIONS[letter](self)

    def between(self, *bodies, event=None, result=(), empty=False):
        """Take the turn between two operations: record the end of one and the beginning of the next.

        `bodies` are those that the end concerns; `event` records it, and depends only on these and `result`.
        """
        scheduler, following = self.world.scheduler, self._rest[:1]
        if scheduler.compares:
            self._result = (*result, empty, bodies, getattr(event, "__qualname__", ""))
            scheduler.remember(self._memory)
        scheduler.turn("between", self._footprint, bodies, empty)
        self._result = ()
        if event is not None:
            event()
        if following == "g":
            self.world.books.getting(self.name, self.world.seconds)
        elif following in ENDS and self.leases:
            self.world.books.ending(self.leases[0][1], ENDS[following])

    def _footprint(self, bodies, empty):
        """Return what the books read and write at the end of one operation and before the next."""
        following = self._rest[:1]
        if following in ENDS:
            bodies += tuple(hold.body for _, hold in self.leases)
        entered = [(BOOKS, body) for body in bodies] + ([(BOOKS, "empty")] if empty else [])
        return ((BOOKS, None),) if following == "g" else (), entered

    def _memory(self):
        """Return everything that this process remembers."""
        world = self.world
        process = world._processes[self.name]
        mine = (process["count"].last, process["last"], dirq_names._last, world.fs.counts.get(self.name, 0))
        return (mine, picture(self, stop=(World, seam.Clock)))

    def put(self, delay=0.0):
        body = self.body()
        self.world.books.putting(body)
        self.queue.put(body, delay=delay)
        due = self.world.seconds + delay if delay else None
        self.between(body, event=lambda: self.world.books.put(body, due=due), result=(due,))

    def put_many(self):
        bodies = [self.body(), self.body()]
        self.world.books.putting(*bodies)
        self.queue.put_many(bodies)
        self.between(*bodies, event=lambda: self.world.books.put(*bodies))

    def get(self):
        world = self.world
        try:
            lease = self.queue.get(timeout=0)
        except dirqueue.Empty:
            self.between(event=lambda: world.books.empty(self.name), empty=True)
            return
        body, until, returned = lease.message.body, lease.until.timestamp(), world.seconds

        def enter():
            hold = world.books.got(self.name, body, until, returned, world.seconds)
            self.leases.append((lease, hold))

        self.between(body, event=enter, result=(lease, until, returned))

    def end(self, verb, *arguments):
        if not self.leases:
            return self.between()
        lease, hold = self.leases.pop(0)
        books = self.world.books
        try:
            getattr(lease, verb)(*arguments)
        except dirqueue.LeaseLost:
            now = self.world.seconds
            return self.between(hold.body, event=lambda: books.lost(hold, now, verb=verb), result=(hold, now))
        if verb == "renew":

            def enter():
                books.renewed(hold, lease.until.timestamp())
                self.leases.append((lease, hold))

            return self.between(hold.body, event=enter, result=(lease, hold))
        how = "dead" if lease.ended == "dead" else verb
        return self.between(hold.body, event=lambda: books.ended(hold, how), result=(hold, how))

    def purge(self):
        self.queue.layout.purge(None)  # without its lock: two purges at once must do no harm
        self.between()

    def redrive(self):
        self.queue.redrive()
        self.between()


ENDS = {"a": "ack", "t": "retry", "r": "retry", "l": "release", "j": "reject", "n": "renew"}
OPERATIONS = {
    "p": Person.put,
    "y": lambda person: person.put(delay=5.0),
    "P": Person.put_many,
    "g": Person.get,
    "a": lambda person: person.end("ack"),
    "t": lambda person: person.end("retry", 0.0, "no luck"),
    "r": lambda person: person.end("retry", 0.0),
    "l": lambda person: person.end("release"),
    "j": lambda person: person.end("reject", "bad"),
    "n": lambda person: person.end("renew"),
    "u": Person.purge,
    "d": Person.redrive,
}


class Clock(seam.Clock):
    """The clock of a world; each reading is recorded, and a sleep advances it for all clients."""

    def __init__(self, world):
        super().__init__()
        self._world = world

    def time_ns(self):
        self._world.scheduler.note(self.ns)
        return self.ns

    def time(self):
        return self.time_ns() / 1e9

    def monotonic_ns(self):
        return 1000 * 10**9 + self.time_ns() - self.start_ns

    def monotonic(self):
        return self.monotonic_ns() / 1e9

    perf_counter = monotonic

    def sleep(self, seconds):
        self._world.scheduler.turn("sleep", None)
        super().sleep(seconds)


class World:
    """A plan that is set up; within a `with` block `run` may be called any number of times."""

    def __init__(self, plan):
        self.plan = plan
        self.clock = Clock(self)
        self.fs = SimFS(self.clock.now_ns, fstype=plan.fstype, noreplace=plan.noreplace, links=plan.links)
        self.scheduler = Scheduler(Recorded())
        self.books = self._new_books()
        self._people = {}
        self._processes = {}
        self._elements = {}
        self._current = None
        self._settled = {}
        self._memories = {}
        self._context = contextlib.ExitStack()

    def _new_books(self):
        native = self.plan.layout == "native"
        return Books(
            margin=MARGIN,
            least=LEASE / 2 if native else -LONG,
            unsure=bool(self.plan.lossy) and not native,
            attempts=ATTEMPTS if native else 0,
        )

    @property
    def seconds(self):
        return self.clock.ns / 1e9

    # --- setting up ----------------------------------------------------------------------------------------

    def __enter__(self):
        saved, last, dice, deep = identity.PROCESS.__dict__, dirq_names._last, random.random, publish.DEEP
        patience, turn.PATIENCE = (
            turn.PATIENCE,
            LONG,
        )  # a client that is stopped while it has the lock goes on some time

        @self._context.callback
        def restore():
            identity.PROCESS.__dict__, dirq_names._last, random.random, publish.DEEP = saved, last, dice, deep
            turn.PATIENCE = patience

        # A client is a greenlet: what it does must stay in this thread.
        self._context.enter_context(mock.patch.object(signals, "taken_by_others", return_value=False))
        # The clock stands still: a time that is about to come is slept for, and that is a step of its own.
        self._context.enter_context(mock.patch.object(vsqs, "LEAST", 0))
        self._context.enter_context(seam.replaced("dirqueue", seam_fs.CALLS, fs=self.fs, clock=self.clock))
        random.random = lambda: 0.5
        if self.plan.sliced:
            publish.DEEP = -1
        try:
            self._set_up()
        except BaseException:
            self._context.close()
            raise
        return self

    def __exit__(self, *_):
        self._context.close()

    def _person(self, name, settings):
        place = len(self._processes) + 1
        process = {**identity.PROCESS.__dict__, "count": Count(), "last": identity.MIN_TIME}
        self._processes[name] = process | {"stem": f"{name}-", "unique": f"{place:09d}"}
        self._elements[name] = 0
        self._switch(name)
        person = self._people[name] = Person(self, name, settings)
        return person

    def _switch(self, name):
        """Become another process: save and restore the state that modules keep per process."""
        if self._current is not None:
            self._elements[self._current] = dirq_names._last
        identity.PROCESS.__dict__ = self._processes[name]
        dirq_names._last = self._elements[name]
        self._current = name

    def _set_up(self):
        plan = self.plan
        settings = {
            "lease": LEASE,
            "margin": MARGIN,
            "layout": plan.layout,
            "stale": 3600.0,
            "max_attempts": ATTEMPTS if plan.layout == "native" else 0,
            **dict(plan.settings),
        }
        if plan.layout != "text":
            self.fs.mkdir("/sim/q")
        if plan.layout == "native" and plan.rooms:
            self.fs.mkdir("/sim/q/leased")
        self._person("z", settings).run(plan.before)
        for place in range(len(plan.programs)):
            self._person(chr(ord("a") + place), settings)
        self.clock.advance(1.0)
        for name, person in self._people.items():
            self._switch(name)
            warm(person.queue)
        self.clock.advance(1.0)
        self._current = None
        roots = [self.fs, self.clock, *self._people.values(), *self._processes.values(), self._elements]
        self._beginning = Moment([*roots, self.books], stop=(World, Scheduler))

    # --- one run -------------------------------------------------------------------------------------------

    def run(self, chooser):
        """Run the plan once from its beginning; return the violations."""
        self._beginning.back()
        self._current = None
        plan = self.plan
        scheduler = self.scheduler = self.fs.scheduler = Scheduler(
            chooser, self._switch, self._state, self._memories
        )
        events = {"~tick": Event(lambda: self.clock.tick(plan.tick), times=plan.ticks)} if plan.ticks else {}
        clients = [name for name in self._people if name != "z"]
        for name in clients[: plan.kills]:
            events[f"~~kill {name}"] = Event(lambda name=name: scheduler.kill(name), kill_of(name))
        self.fs.lossy = plan.lossy
        bodies = {
            name: (lambda person=self._people[name], program=program: person.run(program))
            for name, program in zip(clients, plan.programs, strict=True)
        }
        try:
            scheduler.run(bodies, events)
        except Endless:
            self.books.say("endless", f"not finished after {scheduler.step} calls")
            return self._unforgiven()
        finally:
            self._complain()
        self.fs.lossy = 0
        self._settle(disturbed=bool(scheduler.killed or self.clock.ticked))
        return self._unforgiven()

    def _unforgiven(self):
        return [each for each in self.books.wrong if each[0] not in self.plan.forgiven]

    def _state(self):
        return (self.fs.digest, self.clock.ns, self.fs.lossy, self.books.digest())

    def _complain(self):
        for name, error in self.scheduler.errors.items():
            self.books.say(f"raised {type(error).__name__}", f"{name}: {type(error).__name__}: {error}")

    def _settle(self, *, disturbed):
        """Check, with all clients gone and all leases expired, that exactly the promised messages are left."""
        key = (self.fs.digest, self.clock.ns)
        if key not in self._settled:
            self._settled[key] = self._empty()
        left, dead, extra = self._settled[key]
        if left is None:
            self.books.say("endless", "the queue never becomes empty")
            return
        self.books.settle(left, dead, disturbed=disturbed)
        if extra:
            self.books.say("leftover", f"after purge: {', '.join(extra)}")

    def _empty(self):
        """Empty the queue; return the bodies that were left, those that are dead, and leftover names."""
        self.clock.advance(LONG)
        self._switch("z")
        queue = self._people["z"].queue
        left, dead = [], []
        while True:
            try:
                lease = queue.get(timeout=0)
            except dirqueue.Empty:
                break
            left.append(lease.message.body)
            lease.ack()
            if len(left) > 50:
                return None, [], []
        if "dead" not in queue.layout.lacks:
            dead = [message.body for message in queue.peek("dead")]
        extra = leftovers(self._tree(), len(dead))
        if extra:
            self.clock.advance(LONG)
            queue.layout.purge(None)
            extra = leftovers(self._tree(), len(dead))
        return left, dead, extra

    def _tree(self):
        if self.plan.layout == "text":
            return {}  # finished messages stay, and so does what lies beside the file
        tree = self.fs.tree()
        return tree if self.plan.layout == "native" else _files(tree)  # dirq keeps its newest directory


def _files(tree):
    return {path: body for path, body in tree.items() if body is not None}


def warm(queue):
    """Let a queue measure its clock now, to keep that out of the schedules."""
    list(queue.peek("ready", limit=1))


def leftovers(tree, dead):
    """Return the names that must not exist in a queue whose messages are all gone or dead."""
    rooms = {"q/leased/", "q/later/", "q/dead/", "q/done/"}
    furniture = {"q/", *rooms, "q/.ballast", "q/queue.json", "q/.purge.lock"}
    # A look at the clock that was killed; the tokens of a simulated process are too short for purge to know them.
    usual = ("q/dead/", "q/done/", "q/.clock-")
    extra = [path for path in tree if path not in furniture and not path.startswith(usual)]
    buried = [path for path in tree if path.startswith("q/dead/") and not path.endswith("/")]
    if len(buried) > 2 * dead:
        extra += buried
    return sorted(extra)


# --- many runs ---------------------------------------------------------------------------------------------


def replay(plan, choices):
    """Run one schedule again, given as a list of numbers or as text."""
    with World(plan) as world:
        return _again(world, read(choices) if isinstance(choices, str) else choices)


def _again(world, choices):
    chooser = Recorded(choices)
    wrong = world.run(chooser)
    return Outcome(wrong, chooser.made, world.scheduler.log)


def exhaust(plan, limit=None):
    """Run every schedule of a plan, or the first `limit`; return (runs, pruned, complete, failure or None).

    `runs` schedules ran to their ends; `pruned` ones were cut where every continuation had been tried.
    """
    chooser = DepthFirst()
    runs = pruned = 0
    with World(plan) as world:
        while True:
            chooser.begin()
            try:
                wrong = world.run(chooser)
                runs += 1
            except Pruned:
                wrong = world._unforgiven()
                pruned += 1
            if wrong:
                return runs, pruned, False, failure(world, chooser.made, wrong)
            if not chooser.next():
                return runs, pruned, True, None
            if limit is not None and runs + pruned >= limit:
                return runs, pruned, False, None


def wander(plan, runs, seed=0):
    """Run random schedules; return (runs, failure or None)."""
    with World(plan) as world:
        for number in range(runs):
            chooser = Random(f"{seed}-{number}")
            wrong = world.run(chooser)
            if wrong:
                return number + 1, failure(world, chooser.made, wrong)
    return runs, None


@dataclass
class Failure:
    """A schedule that breaks a promise, shortened."""

    plan: Plan
    kind: str
    text: str
    choices: str
    log: list

    def __str__(self):
        steps = "\n".join(f"    {client}: {call}" for client, call in self.log)
        return f"{self.kind}: {self.text}\n  plan {self.plan}\n  replay with {self.choices!r}\n  schedule:\n{steps}"


def failure(world, choices, wrong):
    """Shorten a failing schedule and return it as a Failure."""
    kind, plan = wrong[0][0], world.plan

    def fails(trial):
        return any(each[0] == kind for each in _again(world, trial).wrong)

    text = wrong[0][1]
    if not fails(choices):
        return Failure(plan, f"not repeatable: {kind}", text, written(choices), [])
    best = shorten(choices, fails)
    outcome = _again(world, best)
    text = next(each[1] for each in outcome.wrong if each[0] == kind)
    return Failure(plan, kind, text, written(best), outcome.log)
