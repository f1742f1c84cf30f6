"use strict";
// What every view is made of. Everything from the server is put into the page as text, never as HTML, and without
// invisible characters.

const $ = (id) => document.getElementById(id);

// --- the token -------------------------------------------------------------------------------------------------
// It comes in the fragment, which browsers never send, and goes into a header, which other sites cannot set.

const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  sessionStorage.setItem("token", given);
  history.replaceState(null, "", "#/");
}

async function ask(path, words = {}, options = {}) {
  const token = sessionStorage.getItem("token") || "";
  const headers = { Authorization: `Bearer ${token}`, ...options.headers };
  const asked = Object.entries(words).filter(([, value]) => value);
  const response = await fetch(asked.length ? `${path}?${new URLSearchParams(asked)}` : path, { ...options, headers, cache: "no-store" });
  const answer = await response.json();
  if (!response.ok) throw Object.assign(new Error(answer.error || response.statusText), { status: response.status });
  return answer;
}

const order = (body) => ask("api/act", {}, {
  method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
});

// --- nodes -----------------------------------------------------------------------------------------------------

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

// --- numbers and times -----------------------------------------------------------------------------------------

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

// --- telling and asking ----------------------------------------------------------------------------------------

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
// #/?WORDS  #/workers  #/q/KEY/STATE?WORDS  #/q/KEY/STATE/ID, each part encoded; WORDS are search, sort, order, offset

// The states that messages are listed by: the first answer of the server brings them.
let states = [];

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // typed by hand: no queue has such a key
  }
}

function place() {
  const [path, query = ""] = location.hash.slice(1).split("?");
  const words = Object.fromEntries(new URLSearchParams(query));
  const [, kind, key, state, id] = path.split("/").map(decoded);
  if (kind === "q") return { view: path, key, state: state || "ready", id, words };
  return kind === "workers" ? { view: path, workers: true, words } : { view: "/", words };
}

const link = (key, state, id) => "#/q/" + [key, state, id].filter(Boolean).map(encodeURIComponent).join("/");

// The same view with other words; a changed search or order begins at the first page.
function reworded(words) {
  const here = place();
  const joined = { ...here.words, offset: "", ...words };
  const query = new URLSearchParams(Object.entries(joined).filter(([, value]) => value)).toString();
  return `#${here.view}${query ? `?${query}` : ""}`;
}

// Go there without a new entry in the browser's history: for what is typed letter by letter.
function replaceWords(words) {
  history.replaceState(null, "", reworded(words));
  refresh();
}

// --- lists -----------------------------------------------------------------------------------------------------

function searchBox(hint) {
  return el("input", {
    type: "search", id: "search", placeholder: hint, "aria-label": hint, value: place().words.search || "",
    oninput: (event) => {
      clearTimeout(searchBox.timer);
      searchBox.timer = setTimeout(() => replaceWords({ search: event.target.value }), 250);
    },
  });
}

function pager({ offset, limit, found }, what) {
  if (found <= limit) return null;
  const step = (to, label) => el("a", { href: reworded({ offset: String(to) }), ...(to < 0 || to >= found ? { "aria-disabled": "true", tabindex: "-1" } : {}) }, label);
  return el("div", { class: "pager", "data-key": "pager" },
    step(offset - limit, "← before"),
    el("span", {}, `${number(offset + 1)} to ${number(Math.min(found, offset + limit))} of ${number(found)} ${what}`),
    step(offset + limit, "after →"));
}

// A head of a column; those that can be sorted by are links. `first` is the order that the first click gives.
function heading(label, sort, current, first = "asc", numeric = false) {
  const kind = numeric ? "num" : "";
  if (!sort) return el("th", { class: kind }, label);
  const on = current.sort === sort;
  const next = on ? (current.order === "asc" ? "desc" : "asc") : first;
  const mark = on ? (current.order === "asc" ? " ▲" : " ▼") : "";
  return el("th", { class: kind, ...(on ? { "aria-sort": current.order === "asc" ? "ascending" : "descending" } : {}) },
    el("a", { href: reworded({ sort, order: next }) }, label + mark));
}
