"""The plans of the explorer: complete for two clients, random for three and four, on every layout."""

import dataclasses
import itertools
import zlib
from collections.abc import Iterator

from lab import explore
from lab.explore import Plan

NFS = {"fstype": "nfs4"}
#: A tick after which a bucket is over, and leases that outlast it.
MINUTES = {"ticks": 1, "tick": 130.0, "settings": (("lease", 1000.0),)}
#: Violations that the other layouts cannot exclude if replies are lost (docs/layouts.md); no put is ever lost.
NO_FENCE = ("false loss", "blind", "twice", "back", "acked twice", "two holders")
#: And on any filesystem: a lock of dirq may be missing for a moment while a client checks whether it is stale.
FORGIVEN = {"vsqs": (), "dirq-simple": ("false loss",), "dirq-normal": ("false loss",)}
OTHERS = ("vsqs", "dirq-simple", "dirq-normal")


def other(layout, text, **more):
    """Return a plan for another layout; violations that it cannot exclude are ignored."""
    forgiven = NO_FENCE if more.get("lossy") else FORGIVEN[layout]
    if layout == "dirq-normal" and more.get("ticks"):
        forgiven += (
            "blind",
        )  # an unlock changes no directory that a cursor looks at: the next listing finds it
    return Plan.of(text, layout=layout, forgiven=forgiven, **more)


#: Short bodies are symbolic links.
LINKS = (("links", True),)

#: Two clients of up to four operations, all schedules: name -> (plan, minimum of runs). Every get looks at leased/,
#: which every claim and end of the other changes: pairs of four that give back or renew twice are for the campaign.
COMPLETE = {
    "two consumers": (Plan.of("gaga|gaga"), 9000),
    "two consumers, one gets two": (Plan.of("gaga|ggaa"), 7000),
    "both get two": (Plan.of("ggaa|ggaa", before="pp"), 20_000),
    "release": (Plan.of("gl|ga"), 900),
    "renew": (Plan.of("gaga|gnga"), 15_000),
    "both renew": (Plan.of("gna|gna"), 3500),
    "retry": (Plan.of("gr|ga", before="pgr"), 2800),
    "retry with a reason": (Plan.of("gt|ga", before="pgr"), 12_000),
    "reject and redrive": (Plan.of("gj|gjd"), 12_000),
    "two redrives": (Plan.of("d|dga", before="pgj"), 50),
    "a producer and a consumer": (Plan.of("pp|gaga"), 800),
    "a producer that consumes": (Plan.of("ga|Pga"), 4500),
    "a batch": (Plan.of("P|gaga", before=""), 100),
    "purge beside a consumer": (Plan.of("gaga|ugau"), 7000),
    "purge beside a producer": (Plan.of("uu|pp"), 250),
    "a lease runs out": (Plan.of("g|g", ticks=1), 25_000),
    "a consumer dies": (Plan.of("ga|ga", kills=1), 900),
    "a producer dies": (Plan.of("p|gaga", kills=1), 300),
    "a lost reply": (Plan.of("ga|p", lossy=1, **NFS), 150),
    "a lost reply of two consumers": (Plan.of("ga|ga", lossy=1, **NFS), 9000),
    "published by link": (Plan.of("p|gaga", before="", noreplace=False), 600),
    "published by rename": (Plan.of("pp|ga", before="", noreplace=False, links=False), 1400),
    "slices": (Plan.of("p|ga", before="p", sliced=True), 20),
    "history": (Plan.of("ga|ga", settings=(("keep_done", True),)), 6000),
    "no rooms yet": (Plan.of("ga|ga", before="pp", rooms=False), 1300),
    "a bucket goes under a purge": (Plan.of("y|u", before="", **MINUTES), 15_000),
    "a delay is over": (Plan.of("g|g", before="y", ticks=1), 5500),
    "short messages": (Plan.of("pp|gaga", settings=LINKS), 1900),
    "short messages of two consumers": (Plan.of("ga|ga", settings=LINKS), 900),
    "short messages, a producer dies": (Plan.of("p|ga", before="", kills=1, settings=LINKS), 650),
    "short messages, a lost reply of a producer": (
        Plan.of("p|ga", before="", lossy=1, settings=LINKS, **NFS),
        800,
    ),
    "short messages, a lost reply": (Plan.of("ga|p", lossy=1, settings=LINKS, **NFS), 350),
    "short messages in a batch": (Plan.of("P|ga", before="", settings=LINKS), 200),
    "short messages in slices": (Plan.of("p|ga", before="p", sliced=True, settings=LINKS), 60),
    **{
        f"{layout} {text}": (other(layout, text), 20)
        for layout in OTHERS
        for text in ("ga|ga", "p|ga", "gl|ga", "gna|ga", "u|ga")
    },
}

