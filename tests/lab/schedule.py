"""A deterministic scheduler: several clients, one thread, every interleaving on request.

Each client is a greenlet that asks for a turn before each call that others can notice. Who goes next, and how each
free choice falls out, is decided by a chooser: a depth-first search (complete), a random one (by seed), or a recorded
list (replay). A schedule is a list of small numbers; 0 always means "nothing special".

The depth-first search leaves out what is the same as something it has seen, in two ways that are sound together
(Godefroid's sleep sets with state matching). Sleep sets: two calls whose footprints do not meet give the same world in
either order, so one order is enough. States: a world is known by what lies in the directory, the clock, the books, and
for each client everything it was told since its last operation and what it remembers of the earlier ones, which is all
that its next steps can depend on; a run that comes to a
world that was seen goes on only with those who slept when it was seen and are awake now. Worlds are compared by 64-bit
hashes of all that: two of a million different ones are taken for one with a chance of 3 in 100 million.
"""

import random

from greenlet import GreenletExit, getcurrent, greenlet

#: A run that takes more turns than this is going round in circles.
TOO_MANY_TURNS = 4000
#: How choices are written down.
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class Endless(Exception):
    """A client that never gets done."""


class Pruned(Exception):
    """Every way to go on from here is the same as one already tried."""


class Footprint:
    """What a turn reads and writes: by that one knows which turns may change places.

    A footprint is made of slots: (directory, name), (directory, None) for the whole of it, or the number of a file.
    """

    __slots__ = ("reads", "whom", "writes")

    def __init__(self, reads=(), writes=(), whom=None):
        self.reads = reads
        self.writes = writes
        self.whom = whom


#: Something that nothing commutes with: a tick of the clock.
EVERYTHING = Footprint()


def kill_of(name):
    """Return the footprint of an end that befalls one client: it changes places with whatever others do."""
    return Footprint(whom=name)


def reading(*slots):
    """Return the footprint of a turn that only looks."""
    return slots, ()


def writing(*slots):
    """Return the footprint of a turn that changes something."""
    return (), slots


def _touch(one, other):
    """Whether two rows of slots meet."""
    for a in one:
        for b in other:
            if a == b:
                return True
            if type(a) is tuple and type(b) is tuple and a[0] == b[0] and (a[1] is None or b[1] is None):
                return True
    return False


def independent(who, one, whom, other):
    """Whether two agents may change places without anybody noticing; `one` and `other` are their footprints."""
    if one is EVERYTHING or other is EVERYTHING:
        return False
    if one.whom is not None or other.whom is not None:
        return one.whom != whom and other.whom != who
    return not (
        _touch(one.writes, other.writes) or _touch(one.reads, other.writes) or _touch(one.writes, other.reads)
    )


def written(choices):
    """Return choices as text, a digit each."""
    return "".join(DIGITS[choice] for choice in choices)


def read(text):
    """Return the choices that a text says."""
    return [DIGITS.index(digit) for digit in text]


# --- choosers ----------------------------------------------------------------------------------------------


class Recorded:
    """Replay a list of choices; beyond its end, and where a choice makes no sense, nothing special happens."""

    #: Whether it asks for states; else nobody has to keep track of them.
    compares = False

    def __init__(self, choices=()):
        self._choices = list(choices)
        self.made = []

    def choose(self, options):
        place = len(self.made)
        choice = self._choices[place] if place < len(self._choices) else 0
        choice = choice if choice < options else 0
        self.made.append(choice)
        return choice

    def pick(self, scheduler):
        agents = scheduler.agents()
        return agents[self.choose(len(agents))]


class Random(Recorded):
    """Choose by a seed; a client goes on with some inertia, as real ones do."""

    def __init__(self, seed, inertia=0.3):
        super().__init__()
        self._dice = random.Random(seed).random
        self._inertia = inertia

    def choose(self, options):
        stay = options == 1 or self._dice() < self._inertia
        choice = 0 if stay else int(self._dice() * options)
        self.made.append(choice)
        return choice


class _Node:
    """A decision: who goes next (agents), or how a free choice falls out (agents is None)."""

    __slots__ = ("agents", "at", "last", "sleep", "todo", "turns")


class DepthFirst:
    """Try everything once: a stack of decisions, the last of which is changed for the next run."""

    compares = True

    def __init__(self, *, reduced=True):
        self._stack = []
        self._place = 0
        self._seen = {}
        self._reduced = reduced

    @property
    def states(self):
        """How many different worlds were seen."""
        return len(self._seen)

    def begin(self):
        self._place = 0

    def pick(self, scheduler):
        if self._place == len(self._stack):
            self._stack.append(self._decision(scheduler))
        node = self._stack[self._place]
        self._place += 1
        return node.agents[node.at]

    def _decision(self, scheduler):
        node = _Node()
        node.agents, node.turns = scheduler.agents(), scheduler.turns()
        if not self._reduced:
            node.todo, node.sleep, node.at = list(range(len(node.agents) - 1, 0, -1)), {}, 0
            return node
        sleep = self._asleep()
        state = scheduler.state()
        before = self._seen.get(state)
        if before is None:
            self._seen[state] = frozenset(sleep)
            node.todo = [place for place, agent in enumerate(node.agents) if agent not in sleep]
        else:
            # Seen: all but those who slept then were tried from here.
            node.todo = [
                place for place, agent in enumerate(node.agents) if agent in before and agent not in sleep
            ]
            self._seen[state] = before & sleep.keys()
            sleep = {agent: turn for agent, turn in sleep.items() if agent in before}
        if not node.todo:
            raise Pruned
        node.todo.reverse()
        node.sleep, node.at = sleep, node.todo.pop()
        return node

    def _asleep(self):
        """Return those whose turns come to nothing new after the last decision: agent -> footprint."""
        for node in reversed(self._stack):
            if node.agents is not None:
                chosen = node.agents[node.at]
                mine = node.turns[chosen]
                return {
                    other: turn
                    for other, turn in node.sleep.items()
                    if other != chosen and independent(other, turn, chosen, mine)
                }
        return {}

    def choose(self, options):
        if self._place == len(self._stack):
            node = _Node()
            node.agents, node.at, node.last = None, 0, options - 1
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
            elif node.todo:
                tried = node.agents[node.at]
                node.sleep = {**node.sleep, tried: node.turns[tried]}
                node.at = node.todo.pop()
                return True
            self._stack.pop()
        return False


