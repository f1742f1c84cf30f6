"""What the ghost of spaces.py knows of tasks: their versions, and the bodies that side files replace."""

import re

import dirqueue
from dirqueue.layouts.native import conditions, names, sidefile
from dirqueue.space import sides

#: How old something has to be so that it is stale at once.
AGES = -1e6
SIDE = re.compile(r"s/\.space/side/[0-9a-f]{2}/([0-9]{25})\.([0-9]+)")


def name_in(path):
    """Return what the name at a path says, of a conditional one what it stands for; None if it is no message."""
    text = path.rpartition("/")[2]
    condition = conditions.parse(text)
    return condition.base if condition is not None else names.parse(text)


def effective(tree, path, body):
    """Return the body that readers of a name get; None if its side file is not there or not its own."""
    name = name_in(path)
    if name is None or name.card is None or not name.card.side:
        return body
    data = tree.get("s/" + sidefile.path_of(name.id, name.card.side))
    if data is None:
        return None
    details = sidefile.loads(data)
    if details.version > name.card.version:
        return None
    return body if details.body is None else details.body


def strays(tree, *, certain=True):
    """Return the side files that no name means, and that no change by itself may still come to mean.

    Without `certain` those of messages that are gone are left out: on a network filesystem a purge keeps them until
    nothing has changed for an hour.
    """
    meant, versions = set(), {}
    for path, body in tree.items():
        name = name_in(path) if body is not None and not path.startswith("s/.space/") else None
        if name is not None and name.kind not in ("new", "error", "error.new"):
            own = name.id[-25:]
            versions[own] = name.card.version if name.card else name.attempts
            if name.card is not None:
                meant.add((own, name.card.side))
    found = []
    for path, data in tree.items():
        match = SIDE.fullmatch(path)
        if match and (match[1], int(match[2])) not in meant:
            try:
                version = sidefile.loads(data).version
            except ValueError:
                version = 1 << 60  # incomplete: left alone until its message is gone
            if versions.get(match[1], 1 << 60 if certain else -1) >= version:
                found.append(path)
    return found


def changed(old, new, seen):
    """Return what is wrong with a rename of a message; `seen` are the exact names of all versions of tasks so far."""
    before, after = name_in(old), name_in(new)
    if before is None or after is None or before.text == after.text or after.kind == "acked":
        return []
    if after.card is None:
        return [f"{old} lost its card: {new}"] if before.card is not None else []
    was = before.card.version if before.card else before.attempts
    wrong = []
    if after.card.version <= was:
        wrong.append(f"{old} was renamed to {new}, whose version is no higher")
    if seen.setdefault((after.id, after.card.version), after.text) != after.text:
        wrong.append(f"{new} has a version that {seen[after.id, after.card.version]} had")
    return wrong


# --- programs ------------------------------------------------------------------------------------------------


def claim(queue, holder):
    """Return a program that claims for a holder, renews and acknowledges."""

    def program(client):
        try:
            lease = client.space.get(queue, timeout=0, holder=holder)
        except dirqueue.Empty:
            return "nothing"
        body = lease.message.body
        try:
            lease.renew()
            lease.ack()
        except dirqueue.LeaseLost:
            return "lost"
        return ("got", (body,))

    return program


def renew(key):
    """Return a program that renews a lease of its own, then acknowledges it."""

    def program(client):
        lease = client.leases[key]
        try:
            lease.renew()
            lease.ack()
        except dirqueue.LeaseLost:
            return "lost"
        return "acked"

    return program


def change(key, *, holder="ann", put=None, put_failures=1, **more):
    """Return a program that changes a task, perhaps with a put, in one transaction."""

    def program(client):
        t = client.space.transaction(holder=holder)
        t.change(client.leases[key], **more)
        if put:
            t.put(put, b"y", failures=put_failures)
        try:
            t.commit()
        except dirqueue.Conflict as error:
            return "contended" if isinstance(error, dirqueue.Contended) else "refused"
        except dirqueue.InDoubt:
            return "in doubt"
        return "committed"

    return program


def clean_sides(client):
    """Remove the side files that no name means, as a purge of the space does; all of them are old."""
    directory = client.space._ground.directory
    found = sides.orphans(directory, int(AGES * 1e6))
    sides.drop_sides(found, directory.fd)
    return ("cleaned", len(found))


def task(queue, body, *, held_for=None, replaced=False):
    """Return a preparation: a task that everybody has seen, free or held by ann, perhaps with a replaced body."""

    def prepare(world):
        world._switch("z")
        space = world.clients["z"].space
        t = space.transaction(holder="ann")
        t.put(queue, b"first" if replaced else body.encode())
        [made] = t.commit().puts
        if replaced:
            with space.transaction(holder="ann") as t:
                t.change(space.message(made.id, queue), body=body.encode())
        lease = None
        if held_for is not None:
            world._switch("b")
            lease = world.clients["b"].space.get(queue, timeout=0, holder="ann", lease=held_for)
        for each in world.clients.values():
            world._switch(each.name)
            each.leases[body] = each.space.message(made.id, queue)
            if each.name == "b" and lease is not None:
                each.leases["lease"] = lease

    return prepare


def once(world, ends):
    """Of two changes of one version only one can have been made."""
    if ends.count("committed") > 1:
        from lab.spaces import Violation

        raise Violation(f"two changes of one version: {ends}")


def refused(world, ends):
    """What another holder holds cannot be changed."""
    if ends[0] == "committed":
        from lab.spaces import Violation

        raise Violation("a task that another one held was changed")
