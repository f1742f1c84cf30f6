"use strict";
// The views: all queues, all workers, one queue, one message. Each returns nodes; nothing here asks the server.

// From so many queues on, a row each instead of a card.
const CARDS = 12;
// Columns of numbers: to the right, head and all.
const NUMBERS = new Set(["ready", "leased", "delayed", "dead", "put/s", "ack/s", "err/s", "oldest", "holds", "for", "attempts", "priority", "size"]);

// --- all queues ------------------------------------------------------------------------------------------------

function counts(queue) {
  const about = queue.sampled ? "~" : "";
  const piece = (label, value, kind = "") => el("span", { class: kind }, el("b", {}, about + number(value)), ` ${label}`);
  return el("div", { class: "counts" },
    queue.paused ? el("span", { class: "late" }, el("b", {}, "paused")) : null,
    piece("ready", queue.ready), piece("leased", queue.leased), piece("delayed", queue.delayed),
    queue.expired ? piece("late", queue.expired, "late") : null,
    piece("dead", queue.dead, queue.dead ? "bad" : ""),
    queue.done ? piece("done", queue.done) : null);
}

function charts(queue) {
  const { at, depth, put, ack, error } = queue.series;
  const key = (kind, label, value) => el("span", {}, el("b", { class: kind }, rate(value)), ` ${label}`);
  return el("div", { class: "charts" },
    el("figure", {},
      el("figcaption", {}, el("span", {}, el("b", { class: "depth" }, number(queue.total)), " waiting or held")),
      chart([["depth", depth]], at, `depth of ${queue.name}`, { filled: true })),
    el("figure", {},
      el("figcaption", {}, key("put", "put/s", queue.put_rate), key("ack", "ack/s", queue.ack_rate),
        key("err", "errors/s", queue.error_rate)),
      chart([["put", put], ["ack", ack], ["err", error]], at, `rates of ${queue.name}`)));
}

function notes(queue) {
  const facts = [`oldest ready ${age(queue.oldest_ready)}`];
  if (queue.oldest_lease) facts.push(`first lease ends ${ahead(queue.oldest_lease)}, held by ${queue.oldest_lease_token || "a peer"}`);
  if (queue.foreign) facts.push(`${number(queue.foreign)} files that are not dirqueue's`);
  if (queue.sampled) facts.push("~ estimated from a part of the queue");
  return el("p", { class: "quiet" }, facts.join(" · "));
}

const complaints = (queue) => el("span", { class: "complaints" }, queue.complaints.join(" · "));
const home = (queue) => link(queue.key, queue.dead ? "dead" : "ready");

function card(queue) {
  return el("section", { class: `card${queue.complaints.length ? " sick" : ""}`, "data-key": queue.key },
    el("h2", {}, el("a", { href: home(queue) }, queue.name), complaints(queue)),
    ...(queue.error ? [el("p", { class: "error" }, queue.error)] : [counts(queue), charts(queue), notes(queue)]));
}

function row(queue) {
  const about = queue.sampled ? "~" : "";
  const cell = (value, kind = "") => el("td", { class: `num ${kind}` }, about + number(value));
  return el("tr", { "data-key": queue.key, class: queue.complaints.length ? "sick" : "" },
    el("td", {}, el("a", { href: home(queue) }, queue.name), complaints(queue)),
    cell(queue.ready), cell(queue.leased), cell(queue.delayed), cell(queue.dead, queue.dead ? "bad" : ""),
    el("td", { class: "num" }, rate(queue.put_rate)), el("td", { class: "num" }, rate(queue.ack_rate)),
    el("td", { class: "num" }, rate(queue.error_rate)), el("td", { class: "num" }, age(queue.oldest_ready)),
    el("td", { class: "spark" }, spark("depth", queue.series.depth, queue.series.at, `depth of ${queue.name}`)));
}

function rows(queues, words) {
  const by = { sort: words.sort || "sick", order: words.order || "asc" };
  const head = [["queue", "name"], ["ready", "ready"], ["leased", "leased"], ["delayed"], ["dead", "dead"], ["put/s", "rate"],
    ["ack/s"], ["err/s"], ["oldest", "oldest"], ["depth"]];
  return el("div", { class: "scroll" }, el("table", { class: "queues" },
    el("thead", {}, el("tr", {}, ...head.map(([label, sort]) => heading(label, sort, by, "asc", NUMBERS.has(label))))),
    el("tbody", {}, ...queues.map(row))));
}

