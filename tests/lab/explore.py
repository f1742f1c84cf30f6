"""Interleavings of the real library: programs of short operations, run in every order or in many.

A program is a string, one letter an operation; `"p|ga|tG"` is three clients. What runs is the public queue object on a
simulated directory, with each filesystem call as a switching point.
"""

import itertools
from dataclasses import dataclass, field

import dirqueue
from dirqueue import fs as seam_fs
from dirqueue import names
from lab import seam
from lab.account import Books
from lab.schedule import DepthFirst, Endless, Pruned, Random, Recorded, Scheduler, shorten
from lab.simfs import SimFS

LEASE = 10.0
MARGIN = 1.0
#: One tick is longer than a lease and its margin, and shorter than what a measured clock is trusted for.
TICK = 15.0
LONG = 100_000.0


@dataclass(frozen=True)
class Plan:
    """What to run, and what may happen."""

    programs: tuple
    before: str = "p"
    ticks: int = 0
    lossy: int = 0
    kills: int = 0
    layout: str = "native"
    fstype: str = "tmpfs"
    noreplace: bool = True
    links: bool = True
    settings: tuple = ()

    @classmethod
    def of(cls, text, **more):
        return cls(tuple(text.split("|")), **more)

    def __str__(self):
        extra = [f"{name}={getattr(self, name)}" for name in ("before", "ticks", "lossy", "kills", "layout")]
        return f"{'|'.join(self.programs)} ({', '.join(extra)})"


@dataclass
class Outcome:
    wrong: list
    made: list
    log: list = field(default_factory=list)


class Person:
    """One process: its own queue object, its own names, its own leases."""

    def __init__(self, world, name):
        self.world = world
        self.name = name
        self.queue = dirqueue.Queue("/sim/q", **world.settings)
        self.leases = []
        self._count = itertools.count(1)

    def body(self):
        return f"{self.name}{next(self._count)}".encode()

    def run(self, program):
        for letter in program:
            OPERATIONS[letter](self)

    def put(self, delay=0.0):
        body = self.body()
        self.world.books.putting(body)
        self.queue.put(body, delay=delay)
        if delay:
            self.world.books.hidden.add(body)
        self.world.books.put(self.world.step, body)

    def put_many(self):
        bodies = [self.body(), self.body()]
        self.world.books.putting(*bodies)
        self.queue.put_many(bodies)
        self.world.books.put(self.world.step, *bodies)

    def get(self):
        world = self.world
        began = world.step
        try:
            lease = self.queue.get(timeout=0)
        except dirqueue.Empty:
            world.books.empty(self.name, began, world.step)
            return
        until = lease.until.timestamp()
        hold = world.books.got(
            self.name, lease.message.body, began, world.step, until, world.seconds, lease.message.attempts
        )
        self.leases.append((lease, hold))

    def end(self, verb, *arguments):
        if not self.leases:
            return
        lease, hold = self.leases.pop(0)
        books, world = self.world.books, self.world
        books.ending(hold, world.step, verb)
        try:
            getattr(lease, verb)(*arguments)
        except dirqueue.LeaseLost:
            books.lost(hold, world.seconds, verb=verb)
            if verb == "ack" and not any(
                h.ending and h is not hold for h in books.holds if h.body == hold.body
            ):
                books.maybe_acked.discard(hold.body)
        else:
            if verb == "renew":
                books.renewed(hold, lease.until.timestamp())
                self.leases.append((lease, hold))
            else:
                books.ended(hold, verb, world.step)

    def purge(self):
        self.queue._layout.purge(None)  # without its lock: two at once must do no harm

    def redrive(self):
        self.queue.redrive()

    def keep(self):
        """Remember the lease twice: used after it ended, it must be refused."""
        if self.leases:
            self.leases.append(self.leases[0])


OPERATIONS = {
    "p": Person.put,
    "y": lambda who: who.put(delay=5.0),
    "P": Person.put_many,
    "g": Person.get,
    "a": lambda who: who.end("ack"),
    "t": lambda who: who.end("retry", 0.0, "no luck"),
    "l": lambda who: who.end("release"),
    "j": lambda who: who.end("reject", "bad"),
    "n": lambda who: who.end("renew"),
    "u": Person.purge,
    "d": Person.redrive,
}


