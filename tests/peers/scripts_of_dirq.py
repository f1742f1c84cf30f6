"""Programs written for dirq: each is run twice, with nothing changed but where its modules come from.

A program gets `load` (its import line), `path` (a directory) and `note` (which writes down what happened). It does only
what dirq documents; where dirq 1.8 goes wrong is in test_bugs_of_dirq.py.
"""

import os
import re
import stat
import time
from pathlib import Path

SCHEMA = {"body": "string", "header": "table?", "raw": "binary?"}
OLD = time.time() - 10_000
#: So long that all elements of a test are in one directory.
LONG = 10**9
_NAME = re.compile(r"[0-9a-f]{8}/[0-9a-f]{14}")


class Notes:
    """What happened, without what is never the same twice: names become numbers, the path a dollar."""

    def __init__(self, path, load):
        self.lines = []
        self._path = str(path)
        self._names = {}
        errors = load("Exceptions")
        self._known = {
            "QueueError": errors.QueueError, "QueueLockError": errors.QueueLockError, "OSError": OSError,
            "FileNotFoundError": FileNotFoundError, "TypeError": TypeError, "NotImplementedError": NotImplementedError,
        }  # fmt: skip

    def _plain(self, value):
        if isinstance(value, str):
            text = value.replace(self._path, "$")
            return _NAME.sub(lambda m: f"name{self._names.setdefault(m[0], len(self._names))}", text)
        if isinstance(value, (list, tuple)):
            return [self._plain(each) for each in value]
        return value

    def __call__(self, what, value):
        self.lines.append((what, self._plain(value)))

    def call(self, function, *arguments, **options):
        """Call it; write down what it returned, or which of the known errors it is and with what errno."""
        what = getattr(function, "__name__", str(function))
        try:
            result = function(*arguments, **options)
        except Exception as error:  # noqa: BLE001 - what it is, is the question
            kinds = {name for name, kind in self._known.items() if isinstance(error, kind)}
            self.lines.append((what, "raised", kinds, getattr(error, "errno", None)))
            return None
        self.lines.append((what, "returned", self._plain(result)))
        return result


def tree(path):
    """Return everything in a directory: relative path, mode, and how many names a file has."""
    found = []
    for each in sorted(Path(path).rglob("*")):
        facts = each.stat()
        links = facts.st_nlink if each.is_file() else 0
        found.append((str(each.relative_to(path)), stat.filemode(facts.st_mode), links))
    return found


def simple_life(load, path, note):
    """An element of the simple queue from its making to its end."""
    queue = load("QueueSimple").QueueSimple(str(path), granularity=LONG)
    note("empty", [queue.count(), queue.first(), queue.next(), list(queue.names())])
    names = [queue.add(b"\xff\x00"), queue.add("grüße\n"), queue.add_ref(b"")]
    note("names", names)
    note("count", queue.count())
    note("walk", [queue.first(), queue.next(), queue.next(), queue.next(), queue.next()])
    note("loop", list(queue))
    note.call(queue.get, names[0])
    note.call(queue.lock, names[0])
    note.call(queue.lock, names[0])
    note.call(queue.lock, names[0], False)
    note.call(queue.lock, names[0], permissive=True)
    note("tree", [(where, mode, links) for where, mode, links in tree(path)])
    note("data", [queue.get(names[0]), queue.get_ref(names[0]), queue.get_path(names[0])])
    note.call(queue.touch, names[0])
    note.call(queue.unlock, names[0])
    note.call(queue.unlock, names[0])
    note.call(queue.unlock, names[0], permissive=True)
    for name in names:
        note.call(queue.lock, name)
        note("data", queue.get(name))
        note.call(queue.remove, name)
        note.call(queue.lock, name)
        note.call(queue.lock, name, permissive=False)
        note.call(queue.unlock, name, True)
    note.call(queue.touch, names[0])
    note("end", [queue.count(), queue.first()])


