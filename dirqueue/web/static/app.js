"use strict";
// Everything from the server is put into the page as text, never as HTML, and without invisible characters.

const EVERY = 2000;
const STATES = ["ready", "delayed", "leased", "dead", "done"];
const $ = (id) => document.getElementById(id);

// --- the token -------------------------------------------------------------------------------------------------
// It comes in the fragment, which browsers never send, and goes into a header, which other sites cannot set.

const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  sessionStorage.setItem("token", given);
  history.replaceState(null, "", "#/");
}

async function ask(path, options = {}) {
  const token = sessionStorage.getItem("token") || "";
  const headers = { Authorization: `Bearer ${token}`, ...options.headers };
  const response = await fetch(path, { ...options, headers, cache: "no-store" });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error || response.statusText);
  return answer;
}

const query = (path, words) => `${path}?${new URLSearchParams(words)}`;

// --- small things ----------------------------------------------------------------------------------------------

// Controls other than tab and newline, characters that reorder or hide text, and halves of characters.
const INVISIBLE = /[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|\r(?!\n)|\p{Cs}/gu;
const visible = (text) => text.replace(INVISIBLE, (each) => "\\u" + each.charCodeAt(0).toString(16).padStart(4, "0"));

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on") || typeof value === "boolean") node[name] = value;
    else node.setAttribute(name, visible(value));
  }
  node.append(...children.filter((child) => child !== null).map((child) => child instanceof Node ? child : visible(child)));
  return node;
}

const number = (value) => value.toLocaleString("en");
const rate = (value) => value === null ? "–" : value > 0 && value < 10 ? value.toFixed(1) : number(Math.round(value));

function duration(seconds) {
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "m"]]) {
    if (seconds >= 2 * size) return `${Math.round(seconds / size)}${unit}`;
  }
  return `${Math.max(0, Math.round(seconds))}s`;
}

const age = (when) => when ? duration((Date.now() - new Date(when)) / 1000) : "–";

function ahead(when) {
  if (!when) return "–";
  const left = (new Date(when) - Date.now()) / 1000;
  return left > 0 ? `in ${duration(left)}` : `${duration(-left)} ago`;
}

function toast(text) {
  $("toast").textContent = visible(text);
  $("toast").hidden = false;
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => { $("toast").hidden = true; }, 6000);
}

function sure(question, word) {
  const dialog = $("confirm");
  $("question").textContent = visible(question);
  $("sure").textContent = word;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    // The event comes a little later: the one of the question before finds this one open.
    dialog.onclose = () => { if (!dialog.open) resolve(dialog.returnValue === "yes"); };
  });
}

// --- where we are ----------------------------------------------------------------------------------------------
// #/  #/q/KEY/STATE  #/q/KEY/STATE/ID, each part encoded

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // typed by hand: no queue has such a key
  }
}

function place() {
  const [, kind, key, state, id] = location.hash.slice(1).split("/").map(decoded);
  return kind === "q" ? { key, state: STATES.includes(state) ? state : "ready", id } : {};
}

const link = (key, state, id) => "#/q/" + [key, state, id].filter(Boolean).map(encodeURIComponent).join("/");

// --- pieces ----------------------------------------------------------------------------------------------------

function counts(queue) {
  const about = queue.sampled ? "~" : "";
  const piece = (label, value, kind = "") => el("span", { class: kind }, el("b", {}, about + number(value)), ` ${label}`);
  return el("div", { class: "counts" },
    piece("ready", queue.ready), piece("leased", queue.leased), piece("delayed", queue.delayed),
    queue.expired ? piece("late", queue.expired, "late") : null,
    piece("dead", queue.dead, queue.dead ? "bad" : ""),
    queue.done ? piece("done", queue.done) : null);
}

function charts(queue) {
  const series = queue.series;
  const key = (kind, label, value) => el("span", {}, el("b", { class: kind }, rate(value)), ` ${label}`);
  return el("div", { class: "charts" },
    el("figure", {},
      chart([["depth", series.depth]], `depth of ${queue.name}`, { filled: true }),
      el("figcaption", {}, el("span", {}, el("b", { class: "depth" }, number(queue.total)), " waiting or held"))),
    el("figure", {},
      chart([["put", series.put], ["ack", series.ack], ["err", series.error]], `rates of ${queue.name}`),
      el("figcaption", {}, key("put", "put/s", queue.put_rate), key("ack", "ack/s", queue.ack_rate),
        key("err", "errors/s", queue.error_rate))));
}