# --- one run -----------------------------------------------------------------------------------------------


class Event:
    """Something that befalls the world instead of a client's turn, so many times."""

    __slots__ = ("do", "footprint", "times")

    def __init__(self, do, footprint=EVERYTHING, times=1):
        self.do = do
        self.footprint = footprint
        self.times = times


class Scheduler:
    """Runs named clients (functions without arguments) to their ends, one turn at a time.

    `on_switch` is told who goes on; `world` returns what, beside the clients, makes a state; `memories` is a dict that
    lives as long as the clients behave alike.
    """

    def __init__(self, chooser, on_switch=None, world=None, memories=None):
        self._chooser = chooser
        self.compares = chooser.compares
        self._on_switch = on_switch or (lambda _name: None)
        self._world = world or (lambda: 0)
        self._memories = {} if memories is None else memories
        self._hub = None
        self._turns = {}
        self._clients = {}
        self._events = {}
        self._told = {}
        self._last = None
        self.errors = {}
        self.current = None
        self.step = 0
        self.killed = set()
        self.log = []
        self._dead = []
        self._closing = False
        self.inside = False

    # --- for clients ---------------------------------------------------------------------------------------

    def turn(self, kind, touches=reading, *arguments):
        """Wait for one's turn. Outside of a run (setting up, looking afterwards) there is nobody to wait for.

        `touches(*arguments)` returns what will be read and written; it is asked when somebody wants to know, since
        what a path means may change while its client waits.
        """
        if not self.inside:
            return
        if self._closing:
            raise GreenletExit  # a client that was killed or given up: nothing of it may happen any more
        self._turns[self.current] = (kind, touches, arguments)
        self._hub.switch()

    def choose(self, options):
        """Let the chooser decide something: a number below `options`."""
        return self._chooser.choose(options) if self.inside else 0

    def note(self, fact):
        """Remember what the client was told: what it does next depends on nothing else."""
        if self.inside and self.compares:
            self._told[self.current] = hash((self._told[self.current], fact))

    def remember(self, memory):
        """Forget what the client was told: from here on it depends on nothing but what `memory()` returns.

        What it was told before decides that, so each memory is asked for once.
        """
        if self.compares and self.inside and not self._closing:
            told = self._told[self.current]
            if told not in self._memories:
                self._memories[told] = hash((self.current, memory()))
            self._told[self.current] = self._memories[told]

    def kill(self, name):
        """End a client where it stands, as SIGKILL would: none of its code runs again."""
        self._dead.append(self._clients.pop(name))  # kept: collecting it now would run its finally blocks
        del self._turns[name]
        self.killed.add(name)

    # --- for choosers --------------------------------------------------------------------------------------

    def agents(self):
        """Return who can go next: first the one that went last, clients before events."""
        agents = list(self._clients)
        if agents[0] != self._last and self._last in self._clients:
            agents.remove(self._last)
            agents.insert(0, self._last)
        for name, event in self._events.items():
            if event.times and (event.footprint.whom is None or event.footprint.whom in self._clients):
                agents.append(name)
        return agents

    def turns(self):
        """Return the footprint of what each of them is about to do."""
        events = {name: event.footprint for name, event in self._events.items()}
        for name, (_, touches, arguments) in self._turns.items():
            events[name] = EVERYTHING if touches is None else Footprint(*touches(*arguments))
        return events

    def state(self):
        """Return a number for the world as it is now."""
        events = tuple(event.times for event in self._events.values())
        told = tuple(sorted(self._told.items()))
        return hash((told, events, frozenset(self.killed), self._world()))

    # --- the run -------------------------------------------------------------------------------------------

    def run(self, clients, events=None):
        """Run everybody to the end."""
        self._hub = getcurrent()
        self._events = events or {}
        pick = self._chooser.pick
        try:
            for name, body in clients.items():
                self._clients[name] = greenlet(self._guard(name, body))
                self._turns[name] = ("start", reading, ())
                self._told[name] = hash(name)
            while self._clients:
                last = self._last = pick(self)
                self.step += 1
                if self.step > TOO_MANY_TURNS:
                    raise Endless
                event = self._events.get(last)
                if event is not None:
                    self.log.append((last, "event"))
                    event.times -= 1
                    event.do()
                    continue
                self.log.append((last, self._turns[last][0]))
                if self.compares:
                    self._told[last] = hash((self._told[last], 0))
                if self.current != last:
                    self.current = last
                    self._on_switch(last)
                self.inside = True
                self._clients[last].switch()
                self.inside = False
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
        self._closing = self.inside = True
        for client in [*self._clients.values(), *self._dead]:
            if client:
                client.throw(GreenletExit)
        self._clients.clear()
        self._closing = self.inside = False


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
