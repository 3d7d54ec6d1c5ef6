import { format, svgElement } from "./dom.js";
import { shortNumber } from "./explorer_words.js";

/** @import { Curve, ExplorerNumbers, ExplorerPage } from "./explorer.js" */
/** @import { Measure } from "./explorer_words.js" */
/** @import { Rows, Tip } from "./tip.js" */
/** @typedef {[budget: number, value: number]} Point */
/** @typedef {ReturnType<typeof scalesOf>} Scale */

const CURVE_HEIGHT = 208; // CSS pixels
const MARGIN = { left: 46, right: 14, top: 10, bottom: 34 };

/**
 * A measure against the budget: the curves of the method and of the oracle, with the points now shown.
 *
 * @param {HTMLElement} host
 * @param {ExplorerPage} page
 * @param {{ tip: Tip, pick: (budget: number) => void }} options
 */
export function createCurve(host, page, { tip, pick }) {
  const svg = host.appendChild(svgElement("svg", { role: "img", height: CURVE_HEIGHT }));
  /** @type {Curve} */
  let known = { points: [], oracle: [], done: false };
  /** @type {{ measure: Measure, numbers: ExplorerNumbers } | null} */
  let shown = null;
  /** @type {Scale | null} */
  let scale = null;

  function draw() {
    const width = host.clientWidth;
    if (!shown || !width) return;
    const { measure, numbers } = shown;
    const now = numbers[measure.name], best = numbers.oracle[measure.name];
    const points = curveOf(known.points, measure, numbers.budget, now);
    const oracle = curveOf(known.oracle, measure, numbers.budget, best);
    const drawn = scalesOf(width, page.budgets, [...points, ...oracle].map(([, value]) => value), measure);
    scale = drawn;
    svg.setAttribute("width", String(width));
    svg.setAttribute("viewBox", `0 0 ${width} ${CURVE_HEIGHT}`);
    const values = `${page.title} ${shortNumber(now)}, oracle ${shortNumber(best)}`;
    svg.setAttribute("aria-label", `${measure.title}: ${values} at a budget of ${numbers.budget}`);
    svg.replaceChildren(
      ...axes(drawn, width),
      line(drawn, oracle, "kv-curve-oracle"),
      line(drawn, points, "kv-curve-own"),
    );
    svg.append(...points.map(([x, y]) => circle(drawn.x(x), drawn.y(y), 2.5, "kv-curve-dot")));
    const x = drawn.x(numbers.budget), y = drawn.y(best);
    if (now !== null) {
      svg.append(svgElement("line", { class: "kv-curve-gap", x1: x, x2: x, y1: drawn.y(now), y2: y }));
      svg.append(circle(x, drawn.y(now), 6, "kv-curve-now"));
    }
    const turned = { width: 8, height: 8, transform: `rotate(45 ${x} ${y})` };
    svg.append(svgElement("rect", { class: "kv-curve-best", x: x - 4, y: y - 4, ...turned }));
    // The legend gives the two values now shown; it stands in the corner that the curves leave free.
    const top = measure.name === "error" ? MARGIN.top + 16 : CURVE_HEIGHT - MARGIN.bottom - 30;
    const end = { x: width - MARGIN.right - 6, "text-anchor": "end" };
    const methodLabel = { class: "kv-curve-label kv-curve-name", y: top + 18, ...end };
    svg.append(svgElement("text", { class: "kv-curve-label", y: top, ...end }, `◆ oracle ${shortNumber(best)}`));
    svg.append(svgElement("text", methodLabel, `${page.title} ${shortNumber(now)}`));
  }

  /**
   * @param {Scale} scale
   * @param {MouseEvent} event
   */
  function nearest(scale, event) {
    const pointed = scale.budget(event.clientX - svg.getBoundingClientRect().left);
    const distance = (/** @type {number} */ budget) => Math.abs(Math.log(budget / pointed));
    return page.budgets.reduce((best, budget) => (distance(budget) < distance(best) ? budget : best));
  }
  svg.addEventListener("click", (event) => scale && pick(nearest(scale, event)));
  svg.addEventListener("pointermove", (event) => {
    if (!scale || !shown) return;
    const budget = nearest(scale, event), { measure, numbers } = shown;
    const valueIn = (/** @type {Curve["points"]} */ points) =>
      points.find(([stop]) => stop === budget)?.[measure.place];
    const value = budget === numbers.budget ? numbers[measure.name] : valueIn(known.points);
    const best = budget === numbers.budget ? numbers.oracle[measure.name] : valueIn(known.oracle);
    /** @type {Rows} */
    const rows = [["budget", format(budget)]];
    if (value !== undefined) rows.push([page.title, shortNumber(value)], ["oracle", shortNumber(best ?? null)]);
    else rows.push([measure.label, known.done ? "click to compute it" : "not computed yet"]);
    tip.show(rows, event);
  });
  svg.addEventListener("pointerleave", () => tip.hide());
  const resized = new ResizeObserver(draw);
  resized.observe(host);
  return {
    /**
     * @param {Measure} measure
     * @param {ExplorerNumbers} numbers
     */
    paint(measure, numbers) {
      shown = { measure, numbers };
      draw();
    },
    /** @param {Curve} newPoints */
    points(newPoints) {
      known = newPoints;
      draw();
    },
    destroy: () => resized.disconnect(),
  };
}

