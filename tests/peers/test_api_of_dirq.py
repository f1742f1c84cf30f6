"""The interface of dirq 1.8: the same modules, signatures, results and errors; the same programs run."""

import importlib
import inspect

import dirq.queue  # noqa: F401 - the real one: without it nothing here means anything
import pytest
from peers.scripts_of_dirq import SCRIPTS, Notes

OURS = "dirqueue.compat.dirq"
#: What dirq documents, by module.
CLASSES = {
    "queue": ("Queue", "QueueSet", "QueueError", "QueueLockError"),
    "QueueSimple": ("QueueSimple",),
    "QueueNull": ("QueueNull",),
    "QueueSet": ("QueueSet",),
    "QueueBase": ("QueueBase",),
    "Exceptions": ("QueueError", "QueueLockError"),
}
EVERY = [(module, name) for module, names in CLASSES.items() for name in names]


def both(module):
    return importlib.import_module(f"dirq.{module}"), importlib.import_module(f"{OURS}.{module}")


def public(cls):
    """Return the methods that a program may call."""
    wanted = ("__init__", "__iter__", "__next__")
    return {
        name: method
        for name, method in inspect.getmembers(cls, callable)
        if inspect.isfunction(method) and (name in wanted or not name.startswith("_"))
    }


def shape(method):
    """Return the parameters that a call of dirq can use: names, order, defaults, how they may be given."""
    return [
        (each.name, each.kind, each.default or None)  # an empty schema and none at all are the same
        for each in inspect.signature(method).parameters.values()
        if each.kind is not each.KEYWORD_ONLY
    ]


@pytest.mark.parametrize(("module", "name"), EVERY)
def test_every_class_is_where_it_was(module, name):
    """Module paths mirror dirq's; errors are errors, and stand in the same order."""
    theirs, ours = (getattr(each, name) for each in both(module))
    assert ours.__name__ == theirs.__name__
    assert [each.__name__ for each in theirs.__mro__] == [
        each.__name__ for each in ours.__mro__ if each.__name__ in {one.__name__ for one in theirs.__mro__}
    ]


@pytest.mark.parametrize(("module", "name"), EVERY)
def test_every_method_takes_what_it_took(module, name):
    """Names, order and defaults of all parameters; what is new can only be given by name."""
    theirs, ours = (public(getattr(each, name)) for each in both(module))
    assert theirs.keys() <= ours.keys()
    for method, function in theirs.items():
        assert shape(ours[method]) == shape(function), method


@pytest.mark.parametrize("module", CLASSES)
def test_documented_constants_are_the_same(module):
    """Names of directories and suffixes, and what a star imports."""
    theirs, ours = both(module)
    for name, value in vars(theirs).items():
        if name.isupper() and isinstance(value, str) and not name.startswith("_"):
            assert getattr(ours, name) == value
    assert set(getattr(theirs, "__all__", ())) <= set(getattr(ours, "__all__", ()))


def test_package_has_the_version_of_dirq():
    """VERSION, and its other spellings."""
    theirs, ours = importlib.import_module("dirq"), importlib.import_module(OURS)
    for name in ("VERSION", "DATE", "__version__", "__date__"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.AUTHOR
    assert ours.__author__


def run(script, package, path):
    path.mkdir()

    def load(module):
        return importlib.import_module(f"{package}.{module}")

    notes = Notes(path, load)
    script(load, path, notes)
    return notes.lines


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_program_for_dirq_runs_with_its_import_line_changed(tmp_path, script):
    """Every result is the same; every error can be caught as before."""
    theirs = run(script, "dirq", tmp_path / "theirs")
    ours = run(script, OURS, tmp_path / "ours")
    assert len(theirs) > 1
    for one, other in zip(theirs, ours, strict=True):
        if one[1] != "raised":
            assert other == one
            continue
        assert other[:2] == one[:2], (one, other)
        # What caught dirq's error catches ours; a number that dirq gave is given.
        assert other[2] >= one[2], (one, other)
        assert one[3] is None or other[3] == one[3], (one, other)
