"""The page in a real browser."""

import json
import os

import pytest
from support.commandline import start
from support.patience import until
from support.webclient import EVIL, dead_ids

import dirqueue

pytestmark = pytest.mark.needs("chromium")

#: A terminal's escape, DEL, a C1 control, "right to left from here", a zero-width space.
CONTROLS = "a\x1b[31mb\x7fc\x9bd\u202ee\u200bf\ttab\r\nline"
CONTROLS_SHOWN = "a\\u001b[31mb\\u007fc\\u009bd\\u202ee\\u200bf\ttab\r\nline"


def show_dead(browser, server, rows=3):
    """Open the list of the dead letters."""
    browser.open(server.url)
    browser.until("document.querySelector('[data-key=orders] h2 a')")
    browser.js("document.querySelector('[data-key=orders] h2 a').click()")
    browser.until(f"document.querySelectorAll('#messages tbody tr').length === {rows}")


def redraw(browser):
    """Wait until the page was drawn again twice: a draw that was on its way may be of before."""
    browser.js("window.drawn = 0; window.draw = new Proxy(window.draw, "
               "{ apply(f, self, words) { f(...words); window.drawn++; } })")  # fmt: skip
    browser.until("window.drawn >= 2")


def test_the_page_shows_queues_messages_and_dead_letters(serve, spool, browser, tmp_path):
    """Overview, dead letters, body and error as text, delete and redrive with confirmation; light, dark, narrow."""
    server = serve()
    queue = dirqueue.Queue(spool / "orders")
    browser.open(server.url)
    browser.until("document.querySelectorAll('.card svg').length === 4")
    assert "3 dead" in browser.js("document.querySelector('[data-key=orders]').innerText")
    assert browser.js("location.hash") == "#/", "the token does not stay in the address"

    browser.js("document.querySelector('[data-key=orders] h2 a').click()")
    browser.until("document.querySelectorAll('#messages tbody tr').length === 3")
    browser.js("document.querySelector('#messages tbody a').click()")
    browser.until("document.querySelector('#body')")
    assert browser.js("document.querySelector('#body').textContent") == EVIL
    assert browser.js("document.querySelector('#error').textContent") == f"cannot ship: {EVIL}"
    assert browser.js("document.querySelectorAll('main img, main script').length") == 0
    assert browser.js("document.title") == "orders · dirqueue"

    # Answering no changes nothing; answering yes deletes this one.
    _, second, third = dead_ids(spool)
    for answer, left in (("no", 3), ("yes", 2)):
        browser.until("document.querySelector('[data-verb=delete]')")
        browser.js("document.querySelector('[data-verb=delete]').click()")
        browser.until("document.querySelector('dialog').open")
        browser.js(f"document.querySelector('dialog button[value={answer}]').click()")
        browser.until("!document.querySelector('dialog').open")
        until(lambda left=left: len(dead_ids(spool)) == left, f"{left} dead letters")
    assert dead_ids(spool) == [second, third]

    # Back in the list: choose all, redrive.
    browser.until("document.querySelectorAll('#messages tbody tr').length === 2")
    browser.js("document.querySelector('#messages thead input').click()")
    browser.until("!document.querySelector('[data-verb=redrive]').disabled")
    browser.js("document.querySelector('[data-verb=redrive]').click()")
    browser.until("document.querySelector('dialog').open")
    assert "2 messages" in browser.js("document.querySelector('#question').textContent")
    browser.js("document.querySelector('#sure').click()")
    until(lambda: not dead_ids(spool), "the dead letters to be redriven")
    browser.until("document.querySelector('main').innerText.includes('Nothing is dead')")
    assert queue.stats().ready == 3

    # A put is seen without a reload, and no width scrolls sideways.
    browser.js("location.hash = '#/'")
    queue.put(b"one more")
    browser.until("document.querySelector('[data-key=orders]')?.innerText.includes('4 ready')")
    for width in (390, 1200):
        for dark in (False, True):
            browser.screenshot(tmp_path / "page.png", width, 800, dark=dark)
            assert browser.js("document.documentElement.scrollWidth") <= width
            assert (tmp_path / "page.png").stat().st_size > 5000
    assert browser.errors == []