class World:
    """One run of one plan."""

    def __init__(self, plan, chooser):
        self.plan = plan
        self.clock = seam.Clock()
        self.scheduler = Scheduler(chooser, self._switch)
        self.books = Books(margin=MARGIN)
        self.settings = {
            "lease": LEASE,
            "margin": MARGIN,
            "layout": plan.layout,
            "stale": 3600.0,
            "max_attempts": 3,
            **dict(plan.settings),
        }
        self.fs = SimFS(
            self.clock.now_ns,
            self.scheduler,
            fstype=plan.fstype,
            noreplace=plan.noreplace,
            links=plan.links,
        )
        self._processes = {}

    @property
    def step(self):
        return self.scheduler.step

    @property
    def seconds(self):
        return self.clock.ns / 1e9

    def _switch(self, name):
        names.PROCESS = self._processes[name]

    def _person(self, name):
        process = names.Process()
        process.count = itertools.count(1)
        process.stem = f"{name}-"
        process.unique = f"{len(self._processes) + 1:09d}"
        self._processes[name] = names.PROCESS = process
        return Person(self, name)

    def run(self):
        saved = names.PROCESS
        try:
            with seam.replaced("dirqueue", seam_fs.CALLS, fs=self.fs, clock=self.clock):
                return self._run()
        finally:
            names.PROCESS = saved

    def _run(self):
        plan = self.plan
        self.fs.mkdir("/sim/q")
        self._first = self._person("z")
        self._first.run(plan.before)
        people = {}
        for place in range(len(plan.programs)):
            name = chr(ord("a") + place)
            people[name] = self._person(name)
        self.clock.advance(1.0)
        for name, person in people.items():
            self._switch(name)
            warm(person.queue)
        self.clock.advance(1.0)
        events = {f"~tick{n}": lambda: self.clock.tick(TICK) for n in range(plan.ticks)}
        if plan.kills:
            for name in list(people)[: plan.kills]:
                events[f"~~kill {name}"] = lambda name=name: self.scheduler.kill(name)
        self.fs.lossy = plan.lossy
        bodies = {
            name: (lambda person=person, program=program: person.run(program))
            for (name, person), program in zip(people.items(), plan.programs, strict=True)
        }
        try:
            self.scheduler.run(bodies, events)
        except Endless:
            self.books.say("endless", f"still not done after {self.step} calls")
            return self.books.wrong
        self.fs.lossy = 0
        if self.scheduler.killed or self.clock.ticked:
            self.books.hidden |= self.books.tried  # who knows what the dead and the sleepers had claimed
        for name, error in self.scheduler.errors.items():
            self.books.say(f"raised {type(error).__name__}", f"{name}: {type(error).__name__}: {error}")
        self._settle()
        return self.books.wrong

    def _tree(self):
        tree = self.fs.tree()
        return tree if self.plan.layout == "native" else _files(tree)  # dirq keeps its newest directory

    def _settle(self):
        """Everybody is gone and all leases have run out: what is left must be what was promised."""
        self.clock.advance(LONG)
        last = self._first
        self._switch(last.name)
        left, dead = [], []
        for _ in range(50):
            try:
                lease = last.queue.get(timeout=0)
            except dirqueue.Empty:
                break
            left.append(lease.message.body)
            lease.ack()
        else:
            self.books.say("endless", "the queue cannot be emptied")
        if "dead" not in last.queue._layout.lacks:
            dead = [message.body for message in last.queue.peek("dead")]
        self.books.settle(left, dead)
        if leftovers(self._tree(), len(dead)):
            self.clock.advance(LONG)
            last.queue._layout.purge(None)
            if extra := leftovers(self._tree(), len(dead)):
                self.books.say("leftover", f"after purge: {', '.join(extra)}")


def _files(tree):
    return {path: body for path, body in tree.items() if body is not None}


def warm(queue):
    """Let a queue object measure its clock now, so that a schedule is not full of that."""
    list(queue.peek("ready", limit=1))


def leftovers(tree, dead):
    """Return the names that should not be there in a queue whose messages are gone or dead."""
    furniture = {"q/", "q/dead/", "q/done/", "q/.ballast", "q/queue.json", "q/.purge.lock"}
    extra = [path for path in tree if path not in furniture and not path.startswith(("q/dead/", "q/done/"))]
    buried = [path for path in tree if path.startswith("q/dead/") and path != "q/dead/"]
    if len(buried) > 2 * dead:
        extra += buried
    return sorted(extra)


# --- many runs ---------------------------------------------------------------------------------------------


def replay(plan, choices):
    """Run one schedule again."""
    chooser = Recorded(choices)
    world = World(plan, chooser)
    wrong = world.run()
    return Outcome(wrong, chooser.made, world.scheduler.log)


def exhaust(plan, limit=None):
    """Run every schedule of a plan, or the first `limit`; return (runs, pruned, complete, failure or None)."""
    chooser = DepthFirst()
    runs = pruned = 0
    while True:
        chooser.begin()
        world = World(plan, chooser)
        try:
            wrong = world.run()
            runs += 1
        except Pruned:
            wrong = []
            pruned += 1
        if wrong:
            return runs, pruned, False, failure(plan, chooser.made, wrong)
        if not chooser.next():
            return runs, pruned, True, None
        if limit is not None and runs + pruned >= limit:
            return runs, pruned, False, None


def wander(plan, runs, seed=0):
    """Run random schedules; return (runs, failure or None)."""
    for number in range(runs):
        chooser = Random(f"{seed}-{number}")
        wrong = World(plan, chooser).run()
        if wrong:
            return number + 1, failure(plan, chooser.made, wrong)
    return runs, None


@dataclass
class Failure:
    """A schedule that breaks a promise, as short as it could be made."""

    plan: Plan
    kind: str
    text: str
    choices: list
    log: list

    def __str__(self):
        steps = "\n".join(f"    {who}: {what}" for who, what in self.log)
        return f"{self.kind}: {self.text}\n  plan {self.plan}\n  replay with {self.choices}\n  schedule:\n{steps}"


def failure(plan, choices, wrong):
    """Shorten a failing schedule and tell it."""
    kind = wrong[0][0]

    def fails(trial):
        return any(each[0] == kind for each in replay(plan, trial).wrong)

    if not fails(choices):
        return Failure(plan, f"not repeatable: {kind}", wrong[0][1], choices, [])
    best = shorten(choices, fails)
    outcome = replay(plan, best)
    text = next(each[1] for each in outcome.wrong if each[0] == kind)
    return Failure(plan, kind, text, best, outcome.log)