function summary(totals) {
  const part = (value, label, kind = "") => el("span", { class: kind }, el("b", {}, number(value)), ` ${label}`);
  return el("div", { class: "counts", id: "totals" }, part(totals.queues, totals.queues === 1 ? "queue" : "queues"),
    totals.sick ? part(totals.sick, "to look at", "late") : null, part(totals.ready, "ready"), part(totals.leased, "leased"),
    part(totals.delayed, "delayed"), part(totals.dead, "dead", totals.dead ? "bad" : ""));
}

function sortChoice(words, names) {
  return el("select", { id: "sort", "aria-label": "sort by", onchange: (event) => replaceWords({ sort: event.target.value, order: "" }) },
    ...names.map(([value, label]) => el("option", { value, ...((words.sort || names[0][0]) === value ? { selected: "" } : {}) }, label)));
}

function overview(answer, words) {
  const { queues, totals } = answer;
  if (!totals.queues) return [el("p", { class: "quiet" }, "There is no queue here yet; one appears when something is put.")];
  const tools = totals.queues > 1 ? [el("div", { class: "tools" }, searchBox("find a queue by its name"),
    sortChoice(words, [["sick", "sick first"], ["name", "by name"], ["ready", "most ready"], ["leased", "most leased"],
      ["dead", "most dead"], ["rate", "busiest"], ["oldest", "oldest message"]]))] : [];
  const list = answer.found > CARDS ? rows(queues, words) : el("div", { class: "grid" }, ...queues.map(card));
  return [summary(totals), ...tools, answer.found ? list : el("p", { class: "quiet" }, "No queue has such a name."),
    pager(answer, "queues")].filter(Boolean);
}

// --- workers ---------------------------------------------------------------------------------------------------

function workerTable(workers, withQueue) {
  const cells = (each) => [
    el("td", { class: "mono" }, each.holder),
    withQueue ? el("td", {}, el("a", { href: link(each.key, "leased") }, each.queue)) : null,
    el("td", { class: "num" }, number(each.ids.length)),
    el("td", { class: "num", title: each.since || "" }, each.since ? age(each.since) : "–"),
    el("td", { title: each.until, class: each.late ? "late" : "" }, ahead(each.until) + (each.late ? `, ${each.late} late` : "")),
    el("td", { class: "mono" }, ...each.ids.slice(0, 3).flatMap((id) => [el("a", { href: link(each.key, "leased", id) }, id), " "]),
      each.ids.length > 3 ? "…" : null),
  ];
  const head = ["worker", ...(withQueue ? ["queue"] : []), "holds", "for", "first lease ends", "messages"];
  return el("div", { class: "scroll" }, el("table", { class: "workers" },
    el("thead", {}, el("tr", {}, ...head.map((label) => heading(label, "", {}, "", NUMBERS.has(label))))),
    el("tbody", {}, ...workers.map((each) => el("tr", { "data-key": `${each.key} ${each.holder}` }, ...cells(each))))));
}

function workersPage({ workers, found }) {
  const head = el("h1", {}, "Workers that hold messages");
  if (!workers.length) return [head, el("p", { class: "quiet" }, "Nobody holds a message now.")];
  const more = found > workers.length ? `The ${workers.length} that hold a message for the longest time, of ${number(found)}. ` : "";
  return [head, workerTable(workers, true),
    el("p", { class: "quiet" }, `${more}A worker is a host and a process; "for" is since it claimed or last renewed its first message.`)];
}

// --- one queue -------------------------------------------------------------------------------------------------

// The ids of the messages that are shown and ticked.
let chosen = new Set();

function verbs(state) {
  if (state === "dead") return [["redrive", "Redrive"], ["delete", "Delete"]];
  return state === "ready" || state === "delayed" ? [["reject", "Reject"]] : [];
}

function buttons(queue, state, ids, which = "") {
  return el("div", { class: "buttons" }, ...verbs(state).map(([verb, label]) => el("button", {
    class: verb === "redrive" ? "" : "danger", "data-verb": verb, onclick: () => act(verb, queue, ids()),
  }, label + which)));
}

