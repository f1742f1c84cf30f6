"""Records: a list of byte strings in one body, as docs/records.md describes it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from dirqueue import CodecError, Queue
from dirqueue.records import RECORDS, count_of

PAGE = (Path(__file__).parents[2] / "docs" / "records.md").read_text()
EXAMPLE = [b"ab", b"", b"c"]


@given(some.lists(some.binary(max_size=50), max_size=50))
def test_records_come_back_as_they_went(records):
    """Empty lists and empty records too."""
    body = RECORDS.encode(records)
    assert RECORDS.decode(body) == records
    assert count_of(body[:8]) == len(records)


def test_the_body_on_the_page_is_the_one_that_is_written():
    """Byte for byte."""
    (shown,) = re.findall(r"```text\n([0-9a-f ]+)\n```", PAGE)
    assert bytes.fromhex(shown.replace(" ", "")) == RECORDS.encode(EXAMPLE)


def test_no_damaged_body_is_read():
    """Any byte changed, any end cut off, anything appended."""
    body = RECORDS.encode(EXAMPLE)
    damaged = [body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :] for at in range(len(body))]
    damaged += [body[:end] for end in range(len(body))] + [body + b"\0"]
    for each in damaged:
        with pytest.raises(ValueError, match="records"):
            RECORDS.decode(each)


def test_lengths_that_do_not_add_up_are_refused():
    """By a writer whose checksum is right and whose lengths are not."""
    from dirqueue.records import pack

    with pytest.raises(ValueError, match="add up to 3 bytes, but 2 are there"):
        RECORDS.decode(pack(1, (3).to_bytes(4, "little"), b"ab"))


@pytest.mark.skipif(not shutil.which("perl"), reason="no Perl here")
def test_the_reader_of_the_page_reads_what_is_written():
    """In Perl, from the page; and it refuses a damaged body."""
    (program,) = re.findall(r"```perl\n(.*?)```", PAGE, re.DOTALL)
    body = RECORDS.encode(EXAMPLE)

    def read(data):
        return subprocess.run(["perl", "-we", program], input=data, capture_output=True, check=False)

    assert read(body).stdout.decode().split("\n") == ["3", "6162", "", "63", ""]
    assert read(body[:-1] + b"\0").stderr == b"damaged\n"
    assert read(b"hello, world").stderr == b"no records\n"


def test_a_queue_of_records(queue_dir):
    """One message, claimed and acknowledged as one; a damaged one goes to dead/."""
    queue = Queue(queue_dir, codec="records")
    queue.put(["text", b"bytes", memoryview(b"memory")])
    with queue.get(timeout=0) as message:
        assert message.body == [b"text", b"bytes", b"memory"]
    Queue(queue_dir).put(b"DQR1 but not really")
    assert list(queue.consume(timeout=0)) == []
    assert queue.stats().dead == 1


@pytest.mark.parametrize("body", ["text", b"bytes", {"a": 1}, [1, 2], 7])
def test_what_is_no_list_of_byte_strings_is_refused(queue_dir, body):
    """A text would be a list of its letters."""
    with pytest.raises(CodecError):
        Queue(queue_dir, codec="records").put(body)
