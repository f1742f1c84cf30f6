"""Keeping the books of a run: what was promised, what was delivered, and whether the two agree.

Knows queues in general (put, get, and the ways a lease ends), not how any of them works. Bodies are unique, so that
a body names a message.
"""

from dataclasses import dataclass, field


@dataclass
class Hold:
    """One delivery, as its consumer sees it."""

    who: str
    body: bytes
    began: int
    got: int
    until: float
    attempts: int = 0
    ending: int | None = None  # the step at which an end was asked for
    ended: str = ""


@dataclass
class Books:
    margin: float = 0.0
    promised: dict = field(default_factory=dict)  # body -> step at which put returned
    tried: set = field(default_factory=set)  # bodies given to a put, whatever came of it
    holds: list = field(default_factory=list)
    acked: dict = field(default_factory=dict)  # body -> step
    maybe_acked: set = field(default_factory=set)  # an ack was begun and its outcome is unknown
    empties: list = field(default_factory=list)
    hidden: set = field(default_factory=set)  # delayed on purpose, or claimed by somebody who was killed
    wrong: list = field(default_factory=list)

    def say(self, kind, text):
        self.wrong.append((kind, text))

    # --- producers ---------------------------------------------------------------------------------------

    def putting(self, *bodies):
        self.tried.update(bodies)

    def put(self, step, *bodies):
        for body in bodies:
            self.promised[body] = step

    # --- consumers ---------------------------------------------------------------------------------------

    def got(self, who, body, began, step, until, now, attempts=0):
        """Enter a delivery and check it against what else is known; times are seconds."""
        if body not in self.tried:
            self.say("nowhere", f"{who} got {body!r}, which nobody put")
        if body in self.acked and self.acked[body] <= began:
            self.say("back", f"{who} got {body!r} after it was acknowledged")
        for other in self.holds:
            live = other.body == body and not other.ended and other.ending is None
            # One that ran out before it was handed over (its consumer was asleep) is as good as none.
            if live and other.until + self.margin > now and until > now:
                self.say(
                    "two holders",
                    f"{who} got {body!r} while {other.who} held it for another {other.until - now:g} s",
                )
        hold = Hold(who, body, began, step, until, attempts)
        self.holds.append(hold)
        return hold

    def ending(self, hold, step, verb=""):
        hold.ending = step
        if verb == "ack":
            self.maybe_acked.add(hold.body)

    def ended(self, hold, how, step):
        hold.ended = how
        if how == "ack":
            if hold.body in self.acked:
                self.say("acked twice", f"{hold.who} acknowledged {hold.body!r}, which was done before")
            self.acked[hold.body] = step

    def renewed(self, hold, until):
        hold.until = until
        hold.ending = None

    def lost(self, hold, now, *, verb):
        """A lease was reported lost: right only if it had run out, or somebody else has it."""
        hold.ended = "lost"
        others = [h for h in self.holds if h is not hold and h.body == hold.body and h.got >= hold.got]
        if now < hold.until and not others:
            self.say(
                "false loss", f"{verb} of {hold.body!r} by {hold.who}: lease reported lost, but it was live"
            )

    def empty(self, who, began, step):
        """Nothing was found: right only if no message lay there all the time. Judged at the end, by `settle`."""
        self.empties.append((who, began, step))

    def _check_empties(self):
        for who, began, step in self.empties:
            for body, put in self.promised.items():
                if (
                    body not in self.hidden
                    and put < began
                    and not any(h.body == body and h.began <= step for h in self.holds)
                ):
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
