"use strict";
// Everything from the server is put into the page as text, never as HTML.

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
  const told = await response.json();
  if (!response.ok) throw new Error(told.error || response.statusText);
  return told;
}

const query = (path, words) => `${path}?${new URLSearchParams(words)}`;

// --- small things ----------------------------------------------------------------------------------------------

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (typeof value === "boolean") node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
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
  $("toast").textContent = text;
  $("toast").hidden = false;
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => { $("toast").hidden = true; }, 6000);
}

function sure(question, word) {
  const dialog = $("confirm");
  $("question").textContent = question;
  $("sure").textContent = word;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    // The event comes a little later: one that belongs to the question before finds this one open.
    dialog.onclose = () => { if (!dialog.open) resolve(dialog.returnValue === "yes"); };
  });
}

// --- where we are ----------------------------------------------------------------------------------------------
// #/  #/q/NAME/STATE  #/q/NAME/STATE/ID, each part encoded

function place() {
  const [, kind, name, state, id] = location.hash.slice(1).split("/").map(decodeURIComponent);
  return kind === "q" ? { name, state: STATES.includes(state) ? state : "ready", id } : {};
}

const link = (name, state, id) => "#/q/" + [name, state, id].filter(Boolean).map(encodeURIComponent).join("/");

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
  const told = [`oldest ready ${age(queue.oldest_ready)}`];
  if (queue.oldest_lease) told.push(`first lease ends ${ahead(queue.oldest_lease)}, held by ${queue.oldest_lease_token || "a peer"}`);
  if (queue.foreign) told.push(`${number(queue.foreign)} files that are not dirqueue's`);
  if (queue.sampled) told.push("~ estimated from a part of the queue");
  return el("p", { class: "quiet" }, told.join(" · "));
}

function overview(queues) {
  if (!queues.length) return [el("p", { class: "quiet" }, "There is no queue here yet; one appears when something is put.")];
  return [el("div", { class: "grid" }, ...queues.map((queue) => el("section", { class: "card", "data-queue": queue.name },
    el("h2", {}, el("a", { href: link(queue.name, queue.dead ? "dead" : "ready") }, queue.name)),
    ...(queue.error ? [el("p", { class: "error" }, queue.error)] : [counts(queue), charts(queue), notes(queue)]))))];
}

// --- one queue -------------------------------------------------------------------------------------------------

let chosen = new Set();

function verbs(state) {
  if (state === "dead") return [["redrive", "Redrive"], ["delete", "Delete"]];
  return state === "ready" || state === "delayed" ? [["reject", "Reject"]] : [];
}

const questions = {
  redrive: (n, name) => `Make ${n} dead in ${name} ready again, attempts forgotten?`,
  delete: (n, name) => `Delete ${n} dead in ${name} for good? This cannot be undone.`,
  reject: (n, name) => `Move ${n} waiting in ${name} to dead?`,
};

async function act(verb, name, ids) {
  const many = ids.length === 1 ? "1 message that is" : `${ids.length} messages that are`;
  if (!await sure(questions[verb](many, name), verb[0].toUpperCase() + verb.slice(1))) return;
  try {
    const told = await ask("api/act", {
      method: "POST", headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ queue: name, verb, ids }),
    });
    toast(`${verb}: ${told.done} done` + (told.failed.length ? `, ${told.failed.length} not: ${told.failed[0]}` : ""));
    chosen = new Set();
    if (place().id) location.hash = link(name, place().state);
  } catch (error) {
    toast(error.message);
  }
  refresh();
}

function table(messages, where) {
  const able = verbs(where.state).length > 0;
  const columns = ["id", "put", "attempts", ...(where.state === "leased" || where.state === "delayed" ? ["until"] : []),
    ...(where.state === "leased" ? ["held by"] : []), "size", "error"];
  const buttons = verbs(where.state).map(([verb, label]) => el("button", {
    class: verb === "redrive" ? "" : "danger", "data-verb": verb, disabled: !chosen.size,
    onclick: () => act(verb, where.name, [...chosen]),
  }, label));
  const enable = () => buttons.forEach((button) => { button.disabled = !chosen.size; });
  const box = (message) => el("input", {
    type: "checkbox", "aria-label": `choose ${message.id}`, checked: chosen.has(message.id),
    onchange: (event) => { chosen[event.target.checked ? "add" : "delete"](message.id); enable(); },
  });
  const all = el("input", { type: "checkbox", "aria-label": "choose all shown", onchange: (event) => {
    chosen = new Set(event.target.checked ? messages.map((message) => message.id) : []);
    rows.querySelectorAll("input").forEach((each) => { each.checked = event.target.checked; });
    enable();
  } });
  const cell = {
    id: (m) => el("td", {}, el("a", { class: "mono", href: link(where.name, where.state, m.id) }, m.id)),
    put: (m) => el("td", { title: m.enqueued_at }, `${age(m.enqueued_at)} ago`),
    attempts: (m) => el("td", { class: "num" }, number(m.attempts)),
    until: (m) => el("td", { title: m.until || "" }, ahead(m.until)),
    "held by": (m) => el("td", { class: "mono" }, m.token || "–"),
    size: (m) => el("td", { class: "num" }, number(m.size)),
    error: (m) => el("td", { class: "text" }, (m.error || "").slice(0, 300)),
  };
  const rows = el("tbody", {}, ...messages.map((message) => el("tr", {},
    able ? el("td", {}, box(message)) : null, ...columns.map((column) => cell[column](message)))));
  return [
    able ? el("div", { class: "buttons" }, ...buttons) : null,
    el("div", { class: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {}, able ? el("th", {}, all) : null, ...columns.map((column) => el("th", {}, column)))), rows)),
  ].filter(Boolean);
}