def test_the_page_without_the_token_shows_what_to_open(serve, browser):
    """Instead of the bare address."""
    browser.open(serve().url.partition("#")[0])
    browser.until("document.querySelector('#problem')?.textContent.includes('token is missing')")


def test_the_page_shows_that_the_server_is_gone(spool, browser, tmp_path):
    """And keeps what it showed."""
    process = start("web", "spool", "--port", "0", cwd=tmp_path)
    log = tmp_path / "said"
    try:
        url = until(lambda: log.read_bytes().endswith(b"\n") and log.read_text(), "the address").split()[-1]
        browser.open(url)
        browser.until("document.querySelector('#live').className === 'on'")
    finally:
        process.kill()
        process.wait()
    browser.until("document.querySelector('#live').className === 'off'")
    assert browser.js("document.querySelectorAll('.card').length") == 2


@pytest.mark.parametrize(
    "element",
    [
        "#messages tbody tr:nth-child(2) input",
        "#messages tbody tr:nth-child(2) a",
        "main nav a:nth-child(4)",
        "#all",
        "#search",
        "#newest",
        "th[aria-sort] a",
        "#redrive-all",
    ],
)
def test_a_redraw_keeps_the_focus(serve, spool, browser, element):
    """The very element, not one like it, although rows come and go around it."""
    show_dead(browser, serve())
    browser.js(f"window.kept = document.querySelector('{element}'); window.kept.focus(); window.blurs = 0; "
               "window.kept.addEventListener('blur', () => { window.blurs++; })")  # fmt: skip
    queue = dirqueue.Queue(spool / "orders")
    queue.redrive(dead_ids(spool)[0])
    for lease in queue.consume(timeout=0):
        lease.reject("another")
    redraw(browser)
    browser.until("document.querySelectorAll('#messages tbody tr').length === 4")
    assert browser.js("document.activeElement === window.kept && window.kept.isConnected")
    assert browser.js("window.blurs") == 0


def test_a_redraw_keeps_what_is_chosen(serve, spool, browser):
    """Boxes, the box for all, the buttons, and a text that is being copied."""
    show_dead(browser, serve())
    first, second, third = dead_ids(spool)
    box = "document.querySelector('#all')"
    chosen = "[...document.querySelectorAll('#messages tbody input:checked')].map((each) => each.value)"
    assert browser.js("document.querySelector('[data-verb=delete]').disabled")
    browser.js(
        f"{box}.click(); getSelection().selectAllChildren(document.querySelector('#messages tbody a'))"
    )
    redraw(browser)
    assert browser.js(f"{box}.checked && !{box}.indeterminate")
    assert browser.js(chosen) == [first, second, third]
    assert not browser.js("document.querySelector('[data-verb=delete]').disabled")
    assert browser.js("getSelection().toString()") == first

    # What comes later was not chosen; what is gone is not chosen any more.
    queue = dirqueue.Queue(spool / "orders")
    queue.get(timeout=0).reject("another")
    browser.until("document.querySelectorAll('#messages tbody tr').length === 4")
    assert browser.js(chosen) == [first, second, third]
    assert browser.js(f"!{box}.checked && {box}.indeterminate")
    queue.redrive(second)
    browser.until("document.querySelectorAll('#messages tbody tr').length === 3")
    assert browser.js(chosen) == [first, third]
    browser.js("document.querySelector('[data-verb=delete]').click()")
    browser.until("document.querySelector('dialog').open")
    assert "2 messages" in browser.js("document.querySelector('#question').textContent")
    browser.js("document.querySelector('#sure').click()")
    until(lambda: len(dead_ids(spool)) == 1, "two to be deleted")
    assert dirqueue.Queue(spool / "orders").message(second).state == "ready"
    browser.until("document.querySelectorAll('#messages tbody tr').length === 1")
    assert browser.js(f"!{box}.checked && !{box}.indeterminate")
    assert browser.js("document.querySelector('[data-verb=delete]').disabled")
    assert browser.errors == []