/**
 * The points that have a value, in order, including the one now shown.
 *
 * @param {Curve["points"]} points
 * @param {Measure} measure
 * @param {number} budget
 * @param {number | null} now
 */
function curveOf(points, { place }, budget, now) {
  /** @type {Point[]} */
  const curve = now === null ? [] : [[budget, now]];
  for (const point of points) {
    const value = point[place];
    if (value !== null && point[0] !== budget) curve.push([point[0], value]);
  }
  return curve.sort((first, second) => first[0] - second[0]);
}

/**
 * @param {Scale} scale
 * @param {Point[]} points
 * @param {string} name
 */
function line(scale, points, name) {
  const places = points.map(([x, y]) => `${scale.x(x)},${scale.y(y)}`);
  return svgElement("polyline", { class: name, points: places.join(" ") });
}

/**
 * @param {number} cx
 * @param {number} cy
 * @param {number} r
 * @param {string} name
 */
function circle(cx, cy, r, name) {
  return svgElement("circle", { class: name, cx, cy, r });
}

/**
 * The scales: a logarithmic axis for the budget; the measure starts at a round number below its minimum, an error at 0.
 *
 * @param {number} width
 * @param {number[]} budgets
 * @param {number[]} values
 * @param {Measure} measure
 */
function scalesOf(width, budgets, values, measure) {
  const end = budgets[budgets.length - 1];
  const first = Math.log(budgets[0]), last = Math.max(Math.log(end), first + 1e-9);
  const error = measure.name === "error";
  const least = error ? 0 : Math.min(...values, 1), most = error ? Math.max(...values, 1e-6) : 1;
  const step = roundStep(Math.max(most - least, 1e-3) / 4);
  const low = Math.max(0, Math.floor(least / step) * step), high = error ? Math.ceil(most / step) * step : 1;
  const inner = width - MARGIN.left - MARGIN.right, tall = CURVE_HEIGHT - MARGIN.top - MARGIN.bottom;
  return {
    low,
    high,
    step,
    first: budgets[0],
    last: end,
    /** @param {number} budget */
    x: (budget) => MARGIN.left + (inner * (Math.log(budget) - first)) / (last - first),
    /** @param {number} value */
    y: (value) => MARGIN.top + (tall * (high - value)) / (high - low || 1),
    /** @param {number} x */
    budget: (x) => Math.exp(first + ((last - first) * (x - MARGIN.left)) / inner),
  };
}

/** @param {number} rough */
function roundStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * ([1, 2, 5].find((factor) => factor * power >= rough * 0.999) ?? 10);
}

/**
 * @param {Scale} scale
 * @param {number} width
 */
function axes(scale, width) {
  const marks = [], bottom = CURVE_HEIGHT - MARGIN.bottom;
  const decimals = Math.max(0, -Math.floor(Math.log10(scale.step) + 1e-9));
  for (let value = scale.low; value <= scale.high + scale.step / 1000; value += scale.step) {
    const y = scale.y(value);
    marks.push(svgElement("line", { class: "kv-curve-grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }));
    marks.push(
      svgElement(
        "text",
        { class: "kv-curve-tick", x: MARGIN.left - 7, y: y + 4, "text-anchor": "end" },
        value.toFixed(decimals),
      ),
    );
  }
  const octaves = Math.log2(scale.last / scale.first), interval = octaves * 46 > width - 60 ? 2 : 1;
  for (let power = Math.ceil(Math.log2(scale.first)); 2 ** power <= scale.last; power += interval) {
    const x = scale.x(2 ** power);
    marks.push(svgElement("line", { class: "kv-curve-axis", x1: x, x2: x, y1: bottom, y2: bottom + 4 }));
    marks.push(
      svgElement("text", { class: "kv-curve-tick", x, y: bottom + 16, "text-anchor": "middle" }, format(2 ** power)),
    );
  }
  marks.push(
    svgElement("line", { class: "kv-curve-axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: bottom, y2: bottom }),
  );
  marks.push(
    svgElement(
      "text",
      { class: "kv-curve-tick", x: width - MARGIN.right, y: bottom + 30, "text-anchor": "end" },
      "budget, tokens",
    ),
  );
  return marks;
}