function details(message, where) {
  const facts = [["id", message.id], ["state", message.state], ["attempts", String(message.attempts)],
    ["put", message.enqueued_at], ["until", message.until], ["last leased", message.leased_at],
    ["held by", message.token], ["priority", message.priority === null ? null : String(message.priority)],
    ["size", `${number(message.size)} bytes`], ["failed", message.failed_at]];
  const binary = "body_base64" in message;
  return [
    el("p", {}, el("a", { href: link(where.name, where.state) }, `← ${where.state} messages of ${where.name}`)),
    el("dl", {}, ...facts.filter(([, value]) => value).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    ...(message.error ? [el("h2", {}, "Error"), el("pre", { id: "error" }, message.error)] : []),
    el("div", { class: "buttons" }, ...verbs(message.state).map(([verb, label]) => el("button", {
      class: verb === "redrive" ? "" : "danger", "data-verb": verb,
      onclick: () => act(verb, where.name, [message.id]),
    }, label))),
    el("h2", {}, "Body" + (binary ? " (not text; as base64)" : "") + (message.truncated ? " (the beginning)" : "")),
    el("pre", { id: "body" }, binary ? message.body_base64 : message.body),
  ];
}

async function queuePage(where, queues) {
  const queue = queues.find((each) => each.name === where.name);
  if (!queue) return [el("p", {}, `There is no queue ${where.name} any more. `, el("a", { href: "#/" }, "All queues"))];
  const head = [el("h1", {}, queue.name)];
  if (queue.error) return [...head, el("p", { class: "error" }, queue.error)];
  if (where.id) return [...head, ...details(await ask(query("api/message", { queue: where.name, id: where.id })), where)];
  const told = await ask(query("api/messages", { queue: where.name, state: where.state }));
  const tabs = STATES.map((state) => el("a", { href: link(where.name, state), ...(state === where.state ? { "aria-current": "page" } : {}) },
    `${state} ${queue.sampled ? "~" : ""}${number(queue[state])}`));
  const list = told.messages.length ? table(told.messages, where) : [el("p", { class: "quiet" }, `Nothing is ${where.state}.`)];
  const more = told.seen > told.messages.length ? [el("p", { class: "quiet" }, `The oldest ${told.messages.length} of ${told.sampled ? "at least " : ""}${number(told.seen)}.`)] : [];
  return [...head, el("div", { class: "card wide" }, counts(queue), charts(queue), notes(queue)), el("nav", {}, ...tabs), ...list, ...more];
}

// --- the loop --------------------------------------------------------------------------------------------------

let turn = 0;

async function refresh() {
  clearTimeout(refresh.timer);
  const mine = ++turn;
  const where = place();
  try {
    const told = await ask("api/queues");
    const shown = where.name ? await queuePage(where, told.queues) : overview(told.queues);
    if (mine !== turn) return;
    $("root").textContent = told.root;
    document.title = where.name ? `${where.name} · dirqueue` : "dirqueue";
    draw(shown);
    state("on", "live");
  } catch (error) {
    if (mine !== turn) return;
    state("off", error instanceof TypeError ? "the server does not answer" : "error");
    if (!(error instanceof TypeError)) draw([el("p", { class: "error", id: "problem" }, error.message)]);
  }
  // A message that is being read is not redrawn under the reader's eyes.
  if (!where.id) refresh.timer = setTimeout(refresh, EVERY);
}

function state(kind, text) {
  $("live").className = kind;
  $("live").textContent = text;
}

// Keep the keyboard where it was: the page is drawn anew every two seconds.
function draw(nodes) {
  const label = document.activeElement?.getAttribute("aria-label") || document.activeElement?.getAttribute("href");
  const scrolled = document.querySelector(".scroll")?.scrollLeft || 0;
  $("main").replaceChildren(...nodes);
  const table = document.querySelector(".scroll");
  if (table) table.scrollLeft = scrolled;
  if (label) {
    [...$("main").querySelectorAll("input, a")]
      .find((each) => each.getAttribute("aria-label") === label || each.getAttribute("href") === label)?.focus({ preventScroll: true });
  }
}

addEventListener("hashchange", () => { chosen = new Set(); refresh(); });
refresh();