function notes(queue) {
  const facts = [`oldest ready ${age(queue.oldest_ready)}`];
  if (queue.oldest_lease) facts.push(`first lease ends ${ahead(queue.oldest_lease)}, held by ${queue.oldest_lease_token || "a peer"}`);
  if (queue.foreign) facts.push(`${number(queue.foreign)} files that are not dirqueue's`);
  if (queue.sampled) facts.push("~ estimated from a part of the queue");
  return el("p", { class: "quiet" }, facts.join(" · "));
}

function overview(queues) {
  if (!queues.length) return [el("p", { class: "quiet" }, "There is no queue here yet; one appears when something is put.")];
  return [el("div", { class: "grid" }, ...queues.map((queue) => el("section", { class: "card", "data-key": queue.key },
    el("h2", {}, el("a", { href: link(queue.key, queue.dead ? "dead" : "ready") }, queue.name)),
    ...(queue.error ? [el("p", { class: "error" }, queue.error)] : [counts(queue), charts(queue), notes(queue)]))))];
}

// --- one queue -------------------------------------------------------------------------------------------------

// The ids of the messages that are shown and ticked.
let chosen = new Set();

function verbs(state) {
  if (state === "dead") return [["redrive", "Redrive"], ["delete", "Delete"]];
  return state === "ready" || state === "delayed" ? [["reject", "Reject"]] : [];
}

const questions = {
  redrive: (n, name) => `Make ${n} dead in ${name} ready again, with attempts reset?`,
  delete: (n, name) => `Delete ${n} dead in ${name}? This cannot be undone.`,
  reject: (n, name) => `Move ${n} waiting in ${name} to dead?`,
};

async function act(verb, queue, ids) {
  const many = ids.length === 1 ? "1 message that is" : `${ids.length} messages that are`;
  if (!await sure(questions[verb](many, queue.name), verb[0].toUpperCase() + verb.slice(1))) return;
  try {
    const result = await ask("api/act", {
      method: "POST", headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ queue: queue.key, verb, ids }),
    });
    const { done, failed } = result;
    toast(`${verb}: ${done} done` + (failed.length ? `, ${failed.length} not: ${failed[0]}` : ""));
    chosen = new Set();
    if (place().id) location.hash = link(queue.key, place().state);
  } catch (error) {
    toast(error.message);
  }
  refresh();
}

function buttons(queue, state, ids) {
  return el("div", { class: "buttons" }, ...verbs(state).map(([verb, label]) => el("button", {
    class: verb === "redrive" ? "" : "danger", "data-verb": verb, onclick: () => act(verb, queue, ids()),
  }, label)));
}

// Make the boxes and the buttons of the list show what is chosen; what is not listed any more is not.
function showChosen() {
  const boxes = [...document.querySelectorAll("tbody input")];
  chosen = new Set(boxes.map((box) => box.value).filter((id) => chosen.has(id)));
  if (!boxes.length) return;
  for (const box of boxes) box.checked = chosen.has(box.value);
  const all = $("all");
  all.checked = chosen.size === boxes.length;
  all.indeterminate = chosen.size > 0 && !all.checked;
  for (const button of document.querySelectorAll("[data-verb]")) button.disabled = !chosen.size;
}

function table(messages, queue, where) {
  const able = verbs(where.state).length > 0;
  const columns = ["id", "put", "attempts", ...(where.state === "leased" || where.state === "delayed" ? ["until"] : []),
    ...(where.state === "leased" ? ["held by"] : []), "size", "error"];
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
    until: (m) => el("td", { title: m.until || "" }, ahead(m.until)),
    "held by": (m) => el("td", { class: "mono" }, m.token || "–"),
    size: (m) => el("td", { class: "num" }, number(m.size)),
    error: (m) => el("td", { class: "text" }, (m.error || "").slice(0, 300)),
  };
  const rows = messages.map((message) => el("tr", { "data-key": message.id },
    able ? el("td", {}, box(message)) : null, ...columns.map((column) => cell[column](message))));
  return [
    able ? buttons(queue, where.state, () => [...chosen]) : null,
    el("div", { class: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {}, able ? el("th", {}, all) : null, ...columns.map((column) => el("th", {}, column)))),
      el("tbody", {}, ...rows))),
  ].filter(Boolean);
}

