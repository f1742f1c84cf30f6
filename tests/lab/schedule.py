"""A deterministic scheduler: several clients, one thread, every interleaving on request.

Each client is a greenlet that waits for a turn before each call that others can observe. A chooser decides which client
runs next and how each free choice is made: a depth-first search (complete), a random one (by seed), or a recorded list
(replay). A schedule is a list of small numbers; 0 always means "nothing special".

The depth-first search skips schedules that are equivalent to earlier ones, in two ways that are sound together
(Godefroid's sleep sets with state matching). Sleep sets: two calls with disjoint footprints give the same world in
either order, so one order is enough. States: a world is identified by the directory, the clock, the books, and for each
client the results since its last operation and its memory of the earlier ones, which is all that its next steps can
depend on; a run that reaches a known world continues only with the clients that slept when it was seen and are awake
now. Worlds are compared by 64-bit hashes: the probability that two of a million different ones collide is 3 in 100
million.
"""

import random

from greenlet import GreenletExit, getcurrent, greenlet

#: A run that takes more turns than this is in an endless loop.
TOO_MANY_TURNS = 4000
#: How choices are written as text.
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class Endless(Exception):
    """A client never ends."""


class Pruned(Exception):
    """Every continuation from here is equivalent to one already tried."""


class Footprint:
    """What a turn reads and writes, which decides whether two turns commute.

    A footprint is made of slots: (directory, name), (directory, None) for the whole of it, or the number of a file.
    """

    __slots__ = ("reads", "whom", "writes")

    def __init__(self, reads=(), writes=(), whom=None):
        self.reads = reads
        self.writes = writes
        self.whom = whom


#: The footprint of a tick of the clock: it commutes with nothing.
EVERYTHING = Footprint()


def kill_of(name):
    """Return the footprint of killing one client: it commutes with the turns of all others."""
    return Footprint(whom=name)


def reading(*slots):
    """Return the footprint of a turn that only reads."""
    return slots, ()


def writing(*slots):
    """Return the footprint of a turn that changes something."""
    return (), slots


def _touch(one, other):
    """Return whether two sequences of slots overlap."""
    for a in one:
        for b in other:
            if a == b:
                return True
            if type(a) is tuple and type(b) is tuple and a[0] == b[0] and (a[1] is None or b[1] is None):
                return True
    return False


def independent(first, one, second, other):
    """Return whether the turns of two agents commute; `one` and `other` are their footprints."""
    if one is EVERYTHING or other is EVERYTHING:
        return False
    if one.whom is not None or other.whom is not None:
        return one.whom != second and other.whom != first
    return not (
        _touch(one.writes, other.writes) or _touch(one.reads, other.writes) or _touch(one.writes, other.reads)
    )


def written(choices):
    """Return choices as text, one digit each."""
    return "".join(DIGITS[choice] for choice in choices)


def read(text):
    """Return the choices in a text."""
    return [DIGITS.index(digit) for digit in text]


# --- choosers ----------------------------------------------------------------------------------------------


class Recorded:
    """Replay a list of choices; an invalid choice, or one beyond the end, is taken as 0."""

    #: Whether the chooser compares states; otherwise they are not tracked.
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
    """Choose at random by a seed; a client tends to continue, as real ones do."""

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
    """A decision: which agent runs next, or a free choice (agents is None)."""

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
        """The number of different worlds seen."""
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
            # Seen before: all agents but those that slept then were tried from here.
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
        """Return the agents whose turns give nothing new after the last decision: agent -> footprint."""
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
        """Prepare the next schedule; return False if there is none."""
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
    """Something that happens to the world in place of a turn, up to `times` times."""

    __slots__ = ("do", "footprint", "times")

    def __init__(self, do, footprint=EVERYTHING, times=1):
        self.do = do
        self.footprint = footprint
        self.times = times


class Scheduler:
    """Runs named clients (functions without arguments) to their ends, one turn at a time.

    `on_switch` is called with the client that runs next; `world` returns the state apart from the clients; `memories`
    is a dict that may be kept as long as the clients behave the same.
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
        self._results = {}
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
        """Wait for a turn. Outside of a run (before and after it) return at once.

        `touches(*arguments)` returns what will be read and written; it is called only when needed, since the meaning
        of a path may change while its client waits.
        """
        if not self.inside:
            return
        if self._closing:
            raise GreenletExit  # the client was killed or abandoned: it must not do anything more
        self._turns[self.current] = (kind, touches, arguments)
        self._hub.switch()

    def choose(self, options):
        """Return a number below `options`, decided by the chooser."""
        return self._chooser.choose(options) if self.inside else 0

    def note(self, fact):
        """Record a result that the client got: its next steps depend on nothing else."""
        if self.inside and self.compares:
            self._results[self.current] = hash((self._results[self.current], fact))

    def remember(self, memory):
        """Forget the results of the client: from now on it depends only on what `memory()` returns.

        The same results give the same memory, so each memory is computed once.
        """
        if self.compares and self.inside and not self._closing:
            results = self._results[self.current]
            if results not in self._memories:
                self._memories[results] = hash((self.current, memory()))
            self._results[self.current] = self._memories[results]

    def kill(self, name):
        """End a client where it stands, as SIGKILL would: none of its code runs again."""
        self._dead.append(self._clients.pop(name))  # kept: collecting it now would run its finally blocks
        del self._turns[name]
        self.killed.add(name)

    # --- for choosers --------------------------------------------------------------------------------------

    def agents(self):
        """Return the agents that can run next: first the one that ran last, clients before events."""
        agents = list(self._clients)
        if agents[0] != self._last and self._last in self._clients:
            agents.remove(self._last)
            agents.insert(0, self._last)
        for name, event in self._events.items():
            if event.times and (event.footprint.whom is None or event.footprint.whom in self._clients):
                agents.append(name)
        return agents

    def turns(self):
        """Return the footprint of the next turn of each agent."""
        events = {name: event.footprint for name, event in self._events.items()}
        for name, (_, touches, arguments) in self._turns.items():
            events[name] = EVERYTHING if touches is None else Footprint(*touches(*arguments))
        return events

    def state(self):
        """Return a hash of the world as it is now."""
        events = tuple(event.times for event in self._events.values())
        results = tuple(sorted(self._results.items()))
        return hash((results, events, frozenset(self.killed), self._world()))

    # --- the run -------------------------------------------------------------------------------------------

    def run(self, clients, events=None):
        """Run all clients to their ends."""
        self._hub = getcurrent()
        self._events = events or {}
        pick = self._chooser.pick
        try:
            for name, body in clients.items():
                self._clients[name] = greenlet(self._guard(name, body))
                self._turns[name] = ("start", reading, ())
                self._results[name] = hash(name)
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
                    self._results[last] = hash((self._results[last], 0))
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
            except BaseException as error:  # noqa: BLE001 - the caller judges it
                self.errors[name] = error
            self._clients.pop(name, None)
            self._turns.pop(name, None)

        return run

    def _end(self):
        """End unfinished clients without letting them do anything more."""
        self._closing = self.inside = True
        for client in [*self._clients.values(), *self._dead]:
            if client:
                client.throw(GreenletExit)
        self._clients.clear()
        self._closing = self.inside = False


# --- many runs ---------------------------------------------------------------------------------------------


def shorten(choices, fails):
    """Return the smallest list of choices found that still fails; `fails(choices)` replays them."""
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
