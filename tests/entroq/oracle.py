"""EntroQ itself, to be compared with: its stored procedures, from the schema that entroq 0.13.1 brings.

They are the backend that EntroQ's service runs on. What is asked of a Store is asked of them, in their own words.
"""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
from psycopg.rows import dict_row

from dirqueue.entroq import values
from dirqueue.entroq.tasks import DependencyError, InvalidArgument, Modified, Task, TaskId

#: Where the Makefile installs the release whose schema this is.
VERSION = "0.13.1"
SCHEMA = Path(__file__).parents[2] / ".venv" / "entroq" / VERSION / "entroq/experimental/pg/schema.sql"


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def instant(milliseconds):
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def milliseconds(moment):
    return (moment - EPOCH) // timedelta(milliseconds=1)


def task(row):
    return Task(
        id=row["id"],
        version=row["version"],
        queue=row["queue"],
        at=milliseconds(row["at"]),
        claimant=row["claimant"],
        value=values.from_json(row["value"]),
        created=milliseconds(row["created"]),
        modified=milliseconds(row["modified"]),
        claims=row["claims"],
        attempt=row["attempt"],
        err=row["err"],
    )


class Oracle:
    """The stored procedures as a store of tasks."""

    def __init__(self, address):
        self.connection = psycopg.connect(address, autocommit=True, row_factory=dict_row)
        self.connection.execute("DROP SCHEMA IF EXISTS entroq CASCADE")
        self.connection.execute(SCHEMA.read_text(encoding="utf-8"))

    def close(self):
        self.connection.close()

    def rows(self, text, *values):
        return self.connection.execute(text, values).fetchall()

    def time(self):
        return milliseconds(self.rows("SELECT now() AS now")[0]["now"])

    def claim_this(self, id, query):
        """Let the procedure claim; all but one task are out of its sight, since it draws lots."""
        with self.connection.transaction():
            self.rows("UPDATE entroq.tasks SET queue = '?' || queue WHERE id <> %s RETURNING 1", id)
            found = self.rows(
                "SELECT * FROM entroq.try_claim(%s, %s, %s::interval)",
                list(query.queues),
                query.claimant,
                f"{query.duration} milliseconds",
            )
            self.rows("UPDATE entroq.tasks SET queue = substr(queue, 2) WHERE id <> %s RETURNING 1", id)
        return task(found[0]) if found else None

    def claim_none(self, query):
        """Return what the procedure claims where nothing can be claimed."""
        return self.rows(
            "SELECT * FROM entroq.try_claim(%s, %s, '1 second'::interval)", list(query.queues), query.claimant
        )

    def modify(self, modification):
        try:
            rows = self.rows(
                "SELECT * FROM entroq.modify(%s, %s::jsonb, %s::jsonb, %s::jsonb, %s::jsonb)",
                modification.claimant,
                json.dumps([each._asdict() for each in modification.depends]),
                json.dumps([each._asdict() for each in modification.deletes]),
                json.dumps([self._data(each) for each in modification.inserts]),
                json.dumps([self._change(each) for each in modification.changes]),
            )
        except psycopg.DatabaseError as error:
            if error.diag.sqlstate == "EQ001":
                raise self._dependency(json.loads(error.diag.message_detail), modification) from error
            raise InvalidArgument(str(error)) from error
        by_kind = {"inserted": [], "changed": []}
        for row in rows:
            by_kind[row["kind"]].append(task(row))
        return Modified(**by_kind)

    def _data(self, data):
        given = {
            "queue": data.queue,
            "value": values.to_json(data.value),
            "attempt": data.attempt,
            "err": data.err,
        }
        # The procedure takes instants, and one of long ago for "now": a duration is the client's business.
        assert not data.by
        given["at"] = instant(max(data.at or 0, 0)).isoformat()
        return given | ({"id": data.id} if data.id else {})

    def _change(self, change):
        id, version, queue = change.old
        data = self._data(change.data)
        return {
            **data,
            "id": id,
            "version": version,
            "from_queue": queue,
            "queue": change.data.queue or queue,
        }

    @staticmethod
    def _dependency(detail, modification):
        """Say in a Store's words what the procedure reports: it knows no kinds of use."""
        absent = {each["id"] for kind in ("missing", "mismatched") for each in detail[kind]}
        taken = {each["id"] for each in detail["collisions"]}
        return DependencyError(
            inserts=[TaskId(each.id, 0, each.queue) for each in modification.inserts if each.id in taken],
            changes=[each.old for each in modification.changes if each.old.id in absent],
            deletes=[each for each in modification.deletes if each.id in absent],
            depends=[each for each in modification.depends if each.id in absent],
        )

    def tasks(self):
        return [task(row) for row in self.rows("SELECT * FROM entroq.tasks")]

    def queues(self, prefix="", exact=()):
        """Return name -> size: the procedure counts nothing else."""
        rows = self.rows("SELECT * FROM entroq.queues(%s, %s::text[], 0)", prefix, list(exact))
        return {row["name"]: row["num_tasks"] for row in rows}