def test_a_redraw_keeps_how_far_the_table_is_scrolled(serve, browser):
    """On a narrow screen."""
    show_dead(browser, serve())
    browser.call(
        "Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=True
    )
    browser.js("document.querySelector('.scroll:has(#messages)').scrollLeft = 40")
    redraw(browser)
    assert browser.js("document.querySelector('.scroll:has(#messages)').scrollLeft") == 40


def test_names_bodies_and_errors_are_shown_without_invisible_characters(serve, spool, browser, tmp_path):
    """A name that is not UTF-8 does not blank the page; nothing reorders or hides text."""
    name = "gr\udcfcn \x1b[31m \u202egnp.exe"
    queue = dirqueue.Queue(os.fspath(spool / name), sync=False)
    queue.put(CONTROLS)
    queue.get(timeout=0).reject(CONTROLS)
    shown = "gr\\xfcn \\u001b[31m \\u202egnp.exe"
    browser.open(serve().url)
    browser.until("document.querySelectorAll('.card').length === 3")
    titles = browser.js("[...document.querySelectorAll('.card h2 a')].map((each) => each.textContent)")
    assert titles == [shown, "orders", "mail/out"]

    browser.js("document.querySelector('.card h2 a').click()")
    browser.until("document.querySelectorAll('#messages tbody tr').length === 1")
    assert browser.js("document.querySelector('h1').firstChild.textContent") == shown
    assert browser.js("document.querySelector('#messages td.text').textContent") == CONTROLS_SHOWN
    assert browser.js("document.title") == f"{shown} · dirqueue"
    browser.js("document.querySelector('#messages tbody a').click()")
    browser.until("document.querySelector('#body')")
    assert browser.js("document.querySelector('#body').textContent") == CONTROLS_SHOWN
    assert browser.js("document.querySelector('#error').textContent") == CONTROLS_SHOWN
    browser.screenshot(tmp_path / "message.png")

    browser.js("document.querySelector('[data-verb=redrive]').click()")
    browser.until("document.querySelector('dialog').open")
    assert shown in browser.js("document.querySelector('#question').textContent")
    browser.js("document.querySelector('#sure').click()")
    until(lambda: queue.stats().ready == 1, "it to be redriven")
    assert browser.errors == []


def test_an_address_typed_by_hand_does_not_stop_the_page(serve, browser):
    """It shows something, and goes on."""
    browser.open(serve().url)
    browser.until("document.querySelectorAll('.card').length === 2")
    for fragment in ("#/q/%", "#/q/%FF/%E0%A4%A", "#/q/orders/nothing", "#////"):
        browser.js(f"location.hash = {json.dumps(fragment)}")
        redraw(browser)
        assert browser.js("document.querySelector('#live').className") == "on"
    browser.js("location.hash = '#/'")
    browser.until("document.querySelectorAll('.card').length === 2")
    assert all("404" in error for error in browser.errors), browser.errors


def say_yes(browser):
    """Answer the question that the page asks; return the question."""
    browser.until("document.querySelector('dialog').open")
    question = browser.js("document.querySelector('#question').textContent")
    browser.js("document.querySelector('#sure').click()")
    return question


