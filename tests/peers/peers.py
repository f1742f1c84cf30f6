"""One side of an interoperability run, as a process of its own: `python peers.py WHO VERB PATH [ARGUMENTS]`.

WHO is a real program (dirq-simple, dirq-normal, vsqs) or ours (the same with `our-` before it). Producers print
nothing and put COUNT messages that begin with PREFIX; consumers print each body they removed, one to a line, until the
file STOP is there and nothing is left; purgers purge until STOP is there.
"""

import os
import sys
import time
import warnings

warnings.simplefilter("ignore")  # vsqs and dirq are old
SCHEMA = {"body": "string", "header": "table?"}


def said(text):
    sys.stdout.write(text + "\n")


class DirqSimple:
    def __init__(self, path):
        from dirq.QueueSimple import QueueSimple

        self.queue = QueueSimple(path)

    def put(self, text):
        self.queue.add(text.encode())

    def take_all(self):
        for name in self._names():
            if self.queue.lock(name):
                yield self._take(name)

    def _names(self):
        try:
            yield from self.queue
        except FileNotFoundError:
            return  # a directory went between the listing and the look: a known trap of dirq

    def _take(self, name):
        data = self.queue.get(name)
        self.queue.remove(name)
        return data.decode()

    def purge(self):
        try:
            self.queue.purge()
        except OSError:
            pass  # its own purge may meet a directory that is in use


class DirqNormal(DirqSimple):
    def __init__(self, path):
        from dirq.queue import Queue

        self.queue = Queue(path, schema=SCHEMA)

    def put(self, text):
        """Add; where dirq's own purge takes the unfinished element or its place away, once more: it was not added."""
        for _ in range(1000):
            try:
                self.queue.add({"body": text, "header": {"key\t1": "value\n\\"}})
                return
            except OSError:
                continue
        raise AssertionError("dirq's purge took every try away")

    def _take(self, name):
        data = self.queue.get(name)
        try:
            self.queue.remove(name)
        except OSError:
            # Another known trap: the purge was faster to take the lock of an element that is removed already.
            assert not os.path.exists(f"{self.queue.path}/{name}")
        assert data["header"] == {"key\t1": "value\n\\"}, data
        return data["body"]


class Vsqs:
    def __init__(self, path):
        from vsqs.queue import QueueManager

        self.manager = QueueManager(os.path.dirname(path))
        self.queue = self.manager.get_queue(os.path.basename(path))

    def put(self, text):
        self.queue.publish(text.encode())

    def take_all(self):
        while True:
            id, data = self.queue.receive(visibility_timeout=600, timeout=0.05)
            if id is None:
                return
            self.queue.delete(id)
            yield data.decode()

    def purge(self):
        pass


class Ours:
    def __init__(self, path, layout):
        import dirqueue

        given = {"schema": SCHEMA, "codec": "json"} if layout == "dirq-normal" else {"codec": "text"}
        self.table = layout == "dirq-normal"
        self.queue = dirqueue.Queue(path, layout=layout, sync=False, lease=600, **given)

    def put(self, text):
        self.queue.put({"body": text, "header": {"key\t1": "value\n\\"}} if self.table else text)

    def take_all(self):
        for lease in self.queue.consume(timeout=0):
            body = lease.message.body
            lease.ack()
            if self.table:
                assert body["header"] == {"key\t1": "value\n\\"}, body
                body = body["body"]
            yield body

    def purge(self):
        self.queue.purge()


def main(who, verb, path, *rest):
    if who.startswith("our-"):
        peer = Ours(path, who.removeprefix("our-"))
    else:
        peer = {"dirq-simple": DirqSimple, "dirq-normal": DirqNormal, "vsqs": Vsqs}[who](path)
    if verb == "produce":
        prefix, count = rest
        for number in range(int(count)):
            peer.put(f"{prefix}-{number}")
        return
    (stop,) = rest
    while True:
        last = os.path.exists(stop)
        if verb == "purge":
            peer.purge()
        else:
            for text in peer.take_all():
                said(text)
        if last:
            return
        time.sleep(0.002)


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # the watcher threads of vsqs would keep it
