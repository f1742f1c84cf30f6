"""Keeping the books of a run: what was promised, what was delivered, and whether the two agree.

Knows queues in general (put, get, and the ways a lease ends), not how any of them works. Bodies are unique, so that
a body names a message.
"""

from dataclasses import dataclass, field

#: Ends after which anybody may have the message at once.
GIVEN_BACK = frozenset(("release", "retry"))


@dataclass
class Hold:
    """One delivery, as its consumer sees it."""

    who: str
    number: int  # of all the gets of this consumer
    body: bytes
    until: float
    ending: bool = False  # an end was asked for
    ended: str = ""

    def told(self):
        return (self.body, self.who, self.number, self.until, self.ending, self.ended)


@dataclass
class Books:
    margin: float = 0.0
    #: A lease with less than this left when it is handed over was not worth having.
    least: float = 0.0
    #: Whether an ack that says "lost" may have been done all the same: in formats that cannot tell a lost reply.
    unsure: bool = False
    promised: set = field(default_factory=set)  # bodies whose put has returned
    tried: set = field(default_factory=set)  # bodies given to a put, whatever came of it
    holds: list = field(default_factory=list)
    acked: set = field(default_factory=set)
    maybe_acked: set = field(default_factory=set)  # an ack was begun and its outcome is unknown
    begun: dict = field(default_factory=dict)  # who -> (number, what lay free then, what was acked then)
    empties: list = field(default_factory=list)
    hidden: set = field(default_factory=set)  # delayed on purpose, or claimed by somebody who was killed
    wrong: list = field(default_factory=list)
    _digest: int | None = None

    def say(self, kind, text):
        self.wrong.append((kind, text))

    def digest(self):
        """Return a number for all that is known and that a later verdict can depend on."""
        if self._digest is None:
            holds = sorted((hold.told() for hold in self.holds), key=lambda told: told[0])
            self._digest = hash(
                (
                    frozenset(self.promised),
                    frozenset(self.acked),
                    frozenset(self.maybe_acked),
                    frozenset(self.hidden),
                    tuple(holds),
                    frozenset(self.begun.items()),
                    frozenset(self.empties),
                )
            )
        return self._digest

    # --- producers ---------------------------------------------------------------------------------------

    def putting(self, *bodies):
        self.tried.update(bodies)

    def put(self, *bodies, delayed=False):
        self._digest = None
        self.promised.update(bodies)
        if delayed:
            self.hidden.update(bodies)

    # --- consumers ---------------------------------------------------------------------------------------

    def getting(self, who):
        """Somebody begins to look for a message."""
        self._digest = None
        number = self.begun[who][0] + 1 if who in self.begun else 1
        busy = {hold.body for hold in self.holds if hold.ended not in GIVEN_BACK}
        free = frozenset((body, self._deliveries(body)) for body in self.promised - busy)
        self.begun[who] = (number, free, frozenset(self.acked))

    def _deliveries(self, body):
        return sum(hold.body == body for hold in self.holds)

    def got(self, who, body, until, returned, now):
        """Enter a delivery and check it against what else is known; times are seconds.

        `returned` is when it was handed over, `now` when its consumer came to tell.
        """
        self._digest = None
        number, _, acked = self.begun[who]
        if body not in self.tried:
            self.say("nowhere", f"{who} got {body!r}, which nobody put")
        if body in acked:
            self.say("back", f"{who} got {body!r} after it was acknowledged")
        if until - returned < self.least:
            self.say("born old", f"{who} got {body!r} with {until - returned:g} s left")
        for other in self.holds:
            live = other.body == body and not other.ended and not other.ending
            # One that ran out before it was handed over (its consumer was asleep) is as good as none.
            if live and other.until + self.margin > now and until > now:
                self.say(
                    "two holders",
                    f"{who} got {body!r} while {other.who} held it for another {other.until - now:g} s",
                )
        hold = Hold(who, number, body, until)
        self.holds.append(hold)
        return hold

    def ending(self, hold, verb=""):
        self._digest = None
        hold.ending = True
        if verb == "ack":
            self.maybe_acked.add(hold.body)

    def ended(self, hold, how):
        self._digest = None
        hold.ended = how
        if how == "ack":
            if hold.body in self.acked:
                self.say("acked twice", f"{hold.who} acknowledged {hold.body!r}, which was done before")
            self.acked.add(hold.body)

    def renewed(self, hold, until):
        self._digest = None
        hold.until = until
        hold.ending = False

    def lost(self, hold, now, *, verb):
        """A lease was reported lost: right only if it had run out, or somebody else has had it since."""
        self._digest = None
        hold.ended = "lost"
        since = self.holds[self.holds.index(hold) + 1 :]
        if now < hold.until and not any(other.body == hold.body for other in since):
            self.say(
                "false loss", f"{verb} of {hold.body!r} by {hold.who}: lease reported lost, but it was live"
            )
        if (
            verb == "ack"
            and not self.unsure
            and not any(other.ending and other is not hold for other in self.holds if other.body == hold.body)
        ):
            self.maybe_acked.discard(hold.body)

    def empty(self, who):
        """Nothing was found: right only if no message lay there all the time. Judged at the end, by `settle`."""
        self._digest = None
        number, free, _ = self.begun[who]
        untouched = frozenset(body for body, count in free if self._deliveries(body) == count)
        # Others that are looking may have it already, and tell only later.
        looking = frozenset((other, begun[0]) for other, begun in self.begun.items() if other != who)
        self.empties.append((who, number, untouched, looking))

    def _check_empties(self):
        for who, _, untouched, looking in self.empties:
            for body in untouched - self.hidden:
                if not any(hold.body == body and (hold.who, hold.number) in looking for hold in self.holds):
                    self.say("blind", f"{who} found nothing while {body!r} lay there")

    # --- the end -----------------------------------------------------------------------------------------

    def settle(self, left, dead=()):
        """Compare with what is in the queue when everybody is done; `left` and `dead` list bodies."""
        there = [*left, *dead]
        self._check_empties()
        for body in set(there):
            if body not in self.tried:
                self.say("nowhere", f"{body!r} is in the queue, and nobody put it")
            if there.count(body) > 1:
                self.say("twice", f"{body!r} is in the queue {there.count(body)} times")
            if body in self.acked:
                self.say("back", f"{body!r} is in the queue although it was acknowledged")
        for body in self.promised:
            if body not in there and body not in self.acked and body not in self.maybe_acked:
                self.say("lost", f"{body!r} was put and is nowhere")
        return self.wrong
