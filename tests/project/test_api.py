"""The public names and their signatures are a promise: api.txt changes only on purpose."""

import inspect
import os
from pathlib import Path

import dirqueue

SNAPSHOT = Path(__file__).with_name("api.txt")


def described():
    """Return one line for each public name and each public member of a public class."""
    lines = []
    for name in sorted(dirqueue.__all__):
        value = getattr(dirqueue, name)
        if not inspect.isclass(value):
            lines.append(f"{name}{inspect.signature(value) if callable(value) else ''}")
            continue
        bases = ", ".join(
            base.__name__ for base in value.__bases__ if base.__name__ not in ("object", "Generic")
        )
        lines.append(f"class {name}({bases})")
        ours = [base for base in reversed(value.__mro__) if base.__module__.startswith("dirqueue")]
        for member, kind in sorted(
            {name: kind for base in ours for name, kind in vars(base).items()}.items()
        ):
            if member.startswith("_") and member not in ("__init__", "__len__", "__enter__", "__iter__"):
                continue
            if isinstance(kind, property):
                lines.append(f"  {name}.{member}: property")
            elif isinstance(kind, (classmethod, staticmethod)):
                lines.append(f"  {name}.{member}{inspect.signature(getattr(value, member))}")
            elif inspect.isfunction(kind):
                lines.append(f"  {name}.{member}{inspect.signature(kind)}")
            elif not member.startswith("_"):
                lines.append(f"  {name}.{member}")
    return "\n".join(lines) + "\n"


def test_the_public_interface_is_the_snapshot():
    """Run with UPDATE_API=1 to write it anew, and say in the changelog what changed."""
    if os.environ.get("UPDATE_API"):
        SNAPSHOT.write_text(described())
    assert described() == SNAPSHOT.read_text()


def test_every_public_name_is_there():
    """__all__ is sorted, importable, and all that dir() shows."""
    assert list(dirqueue.__all__) == sorted(dirqueue.__all__)
    for name in dirqueue.__all__:
        assert getattr(dirqueue, name).__module__.startswith("dirqueue")
    assert set(dir(dirqueue)) == {*dirqueue.__all__, "__version__"}