// Make the boxes and the buttons of the list show what is chosen; what is not listed any more is not.
function showChosen() {
  const boxes = [...document.querySelectorAll("#messages tbody input")];
  chosen = new Set(boxes.map((box) => box.value).filter((id) => chosen.has(id)));
  if (!boxes.length) return;
  for (const box of boxes) box.checked = chosen.has(box.value);
  const all = $("all");
  all.checked = chosen.size === boxes.length;
  all.indeterminate = chosen.size > 0 && !all.checked;
  for (const button of document.querySelectorAll("[data-verb]")) button.disabled = !chosen.size;
}

// What a message carries beside its body: pairs of names and values.
const carried = (message) => Object.entries(message.attributes || {});

function table(messages, queue, where, whole) {
  const able = verbs(where.state).length > 0;
  const by = { sort: where.words.sort || "put", order: where.words.order || "asc" };
  const columns = ["id", "put", "attempts", ...(messages.some((each) => each.priority !== null) ? ["priority"] : []),
    ...(where.state === "ready" ? [] : ["until"]), ...(where.state === "leased" ? ["held by", "for"] : []), "size",
    ...(messages.some((each) => carried(each).length) ? ["attributes"] : []), "error"];
  const labels = { until: where.state === "dead" || where.state === "done" ? "ended" : where.state === "leased" ? "lease ends" : "due" };
  const sorts = { put: "put", attempts: "attempts", until: "until", priority: "priority" };
  const box = (message) => el("input", {
    type: "checkbox", "aria-label": `choose ${message.id}`, value: message.id,
    onchange: (event) => { chosen[event.target.checked ? "add" : "delete"](message.id); showChosen(); },
  });
  const all = el("input", { type: "checkbox", id: "all", "aria-label": "choose all shown", onchange: (event) => {
    chosen = new Set(event.target.checked ? messages.map((message) => message.id) : []);
    showChosen();
  } });
  const cell = {
    id: (m) => el("td", {}, el("a", { class: "mono", href: link(where.key, where.state, m.id) }, m.id)),
    put: (m) => el("td", { title: m.enqueued_at }, `${age(m.enqueued_at)} ago`),
    attempts: (m) => el("td", { class: "num" }, number(m.attempts)),
    priority: (m) => el("td", { class: "num" }, m.priority === null ? "–" : number(m.priority)),
    until: (m) => el("td", { title: m.until || "" }, ahead(m.until)),
    "held by": (m) => el("td", { class: "mono" }, m.token || "–"),
    for: (m) => el("td", { class: "num", title: m.leased_at || "" }, age(m.leased_at)),
    size: (m) => el("td", { class: "num" }, number(m.size)),
    attributes: (m) => el("td", { class: "text" }, carried(m).map(([name, value]) => `${name}=${value}`).join(" ").slice(0, 300)),
    error: (m) => el("td", { class: "text" }, (m.error || "").slice(0, 300)),
  };
  const lines = messages.map((message) => el("tr", { "data-key": message.id },
    able ? el("td", {}, box(message)) : null, ...columns.map((column) => cell[column](message))));
  return [
    able ? el("div", { class: "tools" }, buttons(queue, where.state, () => [...chosen], " ticked"), whole) : null,
    el("div", { class: "scroll" }, el("table", { id: "messages" },
      el("thead", {}, el("tr", {}, able ? el("th", {}, all) : null,
        ...columns.map((column) => heading(labels[column] || column, sorts[column], by, column === "put" ? "desc" : "asc", NUMBERS.has(column))))),
      el("tbody", {}, ...lines))),
  ].filter(Boolean);
}

// What the dead failed with, and what can be done to all that failed with the same.
function errorTable(queue, { errors, kinds, looked, sampled }) {
  const about = sampled ? `the first ${number(looked)} dead` : `${number(looked)} dead`;
  const line = ({ error, count }) => el("tr", { "data-key": `error ${error}` },
    el("td", { class: "num" }, number(count)),
    el("td", { class: "text" }, error.slice(0, 300) || "no reason is known"),
    el("td", { class: "buttons" },
      el("button", { "data-whole": "redrive", onclick: () => actOnAll("redrive", queue, { error }, `the ${number(count)} dead that failed with “${error.slice(0, 120)}”`) }, "Redrive these"),
      el("button", { "data-whole": "delete", class: "danger", onclick: () => actOnAll("delete", queue, { error }, `the ${number(count)} dead that failed with “${error.slice(0, 120)}”`) }, "Delete these")));
  return el("details", { class: "card errors", id: "errors" },
    el("summary", {}, `${number(kinds)} ${kinds === 1 ? "kind" : "kinds"} of error among ${about}`),
    el("table", {}, el("tbody", {}, ...errors.map(line))),
    kinds > errors.length ? el("p", { class: "quiet" }, `The ${errors.length} most frequent.`) : null);
}

