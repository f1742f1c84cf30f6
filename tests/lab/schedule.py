"""A deterministic scheduler: several clients, one thread, every interleaving on request.

Each client is a greenlet that asks for a turn before each call that others can notice. Who goes next, and how each
free choice falls out, is decided by a chooser: a depth-first search with sleep sets (complete), a random one (by
seed), or a recorded list (replay). A schedule is a list of small numbers; 0 always means "nothing special".
"""

import random

from greenlet import GreenletExit, getcurrent, greenlet

#: A run that takes more turns than this is going round in circles.
TOO_MANY_TURNS = 4000


class Endless(Exception):
    """A client that never gets done."""


class Pruned(Exception):
    """Every way to go on from here is the same as one already tried."""


class Turn:
    __slots__ = ("kind", "reads", "writes")

    def __init__(self, kind, reads, writes):
        self.kind = kind
        self.reads = reads
        self.writes = writes

    def __repr__(self):
        return self.kind


#: Something that nothing commutes with: a tick of the clock, a kill.
EVERYTHING = Turn("everything", (), ())


def _touch(one, other):
    """Whether two footprints meet. A directory's number with None is the whole directory."""
    for a in one:
        for b in other:
            if a == b:
                return True
            if type(a) is tuple and type(b) is tuple and a[0] == b[0] and (a[1] is None or b[1] is None):
                return True
    return False


def independent(one, other):
    """Whether two calls may change places without anybody noticing."""
    if one is EVERYTHING or other is EVERYTHING:
        return False
    return not (
        _touch(one.writes, other.writes) or _touch(one.reads, other.writes) or _touch(one.writes, other.reads)
    )


# --- choosers ----------------------------------------------------------------------------------------------


class Recorded:
    """Replay a list of choices; beyond its end, and where a choice makes no sense, nothing special happens."""

    def __init__(self, choices=()):
        self._choices = list(choices)
        self.made = []

    def _next(self, options):
        place = len(self.made)
        choice = self._choices[place] if place < len(self._choices) else 0
        choice = choice if choice < options else 0
        self.made.append(choice)
        return choice

    def pick(self, agents, _turns):
        return agents[self._next(len(agents))]

    def choose(self, options):
        return self._next(options)


class Random(Recorded):
    """Choose by a seed; a client goes on with some inertia, as real ones do."""

    def __init__(self, seed, inertia=0.3):
        super().__init__()
        self._random = random.Random(seed)
        self._inertia = inertia

    def _next(self, options):
        stay = options == 1 or self._random.random() < self._inertia
        choice = 0 if stay else int(self._random.random() * options)
        self.made.append(choice)
        return choice


class _Node:
    __slots__ = ("agents", "at", "last", "sleep", "turns")


class DepthFirst:
    """Try everything once: a stack of decisions, the last of which is changed for the next run."""

    def __init__(self):
        self._stack = []
        self._place = 0
        self._sleep = {}
        self.runs = 0
        self.pruned = 0

    def begin(self):
        self._place = 0
        self._sleep = {}

    def pick(self, agents, turns):
        if self._place == len(self._stack):
            node = _Node()
            node.agents, node.turns, node.sleep, node.at = agents, dict(turns), self._sleep, -1
            self._stack.append(node)
            if not self._advance(node):
                self._stack.pop()
                raise Pruned
        node = self._stack[self._place]
        self._place += 1
        chosen = node.agents[node.at]
        mine = node.turns[chosen]
        self._sleep = {
            other: turn for other, turn in node.sleep.items() if other != chosen and independent(turn, mine)
        }
        return chosen

    def _advance(self, node):
        if node.at >= 0:
            tried = node.agents[node.at]
            node.sleep = {**node.sleep, tried: node.turns[tried]}
        for place in range(node.at + 1, len(node.agents)):
            if node.agents[place] not in node.sleep:
                node.at = place
                return True
        return False

    def choose(self, options):
        if self._place == len(self._stack):
            node = _Node()
            node.agents, node.at = None, 0
            node.last = options - 1
            self._stack.append(node)
        node = self._stack[self._place]
        self._place += 1
        return node.at

    @property
    def made(self):
        return [node.at for node in self._stack]

    def next(self):
        """Make the next run another one; False when all have been made."""
        while self._stack:
            node = self._stack[-1]
            if node.agents is None:
                if node.at < node.last:
                    node.at += 1
                    return True
            elif self._advance(node):
                return True
            self._stack.pop()
        return False


