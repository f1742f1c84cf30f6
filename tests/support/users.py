"""Other users: run a function as one of them in a forked child, in a directory that all can reach."""

import os

from support.kit import in_child

from dirqueue import Queue

GROUP = 61000


def as_user(uid, function, *arguments, umask=0o022):
    """Run a function as a user of the group GROUP; return what it returned, or raise what it raised."""

    def run():
        os.setgroups([GROUP])
        os.setgid(GROUP)
        os.setuid(uid)
        os.umask(umask)
        return function(*arguments)

    return in_child(run)


def open_to_all(path):
    """Let every user reach a path. Only temporary directories of this run are opened for that."""
    for parent in (path, *path.parents):
        mode = os.stat(parent).st_mode & 0o7777
        if not mode & 0o001:
            os.chmod(parent, mode | 0o011)  # not restored: parallel tests need it too
    return path


def import_all(path):
    """Use a queue once to import all modules before privileges are dropped: only root may be able to read them."""
    queue = Queue(path, sync=False, backoff=0.0, keep_done=True)
    queue.put_many([b"1", b"2"])
    queue.get(timeout=0).retry(0.0, "x")
    queue.get(timeout=0).reject("x")
    queue.redrive()
    queue.get(timeout=0).ack()
    queue.layout._cursor.missed()
    queue.purge()