#: Three and four clients at random: name -> (plan, number of schedules).
MANY = {
    "three consumers and time": (Plan.of("gna|ga|ga", ticks=2), 4000),
    "three consumers": (Plan.of("ga|ga|ga", before="pp"), 4000),
    "a producer and two consumers": (Plan.of("p|ga|gl"), 4000),
    "release, retry and ack": (Plan.of("gl|gr|ga", ticks=1), 4000),
    "everything": (Plan.of("pp|gtga|glga|u", ticks=1), 1500),
    "the dead": (Plan.of("gjd|gjd|ga", before="pp", ticks=1), 1500),
    "batches": (Plan.of("P|gaga|gt|u", before="P", ticks=1), 1200),
    "lost replies": (Plan.of("pp|gnga|gl|u", lossy=3, ticks=1, **NFS), 1500),
    "lost replies of consumers": (Plan.of("ga|gl|gna", before="pp", lossy=2, **NFS), 3000),
    "lost replies without links": (
        Plan.of("P|gtga|gjd", before="p", lossy=3, noreplace=False, **NFS),
        1500,
    ),
    "kills": (Plan.of("gna|gtga|p|u", before="pp", ticks=1, kills=2), 1800),
    "kills of consumers": (Plan.of("ga|gl|ga", before="pp", ticks=1, kills=2), 4000),
    "kills and lost replies": (Plan.of("p|gna|ga", ticks=1, kills=1, lossy=1, **NFS), 3000),
    "history": (Plan.of("ga|gna|gt", before="pp", ticks=1, settings=(("keep_done", True),)), 1800),
    "delays": (Plan.of("yga|ga|gt", before="y", ticks=1), 1800),
    "buckets come and go": (Plan.of("y|gr|ggaa|u", before="y", **{**MINUTES, "ticks": 2}), 1800),
    "buckets and kills": (Plan.of("y|gt|gga", before="y", kills=2, **{**MINUTES, "ticks": 2}), 1800),
    "buckets and lost replies": (Plan.of("y|gr|gga", before="y", lossy=2, **MINUTES, **NFS), 1800),
    "no rooms yet": (Plan.of("ga|gl|gt", before="pp", rooms=False, kills=1, ticks=1), 1800),
    "links": (Plan.of("pP|gtga|gl|u", ticks=1, settings=LINKS), 1800),
    "links and kills": (Plan.of("py|gjd|ga", before="P", ticks=1, kills=2, settings=LINKS), 1200),
    "links and lost replies": (Plan.of("pp|gna|gr|u", lossy=2, settings=LINKS, **NFS), 1200),
    "slices": (Plan.of("pp|gaga|u", sliced=True, ticks=1), 2500),
    "slices and kills": (Plan.of("p|glga|ga", sliced=True, ticks=1, kills=1), 2500),
    "slices and lost replies": (Plan.of("pp|gna|gr|u", sliced=True, lossy=2, **NFS), 1500),
    **{
        f"{layout} {text} {' '.join(more) or 'undisturbed'}": (other(layout, text, **more), 1800)
        for layout in OTHERS
        for text, more in (
            ("pp|gaga|u", {}),
            ("ga|gl|ga", {"ticks": 1}),
            ("gna|ga|p", {"ticks": 1, "kills": 1}),
            ("glga|ga|u", {"ticks": 1}),
            ("grga|gl|P|u", {"ticks": 1}),
            ("pp|gna|gl|u", {"lossy": 2, **NFS}),
        )
    },
}

#: A queue in one file, whose clients wait for a lock: at random, because a search through all waits has no end.
TEXT = {
    "two consumers": (Plan.of("gaga|ggaa", layout="text", before="pp"), 1500),
    "a producer and two consumers": (Plan.of("pp|ga|gl", layout="text"), 1500),
    "a batch": (Plan.of("P|gaga|gl", layout="text", before=""), 1500),
    "time": (Plan.of("gna|ga|ga", layout="text", ticks=2), 1500),
    "kills of consumers": (Plan.of("ga|gl|ga", layout="text", before="pp", ticks=1, kills=2), 1500),
    "kills of producers": (Plan.of("pp|P|gaga", layout="text", kills=2), 1500),
    "the dead": (Plan.of("gjd|gjd|ga", layout="text", before="pp", ticks=1), 1500),
    "retries and delays": (Plan.of("yga|gt|grga", layout="text", before="y", ticks=1), 1500),
    "everything": (Plan.of("pp|gtga|glga|u", layout="text", ticks=1, kills=1), 1500),
}

