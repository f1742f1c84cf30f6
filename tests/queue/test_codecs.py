"""Typed bodies: text, json, dataclasses, one's own; a bad body does not stop the consumer."""

import struct
from dataclasses import dataclass

import pytest
from support.kit import PATIENCE, put_all

from dirqueue import CodecError, Empty, SettingsError


@dataclass
class Job:
    name: str
    size: int = 0


class Number:
    def encode(self, value):
        return struct.pack("<q", value)

    def decode(self, data):
        return struct.unpack("<q", data)[0]


CASES = [
    ("bytes", b"\x00\xff"),
    ("text", "grüße"),
    ("json", {"a": [1, 2.5, None, "ü"]}),
    (Job, Job("a", 3)),
    (Number(), -5),
]


@pytest.mark.parametrize(("codec", "value"), CASES, ids=lambda each: str(each)[:20])
def test_value_comes_back_as_it_was(make_queue, codec, value):
    """Through put, put_many, get and peek."""
    queue = make_queue(codec=codec)
    id = queue.put(value)
    put_all(queue, [value, value])
    assert queue.message(id).body == value
    assert [lease.message.body for lease in queue.get_many(3, timeout=0)] == [value] * 3


@pytest.mark.parametrize(
    ("codec", "bad"), [("bytes", 5), ("bytes", None), ("text", b"x"), ("json", object()), (Number(), "x")]
)
def test_put_refuses_a_value_that_the_codec_cannot_encode(make_queue, codec, bad, tmp_path):
    """Before anything is written."""
    queue = make_queue(codec=codec)
    with pytest.raises(ValueError, match="encoded") as caught:
        queue.put(bad)
    assert isinstance(caught.value, CodecError)
    assert not (tmp_path / "queue").exists()


@dataclass
class Parcel(Job):
    weight: float = 1.0


@dataclass
class Picky:
    size: int

    def __post_init__(self):
        if self.size < 0:
            raise ValueError("size is negative")


def picky(size):
    made = Picky(0)
    made.size = size
    return made


@pytest.mark.parametrize(
    ("codec", "bad", "why"),
    [
        (Job, "oops", "JSON object"), (Job, 5, "JSON object"), (Job, None, "JSON object"), (Job, [Job("a")], "object"),
        (Job, {"size": 1}, "name"), (Job, {"name": "a", "colour": 1}, "colour"), (Job, Parcel("a"), "weight"),
        (Job, Picky(1), "size|name"), (Picky, picky(-1), "negative"),
    ],
    ids=lambda each: str(each)[:30],
)  # fmt: skip
def test_put_refuses_what_a_typed_queue_could_not_read_back(make_queue, tmp_path, codec, bad, why):
    """Else it is accepted, and buried by a consumer long after the producer could have known."""
    queue = make_queue(codec=codec)
    for put in (queue.put, lambda body: queue.put_many([body])):
        with pytest.raises(CodecError, match=rf"cannot be read back as {codec.__name__}: .*({why})"):
            put(bad)
    assert len(queue) == 0


def test_put_takes_a_dict_that_a_typed_queue_can_read_back(make_queue):
    """As a producer in another language would write it."""
    queue = make_queue(codec=Job)
    queue.put({"name": "a"})
    assert queue.get(timeout=0).message.body == Job("a")


def test_lone_surrogate_is_refused(queue):
    """Text that has no UTF-8."""
    with pytest.raises(CodecError):
        queue.put("\ud800")


def test_body_that_cannot_be_decoded_goes_to_dead(make_queue, needs):
    """With a reason, and the consumer gets the next good one."""
    needs("dead")
    raw = make_queue()
    bad = raw.put(b"{not json")
    raw.put(b'"good"')
    queue = make_queue(codec="json")
    assert queue.get(timeout=PATIENCE).message.body == "good"
    with pytest.raises(Empty):
        queue.get(timeout=0)
    (dead,) = raw.peek("dead")
    assert dead.id == bad
    assert "cannot be decoded" in dead.error
    assert dead.body == b"{not json"


def test_bytes_of_a_typed_message_are_there_too(make_queue):
    """Data is what is on disk."""
    queue = make_queue(codec="json")
    id = queue.put([1, 2])
    assert queue.message(id).data == b"[1,2]"


@pytest.mark.parametrize("codec", ["yaml", 5, object(), int, None])
def test_codec_that_is_none_is_refused(make_queue, codec):
    """The error says what there is."""
    with pytest.raises(SettingsError, match="codec"):
        make_queue(codec=codec)
