"use strict";
// What happens: orders, and the loop that asks and draws.

const EVERY = 2000;
// Seconds without a look at the queues after which the page says so.
const OLD = 30;

// --- orders ----------------------------------------------------------------------------------------------------

const questions = {
  redrive: (what, name) => `Make ${what} in ${name} ready again, with attempts reset?`,
  delete: (what, name) => `Delete ${what} in ${name}? This cannot be undone.`,
  reject: (what, name) => `Move ${what} in ${name} to dead?`,
  pause: (_, name) => `Pause ${name}? It takes puts and gives nothing to any consumer until it is resumed.`,
  resume: (_, name) => `Resume ${name}? Its consumers go on.`,
};
const capital = (word) => word[0].toUpperCase() + word.slice(1);

async function act(verb, queue, ids) {
  const kind = verb === "reject" ? "waiting" : "dead";
  const many = ids.length === 1 ? `1 message that is ${kind}` : `${ids.length} messages that are ${kind}`;
  if (!await sure(questions[verb](many, queue.name), capital(verb))) return;
  try {
    const { done, failed } = await order({ queue: queue.key, verb, ids });
    toast(`${verb}: ${done} done` + (failed.length ? `, ${failed.length} not: ${failed[0]}` : ""));
    chosen = new Set();
    if (place().id) location.hash = link(queue.key, place().state);
  } catch (error) {
    toast(error.message);
  }
  refresh();
}

// One order deals with a bounded number; the same again, while it did something and there are more.
async function actOnAll(verb, queue, selection, what) {
  if (!await sure(questions[verb](what, queue.name), capital(verb))) return;
  let total = 0, answer;
  try {
    do {
      answer = await order({ queue: queue.key, verb, ...selection });
      total += answer.done;
      toast(`${verb}: ${number(total)} done${answer.more ? ", going on" : ""}` + (answer.failed.length ? `, ${answer.failed.length} not: ${answer.failed[0]}` : ""));
    } while (answer.more);
    chosen = new Set();
  } catch (error) {
    toast(`${verb}: ${number(total)} done, then: ${error.message}`);
  }
  refresh();
}

// Pause a queue, or end that.
async function switchQueue(verb, queue) {
  if (!await sure(questions[verb]("", queue.name), capital(verb))) return;
  try {
    const { done } = await order({ queue: queue.key, verb });
    toast(done ? `${queue.name} is ${verb}d` : `${queue.name} was ${verb}d already`);
  } catch (error) {
    toast(error.message);
  }
  refresh();
}

// --- the loop --------------------------------------------------------------------------------------------------

// Ask for what the view needs, and return its title and its nodes.
async function look(where) {
  if (where.workers) {
    const answer = await ask("api/workers");
    return { root: answer.root, title: "workers", nodes: workersPage(answer) };
  }
  if (!where.key) {
    const answer = await ask("api/queues", where.words);
    return { root: answer.root, title: "", nodes: overview(answer, where.words), age: answer.age };
  }
  const { root, queue, states: listed, age } = await ask("api/queue", { queue: where.key });
  states = listed;
  if (!states.includes(where.state)) where.state = states[0]; // typed by hand
  const title = queue.name;
  if (queue.error) return { root, title, nodes: [el("h1", {}, title), el("p", { class: "error" }, queue.error)] };
  if (where.id) {
    const message = await ask("api/message", { queue: where.key, id: where.id });
    return { root, title, nodes: details(message, queue, where) };
  }
  const extra = {};
  const [answer] = await Promise.all([
    ask("api/messages", { queue: where.key, state: where.state, ...where.words }),
    where.state === "dead" ? ask("api/errors", { queue: where.key }).then((found) => { extra.errors = found; }) : null,
    where.state === "leased" ? ask("api/workers", { queue: where.key }).then((found) => { extra.workers = found.workers; }) : null,
  ]);
  return { root, title, nodes: queuePage(queue, answer, extra, where), age };
}

let turn = 0;

async function refresh() {
  clearTimeout(refresh.timer);
  const mine = ++turn;
  const where = place();
  let again = !where.id; // a message that is being read is not redrawn under the reader's eyes
  try {
    const { root, title, nodes, age } = await look(where);
    if (mine !== turn) return;
    $("root").textContent = visible(root);
    document.title = title ? `${visible(title)} · dirqueue` : "dirqueue";
    draw(nodes, where.view);
    if (age > OLD) state("off", `counts of ${duration(age)} ago: a filesystem does not answer`);
    else state("on", "live");
  } catch (error) {
    if (mine !== turn) return;
    again = true;
    if (error instanceof TypeError) state("off", "the server does not answer");
    else {
      state(error.status === 404 ? "on" : "off", error.status === 404 ? "live" : "error"); // gone: nothing is wrong with the server
      draw([el("p", { class: "error", id: "problem" }, error.message), el("p", {}, el("a", { href: "#/" }, "All queues"))], "problem");
    }
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
  for (const each of document.querySelectorAll("header nav a")) {
    if (each.hash === `#${view}`) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
}

addEventListener("hashchange", () => {
  if (place().view !== draw.view) chosen = new Set();
  refresh();
});
refresh();
