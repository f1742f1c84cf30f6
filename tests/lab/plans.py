"""The plans of the explorer: complete for two clients, random for three and four, on every layout."""

import dataclasses
import itertools
import zlib
from collections.abc import Iterator

from lab import explore
from lab.explore import Plan

NFS = {"fstype": "nfs4"}
#: Violations that the other layouts cannot exclude if replies are lost (docs/layouts.md); no put is ever lost.
NO_FENCE = ("false loss", "blind", "twice", "back", "acked twice", "two holders")
#: And on any filesystem: a lock of dirq may be missing for a moment while a client checks whether it is stale.
FORGIVEN = {"vsqs": (), "dirq-simple": ("false loss",), "dirq-normal": ("false loss",)}
OTHERS = ("vsqs", "dirq-simple", "dirq-normal")


def other(layout, text, **more):
    """Return a plan for another layout; violations that it cannot exclude are ignored."""
    forgiven = NO_FENCE if more.get("lossy") else FORGIVEN[layout]
    return Plan.of(text, layout=layout, forgiven=forgiven, **more)


#: Two clients of up to four operations, all schedules: name -> (plan, minimum of runs).
COMPLETE = {
    "two consumers": (Plan.of("gaga|gaga"), 2700),
    "two consumers, one gets two": (Plan.of("gaga|ggaa"), 1900),
    "both get two": (Plan.of("ggaa|ggaa", before="pp"), 6000),
    "release": (Plan.of("gaga|glga"), 13500),
    "release beside a consumer of two": (Plan.of("ggaa|glga"), 9800),
    "renew": (Plan.of("gaga|gnga"), 3700),
    "both renew": (Plan.of("gnga|gnga"), 4700),
    "retry": (Plan.of("grga|ga"), 7400),
    "retry with a reason": (Plan.of("gt|ga"), 2000),
    "reject and redrive": (Plan.of("gjd|gjd"), 10000),
    "two redrives": (Plan.of("d|dga", before="pgj"), 50),
    "a producer and a consumer": (Plan.of("pp|gaga"), 800),
    "a producer that consumes": (Plan.of("gaga|Pga"), 5600),
    "a batch": (Plan.of("P|gaga", before=""), 100),
    "purge beside a consumer": (Plan.of("gaga|ugau"), 1800),
    "purge beside a producer": (Plan.of("uu|pp"), 250),
    "a lease runs out": (Plan.of("ga|ga", ticks=1), 10500),
    "a consumer dies": (Plan.of("ga|ga", kills=1), 900),
    "a producer dies": (Plan.of("p|gaga", kills=1), 300),
    "a lost reply": (Plan.of("ga|p", lossy=1, **NFS), 150),
    "a lost reply of two consumers": (Plan.of("ga|ga", lossy=1, **NFS), 2700),
    "published by link": (Plan.of("pp|gaga", before="", noreplace=False), 4000),
    "published by rename": (Plan.of("pp|gaga", before="", noreplace=False, links=False), 1500),
    "slices": (Plan.of("p|ga", before="p", sliced=True), 20),
    "history": (Plan.of("ga|ga", settings=(("keep_done", True),)), 1300),
    **{
        f"{layout} {text}": (other(layout, text), 20)
        for layout in OTHERS
        for text in ("ga|ga", "p|ga", "gl|ga", "gna|ga", "u|ga")
    },
}

#: Three and four clients at random: name -> (plan, number of schedules).
MANY = {
    "three consumers and time": (Plan.of("gna|ga|ga", ticks=2), 13_000),
    "three consumers": (Plan.of("ga|ga|ga", before="pp"), 13_000),
    "a producer and two consumers": (Plan.of("p|ga|gl"), 13_000),
    "release, retry and ack": (Plan.of("gl|gr|ga", ticks=1), 13_000),
    "everything": (Plan.of("pp|gtga|glga|u", ticks=1), 5000),
    "the dead": (Plan.of("gjd|gjd|ga", before="pp", ticks=1), 5000),
    "batches": (Plan.of("P|gaga|gt|u", before="P", ticks=1), 4000),
    "lost replies": (Plan.of("pp|gnga|gl|u", lossy=3, ticks=1, **NFS), 5000),
    "lost replies of consumers": (Plan.of("ga|gl|gna", before="pp", lossy=2, **NFS), 10_000),
    "lost replies without links": (
        Plan.of("P|gtga|gjd", before="p", lossy=3, noreplace=False, **NFS),
        5000,
    ),
    "kills": (Plan.of("gna|gtga|p|u", before="pp", ticks=1, kills=2), 6000),
    "kills of consumers": (Plan.of("ga|gl|ga", before="pp", ticks=1, kills=2), 13_000),
    "kills and lost replies": (Plan.of("p|gna|ga", ticks=1, kills=1, lossy=1, **NFS), 10_000),
    "history": (Plan.of("ga|gna|gt", before="pp", ticks=1, settings=(("keep_done", True),)), 6000),
    "delays": (Plan.of("yga|ga|gt", before="y", ticks=1), 6000),
    "slices": (Plan.of("pp|gaga|u", sliced=True, ticks=1), 8000),
    "slices and kills": (Plan.of("p|glga|ga", sliced=True, ticks=1, kills=1), 8000),
    "slices and lost replies": (Plan.of("pp|gna|gr|u", sliced=True, lossy=2, **NFS), 5000),
    **{
        f"{layout} {text} {' '.join(more) or 'undisturbed'}": (other(layout, text, **more), 3000)
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

#: The programs of the campaign: all pairs completely, groups of three and four at random.
PROGRAMS = (
    "gaga", "ggaa", "glga", "grga", "gnga", "gnla", "gjdg", "gtga", "pgap", "pp", "P", "uu", "dga", "ugau",
)  # fmt: skip
SIMPLE_PROGRAMS = ("gaga", "ggaa", "glga", "grga", "gnga", "pgap", "pp", "P", "uu", "ugau")
FAULTS = ({}, {"ticks": 1}, {"kills": 1}, {"lossy": 2, **NFS}, {"noreplace": False}, {"sliced": True})


def pairs() -> Iterator[Plan]:
    """Yield all pairs of programs, on the native layout and then on the others."""
    for one, two in itertools.combinations_with_replacement(PROGRAMS, 2):
        yield Plan.of(f"{one}|{two}", before="pp" if "d" not in one + two else "pgj")
    for layout in OTHERS:
        for one, two in itertools.combinations_with_replacement(SIMPLE_PROGRAMS, 2):
            yield other(layout, "|".join(_one_producer(layout, [one, two])))


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