def simple_files(load, path, note):
    """Files are moved in, with their mode and time."""
    queue = load("QueueSimple").QueueSimple(str(path / "q"))
    file = path / "file"
    file.write_bytes(b"from outside")
    file.chmod(0o640)
    os.utime(file, (OLD, OLD))
    name = note.call(queue.add_path, str(file))
    facts = (path / "q" / name).stat()
    note("there", [file.exists(), stat.filemode(facts.st_mode), facts.st_mtime == OLD, facts.st_nlink])
    note.call(queue.lock, name)
    note("data", queue.get(name))
    note.call(queue.remove, name)
    note.call(queue.add_path, str(path / "missing"))


def simple_cleaning(load, path, note):
    """What was left behind goes when it is old; what is young, and the last directory, stay."""
    queue = load("QueueSimple").QueueSimple(str(path), granularity=LONG)
    names = [queue.add(b"%d" % number) for number in range(3)]
    for name in names[:2]:
        queue.lock(name)
    where = path / names[0][:8]
    (where / "00000000000000.tmp").touch()
    (where / "00000000000001.tmp").touch()
    for old in (where / "00000000000000.tmp", path / names[0]):
        os.utime(old, (OLD, OLD))
    (path / "00000001").mkdir()
    note.call(queue.purge, maxtemp=0, maxlock=0)
    note("kept", [sorted(os.listdir(where))[:2], (path / "00000001").exists()])
    note.call(queue.purge)
    note("young", min(os.listdir(where)))
    note("locks", [(path / f"{name}.lck").exists() for name in names])
    note.call(queue.purge, 0, 1)
    note.call(queue.lock, names[0])
    note("count", queue.count())


def normal_life(load, path, note):
    """An element of the normal queue from its making to its end."""
    module = load("queue")
    queue = module.Queue(str(path), schema=SCHEMA)
    note("made", [tree(path), queue.count(), queue.first(), queue.next(), list(queue)])
    elements = [
        {"body": "one"},
        {"body": "grüße\n", "header": {"b": "2", "a\t": "\\\n", "": ""}, "raw": b"\xff\x00\r\n"},
        {"body": "", "header": {}},
    ]
    names = [queue.add(elements[0]), queue.enqueue(elements[1]), queue.add(elements[2])]
    note("names", names)
    note("count", queue.count())
    note("walk", [queue.first(), queue.next(), queue.next(), queue.next()])
    note("loop", [list(queue), list(queue.names())])
    note.call(queue.get, names[0])
    note.call(queue.remove, names[0])
    note.call(queue.unlock, names[0])
    note.call(queue.unlock, names[0], permissive=True)
    note.call(queue.lock, names[0])
    note.call(queue.lock, names[0])
    note.call(queue.lock, names[0], permissive=False)
    note.call(queue.dequeue, names[0])
    note.call(queue.get_element, names[0])
    note("tree", tree(path))
    note.call(queue.touch, names[0])
    note.call(queue.get, names[0])
    note.call(queue.unlock, names[0])
    note.call(queue.get_element, names[1])
    note.call(queue.dequeue, names[1])
    for name in (names[0], names[2]):
        note.call(queue.lock, name)
        note.call(queue.get, name)
        note.call(queue.remove, name)
        note.call(queue.lock, name)
        note.call(queue.dequeue, name)
    note(
        "end", [queue.count(), sorted(os.listdir(path / "temporary")), sorted(os.listdir(path / "obsolete"))]
    )


def normal_mistakes(load, path, note):
    """Schemas and data that cannot be, and names that are none."""
    module = load("queue")
    for number, schema in enumerate((
        {"body": "text"}, {"body": "string?"}, {"bo dy": "string"}, {"body": 1}, {"": "string"}, ["body"],
        {"body": "string", "header": "table??*"}, {"body": "String"},
    )):  # fmt: skip
        note(f"schema {number}", str(schema))
        note.call(lambda wrong=schema: module.Queue(str(path), schema=wrong) and None)
    for schema in (
        {"body": "string*"},
        {"body": "binary", "more": "table?*"},
        {"body": "table*?", "x": "string"},
    ):
        note("type", [sorted(module.Queue(str(path), schema=schema).type.items())])
        note("mandatory", sorted(module.Queue(str(path), schema=schema).mandatory))
    bare = module.Queue(str(path))
    note("no schema", [bare.type, bare.mandatory, bare.maxelts])
    queue = module.Queue(str(path), schema=SCHEMA)
    note.call(bare.add, {"body": "x"})
    for data in ({}, {"header": {}}, {"body": 1}, {"body": "x", "header": "y"}, {"body": "x", "other": "y"}):
        note.call(queue.add, data)
    note.call(queue.add, {"body": "x", "header": {"a": 1}})
    name = queue.add({"body": "x"})
    queue.lock(name)
    note.call(bare.get, name)
    note.call(bare.remove, name)
    for name in ("", "x", "00000000", "0000000/00000000000000", "00000000/0000000000000g"):
        for verb in ("lock", "unlock", "get", "remove", "dequeue", "get_element"):
            note.call(getattr(queue, verb), name)
    note("count", len(os.listdir(path / "00000000")))


