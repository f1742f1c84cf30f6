"use strict";
// Line charts as inline SVG: no library, no canvas, sharp at any size.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 240, HEIGHT = 64, FEWEST = 30;

function shape(kind, attributes) {
  const node = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

// Unknown values (null) break the line: what was not seen is not drawn.
function linePath(values, top, left) {
  let path = "", pen = "M";
  values.forEach((value, index) => {
    if (value === null) { pen = "M"; return; }
    const x = left + index / (Math.max(FEWEST, values.length) - 1) * WIDTH;
    const y = HEIGHT - 2 - (top > 0 ? value / top : 0) * (HEIGHT - 6);
    path += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
    pen = "L";
  });
  return path;
}

// lines: [[class, values], ...], all on one scale.
function chart(lines, label, { filled = false } = {}) {
  const top = Math.max(0, ...lines.flatMap(([, values]) => values.filter((value) => value !== null)));
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
  svg.append(shape("line", { class: "base", x1: 0, y1: HEIGHT - 1, x2: WIDTH, y2: HEIGHT - 1 }));
  for (const [name, values] of lines) {
    // The newest value is at the right edge; a short series leaves the left empty.
    const from = Math.max(0, FEWEST - values.length) / (FEWEST - 1) * WIDTH;
    const path = linePath(values, top, from);
    if (filled && path) {
      svg.append(shape("path", { class: `area ${name}`, d: `${path}L${WIDTH} ${HEIGHT}L${from.toFixed(1)} ${HEIGHT}Z` }));
    }
    svg.append(shape("path", { class: name, d: path }));
  }
  return svg;
}
