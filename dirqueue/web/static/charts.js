"use strict";
// Line charts as inline SVG: no library, no canvas, sharp at any size. The labels of the axes are text beside the SVG,
// because it is stretched to the width of its place.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 240, HEIGHT = 64;
// Seconds that a chart shows at least: a series that has just begun is at the right.
const SHORTEST = 60;

function shape(kind, attributes) {
  const node = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

// The next 1, 2 or 5 with zeros: a scale that people can read.
function roundTop(value) {
  if (value <= 0) return 1;
  const zeros = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * zeros).find((step) => step >= value);
}

const short = (value) => value >= 1e6 ? `${value / 1e6}M` : value >= 1e4 ? `${value / 1e3}k` : String(value);
const clock = (seconds) => new Date(seconds * 1000).toTimeString().slice(0, 8);

function span(at) {
  const end = at.length ? at[at.length - 1] : Date.now() / 1000;
  return { start: Math.min(at[0] ?? end, end - SHORTEST), end };
}

// Unknown values (null) break the line: what was not seen is not drawn.
function linePath(values, at, { start, end }, top) {
  let path = "", pen = "M";
  values.forEach((value, index) => {
    if (value === null) { pen = "M"; return; }
    const x = (at[index] - start) / (end - start) * WIDTH;
    path += `${pen}${x.toFixed(1)} ${(HEIGHT - 1 - value / top * (HEIGHT - 2)).toFixed(1)}`;
    pen = "L";
  });
  return path;
}

function plot(lines, at, label, top, filled) {
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
  for (const y of [1, HEIGHT / 2, HEIGHT - 1]) svg.append(shape("line", { class: "base", x1: 0, y1: y, x2: WIDTH, y2: y }));
  const range = span(at);
  for (const [name, values] of lines) {
    const path = linePath(values, at, range, top);
    if (filled && path) {
      const first = ((at[0] - range.start) / (range.end - range.start) * WIDTH).toFixed(1);
      svg.append(shape("path", { class: `area ${name}`, d: `${path}L${WIDTH} ${HEIGHT}L${first} ${HEIGHT}Z` }));
    }
    svg.append(shape("path", { class: name, d: path }));
  }
  return svg;
}

// lines: [[class, values], ...], all on one scale; at: the time of each value, in seconds.
function chart(lines, at, label, { filled = false } = {}) {
  const top = roundTop(Math.max(0, ...lines.flatMap(([, values]) => values.filter((value) => value !== null))));
  const { start, end } = span(at);
  return el("div", { class: "plot" },
    el("div", { class: "ys" }, el("span", {}, short(top)), el("span", {}, short(top / 2)), el("span", {}, "0")),
    plot(lines, at, label, top, filled),
    el("div", { class: "xs" }, ...[start, (start + end) / 2, end].map((each) => el("span", {}, clock(each)))));
}

// A line without axes, for a row of a table.
function spark(name, values, at, label) {
  return plot([[name, values]], at, label, Math.max(1, ...values.filter((value) => value !== null)), true);
}
