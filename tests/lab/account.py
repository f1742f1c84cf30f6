"""The record of a run: what was promised, what was delivered, and whether both agree.

It knows queues in general (put, get, and how leases end), but no implementation. Bodies are unique, so a body
identifies a message.
"""

from dataclasses import dataclass, field

#: Ends after which any consumer may claim the message at once.
GIVEN_BACK = frozenset(("release", "retry"))


@dataclass
class Hold:
    """One delivery, as seen by its consumer."""

    client: str
    number: int  # which get of this consumer it was
    body: bytes
    until: float
    ending: bool = False  # an end was begun
    ended: str = ""

    def values(self):
        return (self.body, self.client, self.number, self.until, self.ending, self.ended)


@dataclass
class Books:
    margin: float = 0.0
    #: The least time that a lease must have left when it is handed out.
    least: float = 0.0
    #: Whether an ack that raised LeaseLost may have succeeded: in formats that cannot detect a lost reply.
    unsure: bool = False
    #: After so many deliveries an expired lease is no longer free; 0: where an expired lease is freed by a purge only.
    attempts: int = 0
    promised: set = field(default_factory=set)  # bodies whose put has returned
    tried: set = field(default_factory=set)  # bodies passed to a put, whatever its outcome
    holds: list = field(default_factory=list)
    acked: set = field(default_factory=set)
    maybe_acked: set = field(default_factory=set)  # an ack was begun and its outcome is unknown
    begun: dict = field(
        default_factory=dict
    )  # client -> (number of the get, what was free then, what was acked then)
    empties: list = field(default_factory=list)
    due: dict = field(default_factory=dict)  # body -> when its delay is over
    inside: set = field(default_factory=set)  # clients in a get
    crowded: set = field(default_factory=set)  # those of them that were not alone in theirs
    wrong: list = field(default_factory=list)
    _digest: int | None = None

    def say(self, kind, text):
        self.wrong.append((kind, text))

    def digest(self):
        """Return a hash of everything that a later verdict can depend on."""
        if self._digest is None:
            holds = sorted((hold.values() for hold in self.holds), key=lambda values: values[0])
            self._digest = hash(
                (
                    frozenset(self.promised),
                    frozenset(self.acked),
                    frozenset(self.maybe_acked),
                    frozenset(self.due.items()),
                    frozenset(self.inside),
                    frozenset(self.crowded),
                    tuple(holds),
                    frozenset(self.begun.items()),
                    frozenset(self.empties),
                )
            )
        return self._digest

    # --- producers ---------------------------------------------------------------------------------------

    def putting(self, *bodies):
        self.tried.update(bodies)

    def put(self, *bodies, due=None):
        """Record a put that returned; `due` is when its delay is over at the latest."""
        self._digest = None
        self.promised.update(bodies)
        if due is not None:
            self.due.update(dict.fromkeys(bodies, due))

    # --- consumers ---------------------------------------------------------------------------------------

    def getting(self, client, now):
        """Record that a client begins a get."""
        self._digest = None
        number = self.begun[client][0] + 1 if client in self.begun else 1
        busy = {hold.body for hold in self.holds if not self._is_over(hold, now)}
        busy |= {body for body, due in self.due.items() if due > now}
        free = frozenset((body, self._deliveries(body)) for body in self.promised - busy)
        self.begun[client] = (number, free, frozenset(self.acked))
        if self.inside:
            self.crowded |= {client, *self.inside}
        self.inside.add(client)

    def _is_over(self, hold, now):
        """Return whether others may claim the message: it was given back, or its lease and the margin are over."""
        if hold.ended in GIVEN_BACK:
            return True
        expired = not hold.ended and not hold.ending and hold.until + self.margin <= now
        return expired and self._deliveries(hold.body) < self.attempts

    def _leave(self, client):
        """Record the end of a get; return whether the client was alone in it."""
        alone = client not in self.crowded
        self.inside.discard(client)
        self.crowded.discard(client)
        return alone

    def _deliveries(self, body):
        return sum(hold.body == body for hold in self.holds)

    def got(self, client, body, until, returned, now):
        """Record a delivery and check it; times are in seconds.

        `returned` is when the get returned, `now` when its consumer reports it.
        """
        self._digest = None
        self._leave(client)
        number, _, acked = self.begun[client]
        if body not in self.tried:
            self.say("nowhere", f"{client} got {body!r}, which was never put")
        if body in acked:
            self.say("back", f"{client} got {body!r} after it was acknowledged")
        if until - returned < self.least:
            self.say("born old", f"{client} got {body!r} with {until - returned:g} s left")
        for other in self.holds:
            live = other.body == body and not other.ended and not other.ending
            # A lease that expired before it was handed out (its consumer was stopped) does not count.
            if live and other.until + self.margin > now and until > now:
                self.say(
                    "two holders",
                    f"{client} got {body!r} while {other.client} held it for another {other.until - now:g} s",
                )
        hold = Hold(client, number, body, until)
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
                self.say(
                    "acked twice", f"{hold.client} acknowledged {hold.body!r}, which was acknowledged before"
                )
            self.acked.add(hold.body)

    def renewed(self, hold, until):
        self._digest = None
        hold.until = until
        hold.ending = False

    def lost(self, hold, now, *, verb):
        """Record a LeaseLost: right only if the lease had expired or the message was delivered again since."""
        self._digest = None
        hold.ended = "lost"
        since = self.holds[self.holds.index(hold) + 1 :]
        if now < hold.until and not any(other.body == hold.body for other in since):
            self.say(
                "false loss",
                f"{verb} of {hold.body!r} by {hold.client}: lease reported lost, but it was live",
            )
        if (
            verb == "ack"
            and not self.unsure
            and not any(other.ending and other is not hold for other in self.holds if other.body == hold.body)
        ):
            self.maybe_acked.discard(hold.body)

    def empty(self, client):
        """Record an Empty: right only if no message was free during the whole get. Judged at the end, by `settle`."""
        self._digest = None
        number, free, _ = self.begun[client]
        untouched = frozenset(body for body, count in free if self._deliveries(body) == count)
        # Other clients in a get may already have it, and report that later.
        looking = frozenset((other, self.begun[other][0]) for other in self.inside - {client})
        self.empties.append((client, number, untouched, looking, self._leave(client)))

    def _check_empties(self, *, disturbed):
        for client, _, untouched, looking, alone in self.empties:
            # A client that was killed, or stopped until its lease was over, may have had it and never reports that.
            if disturbed and not alone:
                continue
            for body in untouched:
                if not any(
                    hold.body == body and (hold.client, hold.number) in looking for hold in self.holds
                ):
                    self.say("blind", f"{client} found nothing while {body!r} was free")

    # --- the end -----------------------------------------------------------------------------------------

    def settle(self, left, dead=(), *, disturbed=False):
        """Compare with what is in the queue when all clients are done; `left` and `dead` list bodies.

        `disturbed`: clients were killed, or time has passed.
        """
        there = [*left, *dead]
        self._check_empties(disturbed=disturbed)
        for body in set(there):
            if body not in self.tried:
                self.say("nowhere", f"{body!r} is in the queue, but was never put")
            if there.count(body) > 1:
                self.say("twice", f"{body!r} is in the queue {there.count(body)} times")
            if body in self.acked:
                self.say("back", f"{body!r} is in the queue although it was acknowledged")
        for body in self.promised:
            if body not in there and body not in self.acked and body not in self.maybe_acked:
                self.say("lost", f"{body!r} was put and is missing")
        return self.wrong
