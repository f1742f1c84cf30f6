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
    reader = spark.read.format("dirqueue").option("pieces", "true").schema("pieces map<string,string>")
    (row,) = reader.load(str(tmp_path / "normal")).collect()
    assert row.pieces == {"body": "one", "header": "h"}


@pytest.fixture
def elements(tmp_path):
    """A dirq-normal queue: an element with all pieces, one without the optional one, one that is locked."""
    from dirq.queue import Queue as Normal

    queue = Normal(str(tmp_path / "n"), schema={"body": "string", "header": "table", "blob": "binary?"})
    queue.add({"body": "one", "header": {"k": "a\tb", "l": "ü"}, "blob": b"\xff"})
    queue.add({"body": "two", "header": {}})
    locked = queue.add({"body": "three", "header": {}})
    assert queue.lock(locked)
    return str(tmp_path / "n")


def test_the_pieces_of_an_element_are_columns(spark, elements):
    """Found in the elements, as bytes; a piece that is missing is null."""
    frame = spark.read.format("dirqueue").option("pieces", "columns").load(elements)
    assert frame.columns[-3:] == ["blob", "body", "header"]
    rows = {bytes(row.body): row for row in frame.collect()}
    assert set(rows) == {b"one", b"two"}
    assert (bytes(rows[b"one"].blob), rows[b"two"].blob) == (b"\xff", None)
    assert bytes(rows[b"one"].header) == b"k\ta\\tb\nl\t\xc3\xbc\n"
    assert bytes(rows[b"one"].value) == b"one"


def test_the_pieces_of_an_element_have_the_types_of_the_schema(spark, elements):
    """Text as string, a table as a map; the columns of a message go with them, in every state."""
    reader = spark.read.format("dirqueue").option("pieces", "columns").option("state", "all")
    frame = reader.schema("id string, state string, body string, header map<string,string>").load(elements)
    rows = {row.body: row for row in frame.collect()}
    assert rows["one"].header == {"k": "a\tb", "l": "ü"}
    assert rows["two"].header == {}
    assert {name: row.state for name, row in rows.items()} == {
        "one": "ready", "two": "ready", "three": "leased",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("blob string", "the blob of message .* is not UTF-8 text: read blob as binary"),
        ("blob map<string,string>", "the piece blob of .* is not a table .*read it as binary"),
        ("body int", "column 'body' is binary or string or map<string,string>, not int"),
    ],
)
def test_a_piece_of_another_type_is_named(spark, elements, schema, text):
    """With the queue and the way out."""
    reader = spark.read.format("dirqueue").option("pieces", "columns").schema(schema)
    with pytest.raises(Exception, match=text):
        reader.load(elements).collect()


def test_an_element_without_a_body_is_read_by_its_pieces(spark, tmp_path):
    """A read that wants the body says which option gives the rest."""
    from dirq.queue import Queue as Normal

    Normal(str(tmp_path / "n"), schema={"text": "string"}).add({"text": "t"})
    reader = spark.read.format("dirqueue")
    with pytest.raises(Exception, match="the option pieces=true reads whatever an element is made of"):
        reader.load(str(tmp_path / "n")).collect()
    (row,) = reader.option("pieces", "columns").load(str(tmp_path / "n")).collect()
    assert (bytes(row.text), row.value) == (b"t", None)


def test_another_layout_is_not_written_to(spark, tmp_path):
    """The error names the layout and the reason."""
    from dirq.QueueSimple import QueueSimple

    QueueSimple(str(tmp_path / "simple")).add(b"two")
    frame = spark.sql("SELECT 'x' AS value")
    with pytest.raises(Exception, match="dirq-simple layout, which Spark can only read"):
        frame.write.format("dirqueue").mode("append").save(str(tmp_path / "simple"))