def normal_cleaning(load, path, note):
    """Stale locks and what is old in temporary and obsolete go; live elements and the last directory stay."""
    queue = load("queue").Queue(str(path), schema=SCHEMA, maxelts=2)
    names = [queue.add({"body": str(number)}) for number in range(5)]
    note("directories", sorted({name[:8] for name in names}))
    for name in names[:2]:
        queue.dequeue(name)
    for name in names[2:4]:
        queue.lock(name)
    os.utime(path / names[2], (OLD, OLD))
    for where in ("temporary", "obsolete"):
        (path / where / "00000000000000").mkdir()
        (path / where / "00000000000000" / "body").touch()
        for old in ("00000000000000/body", "00000000000000"):
            os.utime(path / where / old, (OLD, OLD))
    note.call(queue.purge)
    note("left", [sorted(os.listdir(path)), os.listdir(path / "temporary"), os.listdir(path / "obsolete")])
    note("locks", [queue.lock(name) for name in names[2:]])


def constructors(load, path, note):
    """Arguments by position and by name, wrong ones, and what they do."""
    simple, normal = load("QueueSimple").QueueSimple, load("queue").Queue
    for wrong in ({"umask": "0"}, {"rndhex": "a"}, {"granularity": "60"}):
        note.call(lambda given=wrong: simple(str(path / "s"), **given) and None)
    for wrong in ({"umask": "0"}, {"rndhex": "a"}, {"maxelts": "60"}):
        note.call(lambda given=wrong: normal(str(path / "n"), **given) and None)
    note.call(lambda: simple(1) and None)
    note.call(lambda: normal(None) and None)
    queue = simple(str(path / "a" / "b"), 0o027, 0x1B, 1000)
    name = queue.add(b"x")
    note("digit", [name[-1], queue.rndhex, int(name[:8], 16) % 1000, queue.granularity, queue.umask])
    note("simple", [(mode, links) for _, mode, links in tree(path / "a")])
    queue = normal(str(path / "c"), 0o077, 7, 1, SCHEMA)
    names = [queue.add({"body": "x", "raw": b"y"}) for _ in range(3)]
    queue.lock(names[0])
    note("digits", [[name[-1] for name in names], [name[:8] for name in names], queue.maxelts])
    note("normal", [(mode, links) for _, mode, links in tree(path / "c")])
    for queue in (simple(str(path / "a" / "b")), normal(str(path / "c"))):
        facts = os.stat(queue.path)
        note("id", [queue.id == f"{facts.st_dev}:{facts.st_ino}", queue.path])


def copies(load, path, note):
    """A copy is another walk over the same queue."""
    queue = load("QueueSimple").QueueSimple(str(path), rndhex=3)
    names = [queue.add(b"%d" % number) for number in range(3)]
    queue.first()
    other = queue.copy()
    note("copy", [other.first(), other.next(), other.path, other.id == queue.id, other.rndhex])
    note("mine", [queue.next(), queue.next(), queue.next()])
    note.call(other.lock, names[0])
    note.call(other.get, names[0])
    note.call(other.remove, names[0])
    note("count", [queue.count(), other.count()])


