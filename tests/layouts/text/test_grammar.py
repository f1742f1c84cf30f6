"""The grammar: what textqueue 1.1 reads, ours reads; what ours writes, textqueue 1.1 reads."""

import pytest
import textqueue
from hypothesis import given
from hypothesis import strategies as st

from dirqueue.layouts.text import grammar

STATUS = {"-": "queued", "=": "cleared", "!": "critical", "#": "comment"}
BITS = [
    "-",
    "=",
    "!",
    "#",
    "\\",
    " ",
    "\n",
    "\n\n",
    "\r\n",
    "\r",
    "\t",
    "é",
    "\0",
    "\u2028",
    "a",
    "\n-",
    "\n ",
    "\n\\",
]


def theirs(path, data):
    """Return what textqueue 1.1 makes of a file: (status, value, variables, offset), or the text of its error."""
    path.write_bytes(data)
    queue = textqueue.TextQueue()
    queue.input_files.append((str(path), open(path, "r+", encoding="utf-8")))  # noqa: SIM115 - its own open is the locale's
    found = []
    try:
        while True:
            try:
                item = queue.get_next_in_file(0, True, True, True)
            except ValueError as error:
                found.append(str(error)[:31])
                continue
            if item is None:
                return found
            found.append((item.status.name, item.value, item.get_variables(), item.control_offset))
    finally:
        queue.close()


def ours(data):
    """Return the same, by our grammar."""
    found = []
    for item in grammar.items(data):
        if item.foreign:
            found.append(f"Unexpected Control Character '{data[item.offset :].decode()[0]}"[:31])
        else:
            variables = tuple(each.value.decode() for each in item.variables)
            found.append((STATUS[item.control], item.text.decode(), variables, item.offset))
    return found


def real_offsets(found, like):
    """Replace offsets that are none: behind a lone carriage return textqueue gives a cookie of its decoder."""
    return [
        (*each[:3], other[3]) if isinstance(each, tuple) and isinstance(other, tuple) and each[3] >= 1 << 40 else each
        for each, other in zip(found, like, strict=True)
    ]  # fmt: skip


VECTORS = [
    b"", b"\n", b"-a\n=b\n!c\n#d\n", b"-a\n\n\n-b\n", b"-a\n\n b\n", b"-a\n\n\\v\n", b" x\n-a\n", b"\\x\n-a\n",
    b"   \n-a\n", b"-a\n   \n-b\n", b"-a\n \n b\n", b"-a\n \n", b"-a\n\tb\n", b"-  I have space padding  \n", b"-\n",
    b"-", b"-a\n-b", b"-a\n b", b"-a\n\\v", b"T2024-x\n", b"X..\n", b">x\n", b"*tag:1\n", b"!12-Some\n",
    b"-a\r\n-b\r\n", b"-a\r\n\r\n b\r\n\\v\r\n", b"-a\rb\n-c\n", b"-a\r-b\n", b"-a\n\\v\n cont\n",
    b"-a\n\\v1\n\\v2  \n",
    b"-a\n\\\n", b"# c\n  cont\n\\v\n", "-a\0\v\f\u2028\x85b\n".encode(), b"-a\n ", b"-a\n \n ", b"-\\a\n-- b\n-=\n",
]  # fmt: skip


@pytest.mark.parametrize("data", VECTORS)
def test_vector_is_read_as_textqueue_reads_it(tmp_path, data):
    mine = ours(data)
    assert real_offsets(theirs(tmp_path / "q", data), mine) == mine


@given(st.lists(st.sampled_from(BITS), max_size=16).map("".join))
def test_any_file_is_read_as_textqueue_reads_it(tmp_path_factory, text):
    """Status, value, variables, offsets and refused lines."""
    data = text.encode()
    mine = ours(data)
    assert real_offsets(theirs(tmp_path_factory.getbasetemp() / "file", data), mine) == mine


@given(st.lists(st.text(st.characters(exclude_characters="\r\0", exclude_categories=["Cs"])), max_size=5))
def test_text_that_we_write_is_what_textqueue_reads(tmp_path_factory, texts):
    data = b"".join(grammar.encode(text.encode())[0] for text in texts)
    found = theirs(tmp_path_factory.getbasetemp() / "file", data)
    assert [(status, value, variables) for status, value, variables, _ in found] == [
        ("queued", text, ()) for text in texts
    ]


@given(st.binary(max_size=200))
def test_body_comes_back(body):
    """Any bytes; those that the format cannot hold as base64."""
    lines, text = grammar.encode(body)
    (item,) = grammar.items(lines)
    assert item.body == body
    assert item.text == text
    assert grammar.digest(item.text) == grammar.digest(text)


def test_bad_base64_is_delivered_as_it_is():
    """Somebody edited it."""
    (item,) = grammar.items(b"-not base64!\n\\encoding=base64\n")
    assert item.body == b"not base64!"


def test_byte_order_mark_is_passed_over():
    """On purpose: textqueue passes over the first message instead."""
    (item,) = grammar.items(grammar.BOM + b"-a\n")
    assert (item.offset, item.text) == (3, b"a")


@given(
    st.lists(st.binary(max_size=9000).filter(lambda body: b"\r" not in body), max_size=8),
    st.integers(0, 9000),
)
def test_no_message_lies_in_two_pages(bodies, at):
    """Those of up to a page; a longer one has no page that begins with a dash."""
    for body in bodies:
        lines, _ = grammar.encode(body)
        at += len(grammar.padding(len(lines), at, lines))
        if len(lines) <= grammar.PAGE:
            assert at // grammar.PAGE == (at + len(lines) - 1) // grammar.PAGE
        else:
            assert b"-" not in [
                lines[n : n + 1] for n in range(-at % grammar.PAGE or grammar.PAGE, len(lines), grammar.PAGE)
            ]
        at += len(lines)


def test_message_of_dashes_alone_is_written_all_the_same():
    """There is no better place for it."""
    lines, _ = grammar.encode(b"-" * 9000)
    assert grammar.padding(len(lines), 0, lines) == b""


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4095])
def test_padding_is_read_as_nothing(tmp_path, length):
    filled = grammar.fill(length)
    assert len(filled) == length
    (found,) = (each for each in theirs(tmp_path / "q", filled + b"-a\n") if each[0] != "comment")
    assert found[1] == "a"


@pytest.mark.parametrize(
    ("data", "whole", "queue"),
    [
        (b"", True, True), (b"-a\n", True, True), (b"# c\n\n-a\n b\n\\v\n", True, True), (b" a\n", True, False),
        (b"\\a\n", True, False), (b"#!/bin/sh\necho\n", True, False), (b"\x7fELF\0", True, False),
        (grammar.BOM + b"-a\n", True, True), (b"-a\r\n-b\r\n", True, True), (b"-a\nrest of a li", False, True),
        (b"-a\nodd\n-b", False, False),
    ],
)  # fmt: skip
def test_file_is_known_by_how_its_lines_begin(data, whole, queue):
    assert grammar.looks_like(data, whole=whole) == queue


@pytest.mark.parametrize("length", [1, 2, 3, 100, 2000, 4095, 4096])
def test_message_at_the_end_of_a_page_goes_to_the_next(length):
    for at in range(2 * grammar.PAGE - 300, 2 * grammar.PAGE + 3):
        start = at + len(grammar.padding(length, at, b"x" * length))
        assert start // grammar.PAGE == (start + length - 1) // grammar.PAGE
        assert start - at < grammar.PAGE