#: The programs of the campaign: all pairs completely, groups of three and four at random.
PROGRAMS = (
    "gaga", "ggaa", "glga", "grga", "gnga", "gnla", "gjdg", "gtga", "pgap", "pp", "P", "uu", "dga", "ugau",
)  # fmt: skip
#: With short messages as links; delayed puts while buckets come and go are paired in `pairs`.
LINKED_PROGRAMS = ("gaga", "grga", "gnga", "pp", "P", "uu")
SIMPLE_PROGRAMS = ("gaga", "ggaa", "glga", "grga", "gnga", "pgap", "pp", "P", "uu", "ugau")
FAULTS = ({}, {"ticks": 1}, {"kills": 1}, {"lossy": 2, **NFS}, {"noreplace": False}, {"sliced": True})


def pairs() -> Iterator[Plan]:
    """Yield all pairs of programs: on the native layout, on the others, with links, and while buckets come and go."""
    for one, two in itertools.combinations_with_replacement(PROGRAMS, 2):
        yield Plan.of(f"{one}|{two}", before="pp" if "d" not in one + two else "pgj")
    for layout in OTHERS:
        for one, two in itertools.combinations_with_replacement(SIMPLE_PROGRAMS, 2):
            yield other(layout, "|".join(_one_producer(layout, [one, two])))
    for one, two in itertools.combinations_with_replacement(LINKED_PROGRAMS, 2):
        yield Plan.of(f"{one}|{two}", before="p", settings=LINKS)
    for before, two in itertools.product(("", "y"), ("g", "u", "gr", "gt")):
        yield Plan.of(f"y|{two}", before=before, **MINUTES)


def _one_producer(layout, programs):
    """Leave only one producer on vsqs: it relies on puts in different microseconds, and here the clock stands still."""
    if layout != "vsqs":
        return programs
    producers = [place for place, program in enumerate(programs) if "p" in program.lower()]
    return ["gaga" if place in producers[1:] else program for place, program in enumerate(programs)]


def threes_and_fours(number) -> Plan:
    """Return a mixture of programs, faults and a layout that depends only on the number."""
    dice = zlib.crc32(str(number).encode())
    layout = ("native", "native", *OTHERS)[number % 5]
    programs = PROGRAMS if layout == "native" else SIMPLE_PROGRAMS
    some = [programs[(dice >> shift) % len(programs)] for shift in (3, 9, 15, 21)[: 3 + number % 2]]
    faults = {**FAULTS[dice % len(FAULTS)], "ticks": (dice >> 5) % 3}
    if layout == "native":
        return Plan.of("|".join(some), before="pp", **faults)
    faults = {name: value for name, value in faults.items() if name != "sliced"}
    plan = other(layout, "|".join(_one_producer(layout, some)), before="pp", **faults)
    if layout != "vsqs":
        # A live lock mistaken for a stale one is put back, and another client may have locked meanwhile (D7 of dirq).
        plan = dataclasses.replace(plan, forgiven=(*plan.forgiven, "two holders"))
    return plan


def campaign(scale: float) -> tuple[int, str, list[str]]:
    """Run all pairs of programs, completely where 200,000 x scale runs are enough, then groups of three and four.

    Return the number of schedules, a detail for the table, and the violations. Scale 1 takes about an hour.
    """
    whole = cut = complete = count = 0
    wrong: list[str] = []
    for plan in pairs():
        done, pruned, all_of_them, failure = explore.exhaust(plan, max(200, int(200_000 * scale)))
        whole, cut, complete, count = whole + done, cut + pruned, complete + all_of_them, count + 1
        wrong += [str(failure)] if failure else []
    exhausted = whole
    for number in range(max(2, int(4000 * scale))):
        done, failure = explore.wander(threes_and_fours(number), 500, seed=number)
        whole += done
        wrong += [str(failure)] if failure else []
    detail = (
        f"{complete} of {count} pairs of programs complete ({exhausted:,} schedules run to their ends and "
        f"{cut:,} cut where every continuation had been tried); {whole - exhausted:,} at random with 3 or 4 clients"
    )
    return whole + cut, detail, wrong
