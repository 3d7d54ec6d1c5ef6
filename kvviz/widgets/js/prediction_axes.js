import { svgElement } from "./dom.js";
import { axisText } from "./prediction_words.js";

// The axes, lines and marks of a curve that is predicted.

/** @import { CurveQuestion, Series } from "./prediction_curve.js" */
/** @typedef {ReturnType<typeof scalesOf>} Scales */

export const TALL = 232; // CSS pixels
const MARGIN = { left: 50, right: 18, top: 12, bottom: 38 }, STEPS = 4, LETTER = 7;

/** @type {Record<string, string>} The dashes that plotly's names stand for. */
const DASHES = { dash: "8 5", dot: "2 4", dashdot: "8 4 2 4", longdash: "13 5", longdashdot: "13 4 2 4" };

/** @type {Record<string, string>} Marks of plotly's names, about 10 units wide. */
const SYMBOLS = {
  square: "M-4-4h8v8h-8z",
  diamond: "M0-6 6 0 0 6-6 0z",
  "diamond-tall": "M0-7 4 0 0 7-4 0z",
  "triangle-up": "M0-5.5 5.5 4.5h-11z",
  "triangle-down": "M0 5.5 5.5-4.5h-11z",
  x: "M-5-3-3-5 0-2 3-5 5-3 2 0 5 3 3 5 0 2-3 5-5 3-2 0z",
  cross: "M-1.6-5.5h3.2v3.9h3.9v3.2h-3.9v3.9h-3.2v-3.9h-3.9v-3.2h3.9z",
  star: "M0-6 1.6-2h4.2L2.5.7 3.7 5 0 2.4-3.7 5-2.5.7-5.8-2h4.2z",
  "line-ew": "M-6-1h12v2h-12z",
  pentagon: "M0-5.5 5.4-1.6 3.4 4.6h-6.8L-5.4-1.6z",
  hexagon: "M-5.5 0-2.7-4.8h5.4L5.5 0 2.7 4.8h-5.4z",
  hourglass: "M-4.5-5h9L-4.5 5h9z",
  bowtie: "M-5-4.5v9L5-4.5v9z",
};
const CIRCLE = "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0z";

/**
 * @param {CurveQuestion} question
 * @param {number} width
 */
export function scalesOf({ x, low, high, log_x: log }, width) {
  const at = (/** @type {number} */ value) => log ? Math.log(value) : value;
  const first = at(x[0]), last = at(x[x.length - 1]);
  const inner = width - MARGIN.left - MARGIN.right - 16, tall = TALL - MARGIN.top - MARGIN.bottom;
  return {
    width,
    /** @param {number} value */
    x: (value) => MARGIN.left + 8 + (inner * (at(value) - first)) / (last - first),
    /** @param {number} value */
    y: (value) => MARGIN.top + (tall * (high - value)) / (high - low),
    /** @param {number} top */
    value: (top) => Math.min(high, Math.max(low, high - ((high - low) * (top - MARGIN.top)) / tall)),
  };
}

/**
 * @param {CurveQuestion} question
 * @param {Scales} scales
 */
export function axesOf({ x, low, high, x_title: title }, scales) {
  const marks = [], bottom = TALL - MARGIN.bottom, right = scales.width - MARGIN.right;
  for (let step = 0; step <= STEPS; step++) {
    const value = low + ((high - low) * step) / STEPS, y = scales.y(value);
    const line = { x1: MARGIN.left, x2: right, y1: y, y2: y };
    marks.push(svgElement("line", { class: step ? "kv-curve-grid" : "kv-curve-axis", ...line }));
    const place = { class: "kv-curve-tick", x: MARGIN.left - 7, y: y + 4, "text-anchor": "end" };
    marks.push(svgElement("text", place, axisText(value)));
  }
  let free = 0;
  for (const value of x) {
    const text = axisText(value), at = scales.x(value), half = (text.length * LETTER) / 2;
    marks.push(svgElement("line", { class: "kv-curve-axis", x1: at, x2: at, y1: bottom, y2: bottom + 4 }));
    if (at - half < free) continue;
    free = at + half + LETTER;
    marks.push(svgElement("text", { class: "kv-curve-tick", x: at, y: bottom + 17, "text-anchor": "middle" }, text));
  }
  const place = { class: "kv-curve-tick", x: right, y: bottom + 33, "text-anchor": "end" };
  marks.push(svgElement("text", place, title));
  return marks;
}

/**
 * A series with its dash and marks; `colour` is that of the theme, or "" for the one that its class has.
 *
 * @param {Series} series
 * @param {string} colour
 * @param {[x: number, y: number][]} points
 */
export function seriesOf({ dash, symbol }, colour, points) {
  const group = svgElement("g", { class: "kv-series" });
  if (colour) group.style.setProperty("--kv-own", colour);
  const path = points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L");
  const line = group.appendChild(svgElement("path", { class: "kv-series-line", d: `M${path}` }));
  if (DASHES[dash]) line.setAttribute("stroke-dasharray", DASHES[dash]);
  const open = symbol.endsWith("-open"), shape = SYMBOLS[symbol.replace(/-open$/, "")] ?? CIRCLE;
  for (const [x, y] of points) {
    const place = { d: shape, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` };
    group.append(svgElement("path", { class: open ? "kv-series-open" : "kv-series-mark", ...place }));
  }
  return group;
}

/** A short piece of a series, for a legend.
 *
 * @param {Series} series
 * @param {string} colour
 * @param {string} name of its class
 */
export function sampleOf(series, colour, name) {
  const svg = svgElement("svg", { width: 40, height: 14, "aria-hidden": "true", class: name });
  const sample = seriesOf(series, colour, [[2, 7], [38, 7]]);
  for (const mark of [...sample.children].slice(1)) mark.setAttribute("transform", "translate(20 7)");
  sample.lastElementChild?.remove(); // one mark is enough
  svg.append(sample);
  return svg;
}
