"""How the layout of a directory is recognised."""

import os
import resource
import subprocess
import sys

import pytest
from support.failing import HARD, failing, names
from support.kit import drain, in_child
from support.vsqs_queues import make, queue

from dirqueue import (
    LayoutError,
    Queue,
    QueueAccess,
    SettingsError,
    settings,
)
from dirqueue.layouts import NAMES, describe, layout_class, recognise
from dirqueue.tools import discover
from dirqueue.tools.doctor.probes import PROBES

__all__ = ["make", "queue"]


def test_layout_class_of_an_unknown_name_is_refused():
    """The error lists the layouts."""
    with pytest.raises(SettingsError, match="native, vsqs"):
        layout_class("sqlite")


@pytest.mark.parametrize("code", names(HARD))
def test_directory_that_cannot_be_listed_is_an_error(queue, code):
    """Its layout is unknown, so nothing is put."""
    with failing("scandir", code), pytest.raises(QueueAccess) as caught:
        Queue(queue.path).put(b"x")
    assert caught.value.errno == code


def test_layout_is_recognised_by_the_first_names(queue, monkeypatch):
    """However many there are; names of two layouts side by side are refused."""
    monkeypatch.setattr("dirqueue.layouts.ENOUGH", 2)
    for _ in range(5):
        queue.put(b"x")
    assert Queue(queue.path).layout.name == "vsqs"
    monkeypatch.undo()
    os.mkdir(os.path.join(queue.path, "5f000000"))
    with pytest.raises(LayoutError, match="mixture"):
        Queue(queue.path).put(b"x")


@pytest.mark.parametrize("layout", ["vsqs", "dirq-simple", "dirq-normal"])
def test_layout_of_a_directory_is_recognised(tmp_path, layout):
    """Queue() without a layout gets the one that is there."""
    with Queue(tmp_path / "q", layout=layout, sync=False) as queue:
        queue.put(b"x")
    with Queue(tmp_path / "q") as queue:
        assert queue.layout.name == layout
        assert queue.get(timeout=0).message.body == b"x"


@pytest.mark.parametrize("layout", ["vsqs", "dirq-simple", "dirq-normal"])
def test_layout_of_an_empty_queue_is_recognised(tmp_path, layout):
    """create() leaves enough to recognise it by."""
    Queue.create(tmp_path / "q", layout=layout).close()
    with Queue(tmp_path / "q") as queue:
        assert queue.layout.name == layout


@pytest.mark.parametrize(
    ("one", "two"),
    [("vsqs", "dirq-simple"), ("native", "dirq-simple"), ("native", "dirq-normal"), ("vsqs", "dirq-normal")],
)
def test_mixture_of_layouts_is_refused(tmp_path, one, two):
    """Two formats in one directory are a mistake; the error names an entry of each."""
    for layout in (one, two):
        with Queue(tmp_path / "q", layout=layout, sync=False) as queue:
            queue.put(b"x")
    with pytest.raises(LayoutError, match="mixture"):
        Queue(tmp_path / "q")


@pytest.mark.parametrize("place", ["recognise", "queue"])
def test_recognition_of_hostile_names_is_linear(tmp_path, place):
    """A hundred names of 250 dots are nothing; a search that tries all splits needs minutes of CPU time for them."""
    path = tmp_path / "q"
    path.mkdir()
    for number in range(100):
        (path / f"{number:03}{'.' * 250}\n").touch()

    def look():
        resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
        if place == "queue":
            return Queue(path).layout.name
        return sorted({kind for name in os.listdir(path) for kind in recognise(name, lambda: False)})

    assert in_child(look) == ("native" if place == "queue" else [])


def test_queue_that_holds_only_pins_of_spark_is_a_native_queue(tmp_path):
    """What a dead driver pinned is in there: list, purge and delete have to find it."""
    (tmp_path / "root" / "q" / ".spark" / "pins").mkdir(parents=True)
    assert Queue(tmp_path / "root" / "q").layout.name == "native"
    assert list(discover.find(str(tmp_path / "root"))) == [str(tmp_path / "root" / "q")]


ID = "1700000000000000123456789"
TIME = "1700000000000000"


@pytest.mark.parametrize(
    ("name", "is_directory", "layouts"),
    [
        (ID, False, "native"),
        (ID, True, ""),
        (f"0{ID[1:]}", False, ""),
        (f"5{ID}", False, "native"),
        (f"{ID}.{TIME}.1.token", False, "native"),
        (f"{ID}.batch", True, "native"),
        (f"{ID}.batch", False, ""),
        (f"{TIME}.slice", True, "native"),
        (f"{ID}.new", False, "native"),
        (f"{ID}.new", True, ""),
        ("queue.json", False, "native"),
        ("queue.json", True, ""),
        (".spark", True, "native"),
        (".spark", False, ""),
        (".ballast", False, ""),
        ("dead", True, ""),
        ("done", True, ""),
        (TIME, False, "native vsqs"),
        (TIME, True, ""),
        (TIME[:13], False, "native vsqs"),
        (f"{TIME}.{TIME}", False, "native vsqs"),
        (f"{TIME}.new", False, "native vsqs"),
        ("5f000000", True, "dirq-normal dirq-simple"),
        ("5f000000", False, ""),
        ("temporary", True, "dirq-normal"),
        ("obsolete", True, "dirq-normal"),
        ("obsolete", False, ""),
        ("README", False, ""),
        ("1.2.3.4", False, ""),
        ("\u0661700000000000", False, ""),
    ],
)
def test_name_is_a_sign_of_the_layouts_that_have_it(name, is_directory, layouts):
    """At the top of a queue, as a file or a directory."""
    assert sorted(recognise(name, lambda: is_directory)) == layouts.split()


def test_directory_with_names_of_vsqs_and_of_the_native_layout_is_native(tmp_path):
    """The native layout reads what VSQS programs put into its directory."""
    with Queue(tmp_path / "q", sync=False) as queue:
        queue.put(b"x")
    (tmp_path / "q" / TIME).write_bytes(b"peer")
    with Queue(tmp_path / "q", sync=False) as queue:
        assert queue.layout.name == "native"
        assert sorted(drain(queue)) == [b"peer", b"x"]


@pytest.mark.parametrize("name", NAMES)
def test_layout_describes_itself(name):
    """Its class has the same name, what it needs are probes of the doctor, its defaults are settings."""
    description = describe(name)
    assert layout_class(name).name == description.name == name
    assert set(description.needs) <= {
        each.__name__.removeprefix("_probe_").replace("_", "-") for each in PROBES
    }
    assert set(description.defaults) <= set(settings.NAMES)
    assert bool(description.needs) == (name != "null")


def test_native_queue_loads_no_other_layout(tmp_path):
    """Not to recognise it, not to use it: what starts quickly stays quick."""
    with Queue.create(tmp_path / "q", max_attempts=1, backoff=0.0) as queue:
        queue.put_many([b"x", b"y"])
        queue.get(timeout=0).reject("no")
        queue.put(b"z")
    script = (
        "import sys, dirqueue\n"
        f"queue = dirqueue.Queue({str(tmp_path / 'q')!r})\n"
        "queue.get(timeout=0).ack()\n"
        "print(*(name for name in sys.modules if name.startswith('dirqueue.layouts.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = done.stdout.split()
    assert "dirqueue.layouts.native.description" in loaded
    assert [name for name in loaded if name.split(".")[2] in ("dirq", "vsqs", "null", "peer")] == []
