"""Three users of one queue: each combination of mode and umask works or gives one clear error."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

GROUP = 61000
USERS = {"producer": 61001, "consumer": 61002, "purger": 61003}

CHILD = """
import json, os, sys
sys.path[:0] = json.loads(os.environ["LAB_PATH"])
import dirqueue
verb, path, umask, uid, gid = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
import tempfile, time
with tempfile.TemporaryDirectory() as place:  # import everything while this Python is readable
    warm = dirqueue.Queue(place + "/q", sync=False, backoff=0.0)
    warm.put(b"x"); warm.get(timeout=0).retry(0.0, "x"); warm.get(timeout=0).reject("x"); warm.redrive(); warm.purge()
    warm.close()
    try:
        dirqueue.Queue("/proc/nowhere").put(b"x")
    except dirqueue.DirQueueError:
        pass
os.setgroups([gid]); os.setgid(gid); os.setuid(uid); os.umask(umask)
try:
    queue = dirqueue.Queue(path, sync=False, max_attempts=2, backoff=0.0, margin=0.0, stale=0.0)
    if verb == "put":
        queue.put(b"body"); print(json.dumps(["ok"]))
    elif verb == "get":
        bodies = []
        for _ in range(10):
            try:
                lease = queue.get(timeout=0)
            except dirqueue.Empty:
                time.sleep(0.01)
                continue
            bodies.append(lease.message.body.decode()); lease.ack()
        print(json.dumps(["ok", bodies]))
    else:
        queue.purge(); print(json.dumps(["ok"]))
except dirqueue.DirQueueError as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""


def as_user(verb, path, umask, user):
    paths = json.dumps([entry for entry in sys.path if entry])
    command = [sys.executable, "-c", CHILD, verb, str(path), str(umask), str(USERS[user]), str(GROUP)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd="/",
        env={**os.environ, "LAB_PATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def shared(tmp_path):
    """Give a path that every user can reach. Only temporary directories of this run are opened for that."""
    for parent in tmp_path.parents:
        mode = os.stat(parent).st_mode & 0o7777
        if not mode & 0o001:
            os.chmod(parent, mode | 0o011)  # not restored: parallel tests need it too
    os.chmod(tmp_path, 0o755)
    return tmp_path


@pytest.mark.parametrize("umask", [0o002, 0o022, 0o077], ids=oct)
@pytest.mark.parametrize("mode", [0o2770, 0o777, 0o1777], ids=oct)
def test_users_share_a_queue_or_get_one_clear_error(mode, umask, shared):
    """One user puts, one consumes, one purges: it works or gives one clear error. No message is retried endlessly."""
    path = shared / "queue"
    path.mkdir()
    os.chown(path, 0, GROUP)
    os.chmod(path, mode)
    assert as_user("put", path, umask, "producer") == ["ok"]
    got = as_user("get", path, umask, "consumer")
    sticky, readable = bool(mode & 0o1000), umask != 0o077
    if sticky:
        assert got[0] == "QueueAccess"
        assert "sticky" in got[1]
    elif readable:
        assert got == ["ok", ["body"]]
    else:
        assert got == ["ok", []]  # unreadable for the consumer: moved to dead/ after its attempts
        assert len([each for each in path.glob("dead/*/*.*") if each.name.count(".") == 2]) == 1
    purged = as_user("purge", path, umask, "purger")
    assert purged[0] in {"ok", "QueueAccess"}
    assert len(purged) == 1 or "\n" not in purged[1]
