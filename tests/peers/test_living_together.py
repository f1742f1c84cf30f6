"""Real dirq 1.8 and vsqs 0.3 and ours on one directory at the same time: every message comes once."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support import kit

PEERS = Path(__file__).with_name("peers.py")
#: Messages of each producer; more by the environment, or in the slow test.
COUNT = int(os.environ.get("DIRQUEUE_INTEROP", "400"))


class Crew:
    """Processes at work on one directory."""

    def __init__(self, where):
        self.queue = str(where / "queue")
        self.stop = where / "stop"
        self.where = where
        self.running = []

    def start(self, who, verb, *rest):
        """Start one; what it prints goes to a file, so that nobody waits for a reader."""
        number = len(self.running)
        with open(self.where / f"out{number}", "wb") as out, open(self.where / f"err{number}", "wb") as err:
            command = [sys.executable, str(PEERS), who, verb, self.queue, *map(str, rest)]
            process = subprocess.Popen(command, stdout=out, stderr=err)
        self.running.append((process, verb, number))

    def join(self, *verbs):
        """Wait until all with these verbs have ended well."""
        for process, verb, number in self.running:
            if verb in verbs:
                status = process.wait(kit.PATIENCE)
                assert status == 0, (self.where / f"err{number}").read_text()

    def got(self):
        return Counter(
            line
            for _, verb, number in self.running
            if verb == "consume"
            for line in (self.where / f"out{number}").read_text().splitlines()
        )

    def end(self):
        for process, _, _ in self.running:
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture
def crew(tmp_path):
    """Give a crew, and send it directory afterwards."""
    crew = Crew(tmp_path)
    yield crew
    crew.end()


def everything(*prefixes, count=COUNT):
    return Counter(f"{prefix}-{number}" for prefix in prefixes for number in range(count))


@pytest.mark.parametrize("layout", ["dirq-simple", "dirq-normal", "vsqs"])
@pytest.mark.parametrize(
    ("producer", "consumer"), [("", "our-"), ("our-", "")], ids=["theirs-ours", "ours-theirs"]
)
def test_message_of_one_program_reaches_the_other(crew, layout, producer, consumer):
    """Messages go through in both directions, whole."""
    crew.start(producer + layout, "produce", "p", COUNT)
    crew.join("produce")
    crew.stop.touch()
    crew.start(consumer + layout, "consume", crew.stop)
    crew.join("consume")
    assert crew.got() == everything("p")


def together(crew, layout, *, purgers, count=COUNT):
    """Producers and consumers of both kinds at the same time, with these purgers: every message comes once."""
    crew.start("our-" + layout, "produce", "warm", 1)  # vsqs and dirq want to find the directory
    crew.join("produce")
    for number in range(2):
        crew.start(layout, "produce", f"their{number}", count)
        crew.start("our-" + layout, "produce", f"our{number}", count)
    crew.start("our-" + layout, "consume", crew.stop)
    crew.start(layout, "consume", crew.stop)
    for who in purgers:
        crew.start(who + layout, "purge", crew.stop)
    crew.join("produce")
    crew.stop.touch()
    crew.join("consume", "purge")
    # One more look: what the last consumers passed over because the other held it for a moment.
    crew.start("our-" + layout, "consume", crew.stop)
    crew.join("consume")
    assert crew.got() == everything("their0", "their1", "our0", "our1", count=count) + Counter(["warm-0"])


#: Which purgers run beside which layout: ours, theirs. VSQS has none of its own.
PURGED = {
    "dirq-simple": ("our-", ""),
    "dirq-normal": ("our-", ""),
    "vsqs": ("our-",),
}


@pytest.mark.parametrize("layout", PURGED)
def test_message_comes_once_with_all_programs_at_work(crew, layout):
    """Producers, consumers and purgers of both kinds at the same time: nothing lost, nothing twice."""
    together(crew, layout, purgers=PURGED[layout])


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("layout", PURGED)
def test_many_thousands_all_at_once(crew, layout, monkeypatch):
    """The same with twenty thousand messages."""
    monkeypatch.setattr(kit, "PATIENCE", 1800.0)
    together(crew, layout, purgers=PURGED[layout], count=5000)