function wholeButtons(queue, where, answer) {
  if (where.state !== "dead" || !answer.seen) return null;
  const search = where.words.search;
  const what = search ? `all dead that hold “${search}”` : `all ${queue.sampled ? "~" : ""}${number(queue.dead)} dead`;
  const selection = search ? { search } : { all: true };
  return el("div", { class: "buttons" },
    el("button", { id: "redrive-all", "data-whole": "redrive", onclick: () => actOnAll("redrive", queue, selection, what) }, `Redrive ${what}`),
    el("button", { id: "delete-all", "data-whole": "delete", class: "danger", onclick: () => actOnAll("delete", queue, selection, what) }, `Delete ${what}`));
}

function listTools(where) {
  const newest = where.words.order === "desc" && (where.words.sort || "put") === "put";
  return el("div", { class: "tools" }, searchBox("find in ids, errors, attributes and bodies"),
    el("a", { id: "newest", href: reworded({ sort: "put", order: newest ? "" : "desc" }) }, newest ? "oldest first" : "newest first"));
}

function pauseButton(queue) {
  const verb = queue.paused ? "resume" : "pause";
  return el("div", { class: "buttons" },
    el("button", { id: "pause", onclick: () => switchQueue(verb, queue) }, capital(verb)));
}

function queuePage(queue, answer, extra, where) {
  const tabs = states.map((state) => el("a", { href: link(where.key, state), ...(state === where.state ? { "aria-current": "page" } : {}) },
    `${state} ${queue.sampled ? "~" : ""}${number(queue[state])}`));
  const shown = answer.messages.length ? table(answer.messages, queue, where, wholeButtons(queue, where, answer))
    : [el("p", { class: "quiet" }, answer.seen && where.words.search ? "Nothing that was searched holds that." : `Nothing is ${where.state}.`)];
  const remarks = [];
  if (answer.searched !== null && answer.searched < answer.seen) remarks.push(`searched ${number(answer.searched)} of ${number(answer.seen)}`);
  if (answer.sampled) remarks.push("a part of a deep queue");
  return [
    el("h1", {}, queue.name, complaints(queue)),
    el("div", { class: "card wide" }, counts(queue), charts(queue), notes(queue), pauseButton(queue)),
    el("nav", {}, ...tabs),
    extra.workers?.length ? workerTable(extra.workers, false) : null,
    extra.errors?.looked ? errorTable(queue, extra.errors) : null,
    answer.seen > 1 || where.words.search ? listTools(where) : null,
    ...shown,
    pager(answer, where.words.search ? "found" : "messages"),
    remarks.length ? el("p", { class: "quiet" }, remarks.join(" · ")) : null,
  ].filter(Boolean);
}

// --- one message -----------------------------------------------------------------------------------------------

function details(message, queue, where) {
  const facts = [["id", message.id], ["state", message.state], ["attempts", String(message.attempts)],
    ["put", message.enqueued_at], ["until", message.until], ["last leased", message.leased_at],
    ["held by", message.token], ["priority", message.priority === null ? null : String(message.priority)],
    ["size", `${number(message.size)} bytes`], ["expires", message.expires_at], ["failed", message.failed_at]];
  const binary = "body_base64" in message;
  return [
    el("h1", {}, queue.name),
    el("p", {}, el("a", { href: link(where.key, where.state) }, `← ${where.state} messages of ${queue.name}`)),
    el("dl", {}, ...facts.filter(([, value]) => value).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    ...(message.error ? [el("h2", {}, "Error"), el("pre", { id: "error" }, [message.error, message.trace].filter(Boolean).join("\n"))] : []),
    ...(carried(message).length ? [el("h2", {}, "Attributes"), el("dl", { id: "attributes" },
      ...carried(message).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]))] : []),
    buttons(queue, message.state, () => [message.id]),
    el("h2", {}, "Body" + (binary ? " (not text; as base64)" : "") + (message.truncated ? " (the beginning)" : "")),
    el("pre", { id: "body" }, binary ? message.body_base64 : message.body),
  ];
}
