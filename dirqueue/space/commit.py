"""One try of one transaction, a function for each step of the chapter "Transactions" of docs/protocol.md.

    stage      X.if.T         what will appear, written where it will be visible
    plan       n.plan         where messages go, if any moves
    sides      side/HH/ID.S   what names have no room for
    reserve    KEY/ID.if.T    ids of the user's own
    hold       X.un.T X.mv.T  what will go or move, in one order for everybody
    need                      what must be as it was seen
    commit     txn/P/n        ONE call: from here on all of it has happened, for everybody
    apply      X              every name comes to its end; whoever meets one does the same
    forget                    the register goes

Layer: objects.  Touches: the exact names of the messages it was given, its own conditional names, its register.
Invariant: before the commit nothing has happened, after it everything has; nobody but the owner can commit, anybody
can abort, and the register decides which came first.
Crash: before the commit, whoever meets a name aborts the transaction and undoes it; after it, applies it.
"""

from __future__ import annotations

import errno
import json
import random
import time
from collections.abc import Mapping, Sequence

from dirqueue.disk import ballast, fs
from dirqueue.disk.identity import new_token
from dirqueue.errors import DirQueueError, InDoubt, access_error
from dirqueue.layouts.native import conditions, resolve
from dirqueue.layouts.native.conditions import (
    ABORTED,
    COMMITTED,
    IF,
    MV,
    OPEN,
    REGISTERS,
    UN,
    Condition,
    conditional,
    register_of,
)
from dirqueue.layouts.native.staging import settle as wait_for_length
from dirqueue.space import ids
from dirqueue.space.carried import drop_carried, keep_carried, leave_carried
from dirqueue.space.notes import carry_notes, drop_notes, write_notes
from dirqueue.space.owner import Owner
from dirqueue.space.sides import drop_sides, write_sides
from dirqueue.space.work import Aborted, Consumed, Insert, Refused, Work

#: How often one name is tried again that others are changing.
TRIES = 6
#: The longest pause between two looks at a transaction that is in the way.
PAUSE = 0.02
#: After so many seconds the owner shows that it is alive, and again each time so many have passed.
BEAT = 1.0