# --- one run -----------------------------------------------------------------------------------------------


class Scheduler:
    """Runs named clients (functions without arguments) to their ends, one turn at a time.

    `events` are things that befall the world instead of a client's turn, each once: name -> function. `on_switch`
    is told who goes on.
    """

    def __init__(self, chooser, on_switch=None):
        self._chooser = chooser
        self._on_switch = on_switch or (lambda _name: None)
        self._hub = None
        self._turns = {}
        self._clients = {}
        self.errors = {}
        self.current = None
        self.step = 0
        self.killed = set()
        self.log = []
        self._dead = []
        self._closing = False
        self._inside = False

    def turn(self, kind, reads=(), writes=()):
        """Wait for one's turn. Outside of a run (setting up, looking afterwards) there is nobody to wait for."""
        if not self._inside:
            return
        if self._closing:
            raise GreenletExit  # a client that was killed or given up: nothing of it may happen any more
        self._turns[self.current] = Turn(kind, reads, writes)
        self._hub.switch()

    def choose(self, options, label):
        """Let the chooser decide something: a number below `options`."""
        if not self._inside:
            return 0
        return self._chooser.choose(options)

    def kill(self, name):
        """End a client where it stands, as SIGKILL would: none of its code runs again."""
        client = self._clients.pop(name, None)
        if client is not None:
            self._turns.pop(name, None)
            self.killed.add(name)
            self._dead.append(client)  # kept: collecting it now would run its finally blocks

    def run(self, clients, events=None):
        """Run everybody to the end."""
        self._hub = getcurrent()
        events = dict(events or {})
        try:
            for name, body in clients.items():
                self._clients[name] = greenlet(self._guard(name, body))
                self._turns[name] = Turn("start", (), ())
            last = None
            while self._clients:
                agents = sorted(self._clients)
                if last in self._clients:
                    agents.remove(last)
                    agents.insert(0, last)
                agents += sorted(events)
                turns = {**self._turns, **dict.fromkeys(events, EVERYTHING)}
                last = self._chooser.pick(agents, turns)
                self.step += 1
                if self.step > TOO_MANY_TURNS:
                    raise Endless
                if last in events:
                    self.log.append((last, "event"))
                    events.pop(last)()
                    continue
                self.log.append((last, self._turns[last].kind))
                self.current = last
                self._on_switch(last)
                self._inside = True
                self._clients[last].switch()
                self._inside = False
        finally:
            self._end()

    def _guard(self, name, body):
        def run():
            try:
                body()
            except GreenletExit:
                raise
            except BaseException as error:  # noqa: BLE001 - the verdict is the caller's
                self.errors[name] = error
            self._clients.pop(name, None)
            self._turns.pop(name, None)

        return run

    def _end(self):
        """Let unfinished clients go without a trace: their turns come to nothing."""
        self._closing = self._inside = True
        for client in [*self._clients.values(), *self._dead]:
            if client:
                client.throw(GreenletExit)
        self._clients.clear()
        self._closing = self._inside = False


# --- many runs ---------------------------------------------------------------------------------------------


def shorten(choices, fails):
    """Return the smallest list of choices found that still fails; `fails(choices)` replays and tells."""
    best = list(choices)
    while best and fails(best[:-1]):
        best.pop()
    step = max(1, len(best) // 2)
    while step:
        place = 0
        while place < len(best):
            trial = best[:place] + [0] * min(step, len(best) - place) + best[place + step :]
            if any(best[place : place + step]) and fails(trial):
                best = trial
            place += step
        step //= 2
    while best and best[-1] == 0:
        best.pop()
    return best
