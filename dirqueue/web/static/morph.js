"use strict";
// Make a part of the page look like freshly made nodes by changing only what differs: what has the focus, is selected or
// is scrolled stays so. Children with a data-key are the same thing as the one with that key; others match by position.

const HANDLERS = ["onclick", "onchange", "oninput"];

function morphChildren(parent, nodes) {
  const keys = new Set(nodes.map((node) => node.dataset?.key));
  for (const child of [...parent.childNodes]) {
    if (child.dataset?.key !== undefined && !keys.has(child.dataset.key)) child.remove();
  }
  const keyed = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let next = parent.firstChild;
  for (const node of nodes) {
    const key = node.dataset?.key;
    const same = key === undefined ? next : keyed.get(key);
    if (!same || !alike(same, node)) {
      parent.insertBefore(node, next);
      continue;
    }
    if (same === next) next = next.nextSibling;
    else parent.insertBefore(same, next);
    morph(same, node);
  }
  while (next) {
    const rest = next;
    next = next.nextSibling;
    rest.remove();
  }
}

function alike(old, node) {
  return old.nodeName === node.nodeName && old.dataset?.key === node.dataset?.key;
}

function morph(old, node) {
  if (node.nodeType === Node.TEXT_NODE) {
    if (old.data !== node.data) old.data = node.data;
    return;
  }
  // Whether details are open is the reader's choice, not the server's.
  for (const { name } of [...old.attributes]) if (!node.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  for (const { name, value } of node.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const name of HANDLERS) old[name] = node[name];
  morphChildren(old, [...node.childNodes]);
}