class Attempt:
    """One try: T is its name, and none of its names is used again."""

    # COST: what the commonest transaction has none of is made when it is needed: 0.3 µs less of 5 between its calls.
    #: The side files that it wrote, the ids that it takes, what it has begun to hold, and where that moves by its id.
    _made: Sequence[str] = ()
    _keyed: Sequence[tuple[str, str]] = ()
    _held: Sequence[Consumed] = ()
    _moves: Mapping[str, str] = {}
    #: The ids of inserts that were left out, because another message has their key already.
    skipped: frozenset[str] = frozenset()
    _alive = _asked = committed = False

    def __init__(self, owner: Owner, work: Work) -> None:
        self._owner = owner
        directory = self._directory = owner.directory
        self._fd = directory.fd
        self._work = work
        self._txn, self._register = owner.begin()
        order: Sequence[Consumed] = work.consume
        if len(order) > 1 or (order and order[0].target):
            order = sorted(order)
            self._moves = {each.id: each.target for each in order if each.target}
        self._order = order
        #: The deleted message that becomes the register.
        self._record = order[-1] if order and not self._moves else None
        mount = directory.mount
        self._remote = mount.replies_can_be_lost
        # With needs, every name that T writes must be held before the first look at what it reads: otherwise two
        # transactions that each need what the other one takes could both commit.
        self._lean = not work.need and (mount.ordered or not work.sync)
        #: The inserts whose names were begun, each with the name that it has until the commit.
        self._staged: list[tuple[Insert, str]] = []
        #: When it last showed that it is alive, by the monotonic clock; `_alive`: whether it ever did.
        self._beaten = time.monotonic()

    def run(self) -> None:
        """Do all of it or nothing.

        Raises:
            Refused, Aborted, InDoubt, QueueAccess: nothing was done (InDoubt: perhaps all of it).
        """
        work = self._work
        try:
            self._stage()
            if self._moves:
                self._plan()
            if work.carried:
                keep_carried(work)
            if work.sides:
                self._made = made = list[str]()
                write_sides(work.sides, made, self._fd, sync=work.sync)
            if work.notes:
                write_notes(work.notes, self._fd)
            for insert in work.insert:
                if insert.key:
                    self._reserve()
                    break
            if not self._lean or self._record is None or len(self._order) > 1:
                self._hold()
            if work.sync:
                self._flush()
            if work.need:
                self._need()
            self._commit()
        except BaseException as error:
            # CRASH: an interrupt may come between the call and the next line, so the register has the last word.
            if not (self._asked and self._verdict() == COMMITTED):
                self._undo(certain=not isinstance(error, InDoubt))
                if isinstance(error, OSError) and not isinstance(error, DirQueueError):
                    raise access_error(self._directory.path, "commit to", error) from error
                raise
            self._finish()
            if not isinstance(error, OSError):
                raise
        else:
            self._finish()

    # --- before the commit ---------------------------------------------------------------------------------

    def _stage(self) -> None:
        """Write what will appear, each where it will be visible."""
        for insert in self._work.insert:
            name = conditional(insert.path, IF, self._txn)
            self._staged.append((insert, name))
            try:
                self._write(name, insert)
            except FileNotFoundError:
                self._write_again(name, insert)

    def _write_again(self, name: str, insert: Insert) -> None:
        """Write where the directory was missing, or was removed as empty a moment ago."""
        for _ in range(TRIES):
            self._make_rooms(insert.path.rpartition("/")[0])
            try:
                return self._write(name, insert)
            except FileNotFoundError:
                continue
        raise Aborted

    def _write(self, name: str, insert: Insert) -> None:
        """Write one body. One with an id of the user's own is a file: its second name is a hard link."""
        try:
            if insert.link is not None and not insert.key and insert.link(insert.data, name, self._fd):
                return
        except FileExistsError:
            return  # NFS: made, reply lost: a link is whole, and nobody else can make it
        self._create(name, insert.data)
        if self._directory.mount.closes_late:
            wait_for_length(self._directory, [(name, len(insert.data))])

    def _create(self, name: str, data: bytes) -> None:
        """Write a file of a name that nobody else can make."""
        for _ in range(TRIES):
            try:
                return fs.create(name, data, self._fd, self._work.sync)
            except FileExistsError:
                fs.discard(name, self._fd)  # NFS: made, reply lost
        raise Aborted

    def _plan(self) -> None:
        """Write where messages go, for whoever has to move them there."""
        try:
            self._create(f"{self._register}.plan", json.dumps({"move": self._moves}).encode())
        except FileNotFoundError:
            raise self._fenced() from None

    def _reserve(self) -> None:
        """Take the ids of the user's own, under the condition of this transaction."""
        self._keyed = keyed = list[tuple[str, str]]()
        for number, insert in enumerate(self._work.insert):
            if not insert.key:
                continue
            box = ids.Box(f"{self._register}.k{number}", conditional(insert.id, IF, self._txn))
            keyed.append((ids.folder_of(insert.key), box.entry))
            name = conditional(insert.path, IF, self._txn)
            try:
                ids.reserve(self._directory, self._owner.register, insert.key, name, box, self._wait)
                continue
            except FileNotFoundError:
                raise self._fenced() from None
            except ids.Taken:
                keyed.pop()
                fs.remove_tree(box.path, self._fd)
                if not insert.skip:
                    raise Refused from None
                self.skipped = self.skipped | {insert.id}
                self._staged.remove((insert, name))
                fs.discard(name, self._fd)
                if insert.side is not None:
                    drop_sides([insert.side.path], self._fd)

    def _hold(self) -> None:
        """Take what will go or move out of everybody's reach, in one order for everybody: nobody waits in a circle."""
        self._held = held = list[Consumed]()
        for each in self._order:
            if each is self._record and self._lean:
                continue
            name = conditional(each.path, MV if each.target else UN, self._txn)
            held.append(each)
            for _ in range(TRIES):
                try:
                    self._move(each.path, name)
                    break
                except FileNotFoundError:
                    if self._remote and fs.exists(name, self._fd):
                        break  # NFS: done, reply lost
                    if not self._is_back(each.path):
                        raise Refused from None
            else:
                raise Aborted
            self._beat()

    def _flush(self) -> None:
        """Make durable what the commit rests on."""
        folders = {each.path.rpartition("/")[0] for each, _ in self._staged}
        folders |= {each.path.rpartition("/")[0] for each in self._held}
        folders |= {folder for folder, _ in self._keyed}
        if self._moves:
            folders.add(self._register.rpartition("/")[0])
        for folder in sorted(folders):
            self._directory.sync(folder)
            self._beat()

    def _need(self) -> None:
        """Look at what must be there: twice if it is several, so that there was one moment when all of it was."""
        need = self._work.need
        if self._remote:
            for folder in sorted({path.rpartition("/")[0] for path in need}):
                self._revalidate(folder)
        for _ in range(min(len(need), 2)):
            for path in need:
                for _ in range(TRIES):
                    if fs.exists(path, self._fd):
                        break
                    if not self._is_back(path):
                        raise Refused
                else:
                    raise Aborted

    def _revalidate(self, folder: str) -> None:
        """NFS: a name may be cached; after a change of our own in its directory the client asks the server again."""
        name = f"{folder}/.clock-{new_token()}"
        self._create(name, b"")
        fs.discard(name, self._fd)

    # --- the commit ----------------------------------------------------------------------------------------

    def _commit(self) -> None:
        """ONE call decides. Whatever it returns, the register is the truth."""
        self._asked = True
        for _ in range(TRIES):
            try:
                return self._decide()
            except OSError as error:
                verdict = self._verdict()
                if verdict == COMMITTED:
                    return None  # NFS: done, reply lost
                if verdict == ABORTED:
                    raise self._aborted() from None
                if error.errno != errno.ENOENT:
                    raise
            # What was to become the register is not there.
            if not (self._record and self._lean and self._is_back(self._record.path)):
                raise Refused
        raise Aborted

    def _decide(self) -> None:
        if self._record is not None:
            path = self._record.path
            self._move(path if self._lean else conditional(path, UN, self._txn), self._register)
        elif self._moves:
            self._move(f"{self._register}.plan", self._register)
        else:
            # Not closed with care: once it is created, nothing may remove it again.
            fs.close_quietly(fs.open(self._register, fs.CREATE, fs.FILE_MODE, dir_fd=self._fd))

    def _verdict(self) -> str:
        return self._owner.register.look(self._txn)

    def _aborted(self) -> Exception:
        """Return the error for a try that was aborted, or fenced."""
        known = fs.exists(self._register, self._fd)
        if not known:
            self._owner.fenced(self._txn)
            known = fs.exists(f"{REGISTERS}/{register_of(self._txn, gone=True)}", self._fd)
        if known or not self._remote:
            return Aborted()
        # Where replies can be lost it may have been committed, applied and purged to its end since.
        return InDoubt(
            f"the filesystem of {self._directory.path!r} did not answer for so long that the transaction was purged: "
            "it was committed or aborted, and nothing tells which; look for what it was to do",
            path=self._directory.path,
        )

    def _fenced(self) -> Aborted:
        self._owner.fenced(self._txn)
        return Aborted()

    # --- after the commit ----------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Make the commit durable, bring every name to its end, forget the register."""
        self.committed = True
        work, failed = self._work, None
        if work.sync:
            try:
                self._directory.sync(self._register.rpartition("/")[0])
            except FileNotFoundError:
                pass  # fenced since: the purge that did it applies all of it
            except OSError as error:
                failed = error
        applied = self._apply()
        if work.left:
            leave_carried(work)
        if work.carry:
            carry_notes(work.carry, self._fd)
        if applied and work.drop and failed is None:
            drop_sides(work.drop, self._fd)
        self._rest()
        if failed is not None:
            raise access_error(self._directory.path, COMMITTED_NOT_DURABLE, failed) from failed
        if applied and work.sync:
            self._owner.forget(self._register, self._folders())
        elif applied:
            fs.discard(self._register, self._fd)

    def _apply(self) -> bool:
        """Bring every name to its end; return False if some are left to whoever meets them."""
        applied = True
        for insert, name in self._staged:
            try:
                fs.rename_in(name, insert.path, self._fd)
            except FileNotFoundError:
                pass  # another client did it
            except OSError:
                applied = False
        for folder, entry in self._keyed:
            applied &= self._settled(f"{folder}/{entry.partition('.')[0]}", IF)
        for each in self._held:
            if each is not self._record:
                applied &= self._settled(each.path, MV if each.target else UN, each.target)
        return applied

    def _settled(self, path: str, how: str, target: str = "") -> bool:
        name = conditional(path, how, self._txn)
        try:
            if how == IF:
                fs.rename_in(name, path, self._fd)
            elif how == UN:
                fs.unlink(name, dir_fd=self._fd)
            else:
                resolve.carry(name, target, self._fd)
        except FileNotFoundError:
            return True  # another client did it
        except OSError:
            return False
        return True

    def _folders(self) -> set[str]:
        """Return the directories in which names come to their ends."""
        paths = [insert.path for insert, _ in self._staged] + [each.path for each in self._held]
        folders = {path.rpartition("/")[0] for path in paths}
        folders |= {folder for folder, _ in self._keyed}
        for target in self._moves.values():  # and the rooms above, which may be new
            parts = target.split("/")[:-1]
            folders |= {"/".join(parts[: end + 1]) for end in range(len(parts))}
        return folders

    def _undo(self, *, certain: bool) -> None:
        """Take back what was done; what cannot be is left to whoever meets it.

        Args:
            certain: Whether it is known that it was not committed: else some name may mean its side files.
        """
        for _, name in self._staged:
            fs.discard(name, self._fd)
        for folder, entry in self._keyed:
            fs.discard(f"{folder}/{entry}", self._fd)
            fs.remove_quietly(folder, self._fd)
        for each in reversed(self._held):
            try:
                fs.rename_in(
                    conditional(each.path, MV if each.target else UN, self._txn), each.path, self._fd
                )
            except OSError:
                pass  # given back by another client, or never held
        for number, insert in enumerate(self._work.insert):
            if insert.key:
                fs.remove_tree(f"{self._register}.k{number}", self._fd)
        if self._moves:
            fs.discard(f"{self._register}.plan", self._fd)
        drop_notes(self._work.notes, self._fd)
        if certain:
            drop_sides(self._made, self._fd)
            drop_carried(self._work)
        self._rest()
        # A marker that another client set. Nobody needs it any more: no name of this transaction is left.
        fs.remove_quietly(self._register, self._fd)

    # --- what is in the way --------------------------------------------------------------------------------

    def _is_back(self, path: str) -> bool:
        """Return whether a missing name may be there again: it was held by a transaction that is aborted now."""
        folder, _, base = path.rpartition("/")
        try:
            listed = fs.names_in(folder, self._fd)
        except FileNotFoundError:
            return False
        for text in listed:
            if not text.startswith(base):
                continue
            condition = conditions.parse(text)
            if condition is None or condition.base.text != base:
                continue
            staged = condition.how == IF
            if staged and self._owner.register.look(condition.txn) != COMMITTED:
                continue
            verdict = COMMITTED if staged else self._wait(folder + "/", condition)
            try:
                resolve.settle(self._fd, folder + "/", condition, verdict, self._owner.register)
            except FileNotFoundError:
                pass
            return staged or verdict != COMMITTED
        return False

    def _wait(self, prefix: str, condition: Condition) -> str:
        """Give the owner of a name in our way its time, then decide; return the verdict."""
        register, until = self._owner.register, time.monotonic() + 2 * resolve.PATIENCE
        while (verdict := register.look(condition.txn)) == OPEN:
            try:
                facts = fs.stat(prefix + condition.text, dir_fd=self._fd, follow_symlinks=False)
            except FileNotFoundError:
                return ABORTED  # RACE: at its end; the caller looks again
            due = resolve.held_until(facts, condition, register)
            if due <= self._directory.clock.now() or time.monotonic() > until:
                return register.decide(condition.txn)
            self._beat()
            time.sleep(random.uniform(0, PAUSE))  # noqa: S311 - spreads clients, no secret
        return verdict

    def _beat(self) -> None:
        """Show that the owner is alive, if it takes long: others leave what it holds alone for longer."""
        now = time.monotonic()
        if now - self._beaten < BEAT:
            return
        self._beaten, self._alive = now, True
        name = f"{self._register}.alive"
        try:
            fs.close(fs.open(name, fs.CREATE, fs.FILE_MODE, dir_fd=self._fd))
        except FileExistsError:
            fs.utime(name, dir_fd=self._fd)
        except OSError:
            pass  # a comfort; without it the try may be aborted, and begins again

    def _rest(self) -> None:
        if self._alive:
            fs.discard(f"{self._register}.alive", self._fd)

    def _make_rooms(self, folder: str) -> None:
        """Make a directory that a message will be in, and its name durable."""
        resolve.make_rooms(folder, self._fd)
        while self._work.sync and folder:
            folder = folder.rpartition("/")[0]
            self._directory.sync(folder or ".")

    def _move(self, src: str, dst: str) -> None:
        """Rename; a full disk costs a reserve."""
        try:
            fs.rename_in(src, dst, self._fd)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            queues = {each.path.partition("/")[0] for each in self._work.consume}
            if not any(fs.discard(f"{queue}/{ballast.NAME}", self._fd) for queue in queues):
                raise
            fs.rename_in(src, dst, self._fd)


COMMITTED_NOT_DURABLE = (
    "make durable what was committed (it has happened for every process, and may be lost in a power cut) in"
)