def test_dead_letters_are_redriven_by_error_by_search_and_all(serve, spool, browser):
    """Each after a question that says which; the kinds of errors stay unfolded while the page is redrawn."""
    queue = dirqueue.Queue(spool / "failing", sync=False)
    queue.put_many([b"order %d" % number for number in range(30)])
    for number, lease in enumerate(queue.consume(timeout=0)):
        lease.reject("no route to host" if number % 3 else "no such customer")
    browser.open(serve().url)
    browser.until("document.querySelector('[data-key=failing] h2 a')")
    browser.js("document.querySelector('[data-key=failing] h2 a').click()")
    browser.until("document.querySelectorAll('#messages tbody tr').length === 30")
    browser.js("document.querySelector('#errors').open = true")
    redraw(browser)
    assert browser.js("document.querySelector('#errors').open")
    shown = browser.js(
        "[...document.querySelectorAll('#errors tr')].map((each) => each.innerText.split('\\t').slice(0, 2))"
    )
    assert shown == [["20", "no route to host"], ["10", "no such customer"]]

    browser.js("document.querySelectorAll('#errors [data-whole=redrive]')[1].click()")
    assert "the 10 dead that failed with “no such customer” in failing" in say_yes(browser)
    until(lambda: queue.stats().ready == 10, "ten to be ready")
    browser.until("document.querySelectorAll('#messages tbody tr').length === 20")

    browser.js("document.querySelector('#search').focus()")
    browser.call("Input.insertText", text="order 2")
    browser.until("document.querySelectorAll('#messages tbody tr').length < 20")
    found = browser.js("document.querySelectorAll('#messages tbody tr').length")
    assert browser.js("document.activeElement.id") == "search"
    assert "search=order" in browser.js("location.hash")
    browser.js("document.querySelector('#redrive-all').click()")
    assert "all dead that hold “order 2”" in say_yes(browser)
    until(lambda: queue.stats().dead == 20 - found, "those to be ready")

    browser.js("location.hash = '#/q/failing/dead'")
    browser.until(f"document.querySelectorAll('#messages tbody tr').length === {20 - found}")
    browser.js("document.querySelector('#redrive-all').click()")
    assert f"all {20 - found} dead" in say_yes(browser)
    until(lambda: queue.stats().dead == 0, "all to be ready")
    assert browser.errors == []


def test_messages_are_paged_and_sorted(serve, spool, browser):
    """Newest first by a link, other columns by their heads; the pages are all of them."""
    queue = dirqueue.Queue(spool / "long", sync=False)
    ids = sorted(queue.put_many([b"x"] * 230))
    listed = "[...document.querySelectorAll('#messages tbody a')].map((each) => each.textContent)"
    browser.open(serve().url)
    browser.until("document.querySelector('.card')")
    browser.js("location.hash = '#/q/long/ready'")
    browser.until("document.querySelectorAll('#messages tbody tr').length === 100")
    assert browser.js(listed) == ids[:100]
    browser.js("document.querySelector('#newest').click()")
    browser.until(f"{listed}[0] === '{ids[-1]}'")
    browser.js("document.querySelector('.pager a:last-child').click()")
    browser.until(f"{listed}[0] === '{ids[129]}'")
    browser.js("document.querySelector('.pager a:last-child').click()")
    browser.until("document.querySelectorAll('#messages tbody tr').length === 30")
    assert browser.js(listed) == ids[:30][::-1]
    assert "201 to 230 of 230 messages" in browser.js("document.querySelector('.pager').innerText")
    assert browser.js("document.querySelector('th[aria-sort]').getAttribute('aria-sort')") == "descending"
    browser.js("history.back()")
    browser.until(f"{listed}[0] === '{ids[129]}'")
    assert browser.errors == []


def test_a_thousand_queues_are_a_table_that_can_be_searched(serve, spool, browser, tmp_path):
    """The page holds fifty of them, sick ones first; what is typed stays in the box while the list changes."""
    for number in range(1000):
        os.makedirs(spool / f"team{number % 7}" / f"q{number:03}")
    dirqueue.Queue(spool / "team1" / "q001", sync=False).put(b"x")
    browser.open(serve().url)
    browser.until("document.querySelectorAll('table.queues tbody tr').length === 50")
    assert browser.js("document.querySelector('table.queues tbody a').textContent") == "orders"
    assert "1,002 queues" in browser.js("document.querySelector('#totals').innerText")
    assert "1 to 50 of 1,002 queues" in browser.js("document.querySelector('.pager').innerText")
    browser.js("document.querySelector('#search').focus()")
    browser.call("Input.insertText", text="Q00")
    browser.until("document.querySelectorAll('.card').length === 10")
    assert browser.js("document.activeElement.id + document.activeElement.value") == "searchQ00"
    sort = "document.querySelector('#sort')"
    browser.js(f"{sort}.value = 'ready'; {sort}.dispatchEvent(new Event('change'))")
    browser.until("document.querySelector('.card h2 a').textContent === 'team1/q001'")
    browser.screenshot(tmp_path / "many.png", 390, 800)
    assert browser.js("document.documentElement.scrollWidth") <= 390
    assert browser.errors == []