def sets(load, path, note):
    """Queues walked as one."""
    module = load("queue")
    simple = load("QueueSimple").QueueSimple
    one, two, three = (module.Queue(str(path / each), schema=SCHEMA) for each in "123")
    names = []
    for number in range(6):
        names.append((one, two)[number % 2].add({"body": str(number)}))
        time.sleep(0.000_01)
    note("names", names)
    joined = module.QueueSet(one, two)
    note("count", joined.count())
    note("loop", [(queue.path, name) for queue, name in joined])
    note("names()", [(queue.path, name) for queue, name in joined.names()])
    seen = []
    queue, name = joined.first()
    while queue:
        seen.append((queue.path, name))
        queue.lock(name)
        note("body", queue.get(name)["body"])
        queue.remove(name)
        queue, name = joined.next()
    note("walk", seen)
    note("end", [joined.next(), joined.count(), one.count()])
    three.add({"body": "x"})
    note.call(joined.add, three)
    note("three", [joined.count(), joined.first()[0].path])
    note.call(joined.add, [one])
    note.call(joined.add, 1)
    note.call(joined.add, ["x"])
    note.call(joined.remove, "x")
    note.call(joined.remove, three)
    note("removed", [joined.count(), joined.first()])
    listed = load("QueueSet").QueueSet([one, three])
    note(
        "list",
        [
            listed.count(),
            load("QueueSet").QueueSet((one, three)).count(),
            load("QueueSet").QueueSet().count(),
        ],
    )
    note("same", module.QueueSet is load("QueueSet").QueueSet)
    mixed = module.QueueSet(simple(str(path / "s")), three)
    note("mixed", mixed.count())


def null(load, path, note):
    """The black hole."""
    queue = load("QueueNull").QueueNull()
    file = path / "file"
    file.touch()
    note(
        "added",
        [queue.add("x"), queue.add_ref(b"x"), queue.add_path(str(file)), file.exists(), queue.count()],
    )
    note("purge", [queue.purge(), queue.purge(1, 2), queue.purge(maxtemp=1, maxlock=1)])
    for verb in ("get", "get_ref", "get_path", "lock", "unlock", "remove"):
        note.call(getattr(queue, verb), "x")
    note.call(queue.add_path, str(file))


def documented_simple(load, path, note):
    """A producer of a hundred lines, then a consumer that passes over what others have locked."""
    queue = load("QueueSimple").QueueSimple(str(path))
    for count in range(1, 101):
        queue.add("element %i\n" % count)  # noqa: UP031 - as one wrote it then
    queue = load("QueueSimple").QueueSimple(str(path))
    other = load("QueueSimple").QueueSimple(str(path))
    other.lock(other.first())
    seen = []
    for name in queue:
        if not queue.lock(name):
            continue
        seen.append(queue.get(name))
        queue.remove(name)
    note("seen", seen)
    note("left", queue.count())


def documented_normal(load, path, note):
    """The same with a schema of a text and an optional table, walked by first and next."""
    schema = {"body": "string", "header": "table?"}
    queue = load("queue").Queue(str(path), schema=schema)
    for count in range(1, 101):
        queue.add({"body": f"element {count}", "header": {"HOME": "/here", "count": str(count)}})
    queue = load("queue").Queue(str(path), schema=schema)
    seen = []
    name = queue.first()
    while name:
        if not queue.lock(name):
            name = queue.next()
            continue
        seen.append(queue.get(name))
        queue.remove(name)
        name = queue.next()
    note("seen", seen)
    note("left", [queue.count(), sorted(os.listdir(path))])


def documented_set(load, path, note):
    """Two queues put into a set, one by one or as a list, and browsed as one."""
    module = load("queue")
    queues = [module.Queue(str(path / each), schema={"body": "string"}) for each in "ab"]
    for number in range(10):
        queues[number % 2].add({"body": str(number)})
    for joined in (module.QueueSet(*queues), module.QueueSet(queues)):
        seen = []
        (queue, name) = joined.first()
        while queue:
            seen.append(queue.get_element(name)["body"])
            (queue, name) = joined.next()
        note("seen", seen)


SCRIPTS = (
    simple_life, simple_files, simple_cleaning, normal_life, normal_mistakes, normal_cleaning, constructors, copies,
    sets, null, documented_simple, documented_normal, documented_set,
)  # fmt: skip
