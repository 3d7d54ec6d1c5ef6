import { format } from "./strip.js";
import { EXPLORER_MEANING, explorerNumber } from "./explorer_words.js";

const CURVE_HEIGHT = 208; // CSS pixels
const MARGIN = { left: 46, right: 14, top: 10, bottom: 34 };

// A measure against the budget: the method's curve, the oracle's, and the point now shown on both.
export function createExplorerCurve(host, page, { tip, pick }) {
  const svg = host.appendChild(svgNode("svg", { role: "img", height: CURVE_HEIGHT }));
  let known = { points: [], oracle: [], done: false }, measure = null, numbers = null, scale = null;

  function draw() {
    const width = host.clientWidth;
    if (!numbers || !width) return;
    const read = (points) => points.filter((point) => point[measure.place] !== null).map((point) => [point[0], point[measure.place]]);
    const now = [numbers.budget, numbers[measure.name]], best = [numbers.budget, numbers.oracle[measure.name]];
    const own = withPoint(read(known.points), now), oracle = withPoint(read(known.oracle), best);
    scale = scalesOf(width, page.budgets, [...own, ...oracle].map(([, value]) => value), measure);
    svg.setAttribute("width", width);
    svg.setAttribute("viewBox", `0 0 ${width} ${CURVE_HEIGHT}`);
    svg.setAttribute("aria-label", `${measure.title}: ${page.title} ${explorerNumber(now[1])}, oracle ${explorerNumber(best[1])} at a budget of ${now[0]}`);
    svg.replaceChildren(...axes(scale, width), line(oracle, "kv-curve-oracle"), line(own, "kv-curve-own"));
    svg.append(...own.map(([x, y]) => svgNode("circle", { class: "kv-curve-dot", cx: scale.x(x), cy: scale.y(y), r: 2.5 })));
    const x = scale.x(now[0]);
    if (now[1] !== null) {
      svg.append(svgNode("line", { class: "kv-curve-gap", x1: x, x2: x, y1: scale.y(now[1]), y2: scale.y(best[1]) }));
      svg.append(svgNode("circle", { class: "kv-curve-now", cx: x, cy: scale.y(now[1]), r: 6 }));
    }
    svg.append(svgNode("rect", { class: "kv-curve-best", x: x - 4, y: scale.y(best[1]) - 4, width: 8, height: 8, transform: `rotate(45 ${x} ${scale.y(best[1])})` }));
    svg.append(...labels(x, now, best, width));
  }

  function line(points, name) {
    return svgNode("polyline", { class: name, points: points.map(([x, y]) => `${scale.x(x)},${scale.y(y)}`).join(" ") });
  }

  // In the corner that the curves leave free: a legend with the two values now shown.
  function labels(x, now, best, width) {
    const right = width - MARGIN.right - 6, rising = measure.name !== "error";
    const top = rising ? CURVE_HEIGHT - MARGIN.bottom - 30 : MARGIN.top + 16;
    const name = svgNode("text", { class: "kv-curve-label kv-curve-name", x: right, y: top + 18, "text-anchor": "end" }, `${page.title} ${explorerNumber(now[1])}`);
    return [svgNode("text", { class: "kv-curve-label", x: right, y: top, "text-anchor": "end" }, `◆ oracle ${explorerNumber(best[1])}`), name];
  }

  const nearest = (event) => {
    const at = scale.budget(event.clientX - svg.getBoundingClientRect().left);
    const distance = (budget) => Math.abs(Math.log(budget / at));
    return page.budgets.reduce((best, budget) => (distance(budget) < distance(best) ? budget : best));
  };
  svg.addEventListener("click", (event) => scale && pick(nearest(event)));
  svg.addEventListener("pointermove", (event) => {
    if (!scale) return;
    const budget = nearest(event);
    const found = (points) => points.find(([each]) => each === budget)?.[measure.place];
    const own = budget === numbers.budget ? numbers[measure.name] : found(known.points);
    const best = budget === numbers.budget ? numbers.oracle[measure.name] : found(known.oracle);
    const rows = [["budget", format(budget)]];
    if (own !== undefined) rows.push([page.title, explorerNumber(own)], ["oracle", explorerNumber(best)]);
    else rows.push([measure.label, known.done ? "a click computes it" : "not computed yet"]);
    tip.show(rows, event);
  });
  svg.addEventListener("pointerleave", () => tip.hide());
  const resized = new ResizeObserver(draw);
  resized.observe(host);
  return {
    paint(newMeasure, newNumbers) {
      [measure, numbers] = [newMeasure, newNumbers];
      host.title = EXPLORER_MEANING[measure.name];
      draw();
    },
    points(newPoints) {
      known = newPoints;
      draw();
    },
    destroy: () => resized.disconnect(),
  };
}

function withPoint(points, point) {
  const others = points.filter(([budget]) => budget !== point[0]);
  return [...others, ...(point[1] === null ? [] : [point])].sort((first, second) => first[0] - second[0]);
}

// The budget is on a logarithmic axis; the measure from a round number below its least value, or from 0 for an error.
function scalesOf(width, budgets, values, measure) {
  const first = Math.log(budgets[0]), last = Math.max(Math.log(budgets.at(-1)), first + 1e-9);
  const error = measure.name === "error";
  const least = error ? 0 : Math.min(...values, 1), most = error ? Math.max(...values, 1e-6) : 1;
  const step = roundStep(Math.max(most - least, 1e-3) / 4);
  const low = Math.max(0, Math.floor(least / step) * step), high = error ? Math.ceil(most / step) * step : 1;
  const inner = width - MARGIN.left - MARGIN.right, tall = CURVE_HEIGHT - MARGIN.top - MARGIN.bottom;
  return {
    low, high, step, first: budgets[0], last: budgets.at(-1),
    x: (budget) => MARGIN.left + (inner * (Math.log(budget) - first)) / (last - first),
    y: (value) => MARGIN.top + (tall * (high - value)) / (high - low || 1),
    budget: (x) => Math.exp(first + ((last - first) * (x - MARGIN.left)) / inner),
  };
}

function roundStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough * 0.999);
}

function axes(scale, width) {
  const found = [], bottom = CURVE_HEIGHT - MARGIN.bottom;
  const decimals = Math.max(0, -Math.floor(Math.log10(scale.step) + 1e-9));
  for (let value = scale.low; value <= scale.high + scale.step / 1000; value += scale.step) {
    const y = scale.y(value);
    found.push(svgNode("line", { class: "kv-curve-grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }));
    found.push(svgNode("text", { class: "kv-curve-tick", x: MARGIN.left - 7, y: y + 4, "text-anchor": "end" }, value.toFixed(decimals)));
  }
  const octaves = Math.log2(scale.last / scale.first), every = octaves * 46 > width - 60 ? 2 : 1;
  for (let power = Math.ceil(Math.log2(scale.first)); 2 ** power <= scale.last; power += every) {
    const x = scale.x(2 ** power);
    found.push(svgNode("line", { class: "kv-curve-axis", x1: x, x2: x, y1: bottom, y2: bottom + 4 }));
    found.push(svgNode("text", { class: "kv-curve-tick", x, y: bottom + 16, "text-anchor": "middle" }, format(2 ** power)));
  }
  found.push(svgNode("line", { class: "kv-curve-axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: bottom, y2: bottom }));
  found.push(svgNode("text", { class: "kv-curve-tick", x: width - MARGIN.right, y: bottom + 30, "text-anchor": "end" }, "budget, tokens"));
  return found;
}

function svgNode(tag, attributes, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.textContent = text;
  return made;
}