def test_charts_have_a_scale_and_times(serve, spool, browser):
    """Round numbers from 0 to the top, and the time of day at both ends."""
    queue = dirqueue.Queue(spool / "orders", sync=False)
    queue.put_many([b"x"] * 150)
    browser.open(serve().url)
    browser.until("document.querySelectorAll('[data-key=orders] .plot').length === 2")
    labels = (
        "[...document.querySelector('[data-key=orders] .plot .{}').children].map((each) => each.textContent)"
    )
    assert browser.js(labels.format("ys")) == ["200", "100", "0"]
    times = browser.js(labels.format("xs"))
    assert len(times) == 3
    assert all(len(each.split(":")) == 3 for each in times)
    redraw(browser)
    browser.until("document.querySelector('[data-key=orders] path.put').getAttribute('d') !== ''")
    assert browser.errors == []


def test_queue_is_paused_and_resumed_and_attributes_are_shown(serve, spool, browser, tmp_path):
    """By a button that asks first; a message shows what it carries, as text."""
    queue = dirqueue.Queue(spool / "orders", sync=False)
    id = queue.put(b"noted", attributes={"trace": "4bf<b>92", "sender": "web-3"}, ttl=3600)
    show_dead(browser, serve())
    browser.js("location.hash = '#/q/orders/ready'")
    browser.until("document.querySelector('#messages')?.textContent.includes('sender=web-3')")
    for verb, now in (("Pause", True), ("Resume", False)):
        browser.until(f"document.querySelector('#pause')?.textContent === '{verb}'")
        browser.js("document.querySelector('#pause').click()")
        browser.until("document.querySelector('dialog').open")
        browser.js("document.querySelector('dialog button[value=yes]').click()")
        browser.until(f"document.body.textContent.includes('orders is {verb.lower()}d')")
        assert queue.paused is now
        browser.screenshot(tmp_path / f"{verb}.png")
    browser.js(f"location.hash = '#/q/orders/ready/{id}'")
    browser.until("document.querySelector('#attributes')?.textContent.includes('4bf<b>92')")
    assert browser.js("document.querySelectorAll('#attributes b').length") == 0
    browser.screenshot(tmp_path / "attributes.png")
    assert browser.errors == []


def test_workers_are_shown_with_what_they_hold(serve, spool, browser):
    """On their own page, and above the leased messages of a queue."""
    lease = dirqueue.Queue(spool / "orders").get(timeout=0, lease=3600)
    browser.open(serve().url)
    browser.until("document.querySelector('#live.on')")  # a click before the scripts ran would lose the token
    browser.js("document.querySelector('header nav a[href=\"#/workers\"]').click()")
    browser.until("document.querySelectorAll('table.workers tbody tr').length === 1")
    cells = browser.js(
        "[...document.querySelectorAll('table.workers td')].map((each) => each.innerText.trim())"
    )
    assert cells[:3] == [lease.token.rsplit("-", 2)[0], "orders", "1"]
    assert cells[5] == lease.message.id
    browser.js("document.querySelector('table.workers td:nth-child(2) a').click()")
    browser.until("document.querySelector('#messages')")
    assert browser.js("document.querySelectorAll('table.workers tbody tr').length") == 1
    lease.ack()
    browser.until("document.querySelector('main').innerText.includes('Nothing is leased')")
    assert browser.errors == []
