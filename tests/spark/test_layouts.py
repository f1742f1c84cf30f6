"""Directories that other programs write are read too; they cannot be pinned or written."""

import pytest

from dirqueue import Queue


def test_directories_of_dirq_and_vsqs_are_read(spark, tmp_path):
    """As python-dirq and vsqs write them; the pieces of a dirq-normal element are a map."""
    from dirq.queue import Queue as Normal
    from dirq.QueueSimple import QueueSimple

    Normal(str(tmp_path / "normal"), schema={"body": "string", "header": "string"}).add(
        {"body": "one", "header": "h"}
    )
    QueueSimple(str(tmp_path / "simple")).add(b"two")
    Queue(tmp_path / "vsqs", layout="vsqs").put(b"three")

    def values(name, **options):
        return spark.read.format("dirqueue").options(**options).load(str(tmp_path / name)).collect()

    assert [bytes(row.value) for row in values("simple")] == [b"two"]
    assert [bytes(row.value) for row in values("vsqs", layout="vsqs")] == [b"three"]
    (row,) = values("normal", pieces="true")
    assert {name: bytes(piece) for name, piece in row.pieces.items()} == {"body": b"one", "header": b"h"}
    assert bytes(row.value) == b"one"


def test_another_layout_is_not_written_to(spark, tmp_path):
    """The error names the layout and the reason."""
    from dirq.QueueSimple import QueueSimple

    QueueSimple(str(tmp_path / "simple")).add(b"two")
    frame = spark.sql("SELECT 'x' AS value")
    with pytest.raises(Exception, match="dirq-simple layout, which Spark can only read"):
        frame.write.format("dirqueue").mode("append").save(str(tmp_path / "simple"))