function details(message, queue, where) {
  const facts = [["id", message.id], ["state", message.state], ["attempts", String(message.attempts)],
    ["put", message.enqueued_at], ["until", message.until], ["last leased", message.leased_at],
    ["held by", message.token], ["priority", message.priority === null ? null : String(message.priority)],
    ["size", `${number(message.size)} bytes`], ["failed", message.failed_at]];
  const binary = "body_base64" in message;
  return [
    el("p", {}, el("a", { href: link(where.key, where.state) }, `← ${where.state} messages of ${queue.name}`)),
    el("dl", {}, ...facts.filter(([, value]) => value).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    ...(message.error ? [el("h2", {}, "Error"), el("pre", { id: "error" }, message.error)] : []),
    buttons(queue, message.state, () => [message.id]),
    el("h2", {}, "Body" + (binary ? " (not text; as base64)" : "") + (message.truncated ? " (the beginning)" : "")),
    el("pre", { id: "body" }, binary ? message.body_base64 : message.body),
  ];
}

async function queuePage(where, queues) {
  const queue = queues.find((each) => each.key === where.key);
  if (!queue) return [el("p", {}, `There is no queue ${where.key} any more. `, el("a", { href: "#/" }, "All queues"))];
  const head = [el("h1", {}, queue.name)];
  if (queue.error) return [...head, el("p", { class: "error" }, queue.error)];
  if (where.id) {
    const message = await ask(query("api/message", { queue: where.key, id: where.id }));
    return [...head, ...details(message, queue, where)];
  }
  const { messages, seen, sampled } = await ask(query("api/messages", { queue: where.key, state: where.state }));
  const tabs = STATES.map((state) => el("a", { href: link(where.key, state), ...(state === where.state ? { "aria-current": "page" } : {}) },
    `${state} ${queue.sampled ? "~" : ""}${number(queue[state])}`));
  const list = messages.length ? table(messages, queue, where) : [el("p", { class: "quiet" }, `Nothing is ${where.state}.`)];
  const more = seen > messages.length ? [el("p", { class: "quiet" }, `The oldest ${messages.length} of ${sampled ? "at least " : ""}${number(seen)}.`)] : [];
  return [...head, el("div", { class: "card wide" }, counts(queue), charts(queue), notes(queue)), el("nav", {}, ...tabs), ...list, ...more];
}

// --- the loop --------------------------------------------------------------------------------------------------

let turn = 0;

async function refresh() {
  clearTimeout(refresh.timer);
  const mine = ++turn;
  const where = place();
  let again = !where.id; // a message that is being read is not redrawn under the reader's eyes
  try {
    const { root, queues } = await ask("api/queues");
    const nodes = where.key ? await queuePage(where, queues) : overview(queues);
    if (mine !== turn) return;
    $("root").textContent = visible(root);
    const queue = queues.find((each) => each.key === where.key);
    document.title = queue ? `${visible(queue.name)} · dirqueue` : "dirqueue";
    draw(nodes, location.hash);
    state("on", "live");
  } catch (error) {
    if (mine !== turn) return;
    again = true;
    state("off", error instanceof TypeError ? "the server does not answer" : "error");
    if (!(error instanceof TypeError)) draw([el("p", { class: "error", id: "problem" }, error.message)], "problem");
  }
  if (again) refresh.timer = setTimeout(refresh, EVERY);
}

function state(kind, text) {
  $("live").className = kind;
  $("live").textContent = text;
}

// The same view is changed in place: the focus, a selection and the scrolled table stay. Another view is put up anew.
function draw(nodes, view) {
  if (draw.view === view) morphChildren($("main"), nodes);
  else $("main").replaceChildren(...nodes);
  draw.view = view;
  showChosen();
}

addEventListener("hashchange", () => { chosen = new Set(); refresh(); });
refresh();
