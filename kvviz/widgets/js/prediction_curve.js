import { element, hasModifier, svgElement } from "./dom.js";
import { axesOf, sampleOf, scalesOf, seriesOf, TALL } from "./prediction_axes.js";
import { createPen, REACH } from "./prediction_pen.js";
import { axisText, curveText, fixed, measuredText, OPEN } from "./prediction_words.js";

/** @import { Asked, Change } from "./prediction.js" */
/** @import { Scales } from "./prediction_axes.js" */
/** @import { Rows, Tip } from "./tip.js" */
/**
 * @typedef {{ name: string, values: number[], dash: string, symbol: string, light: string, dark: string }} Series
 */
/**
 * @typedef {object} CurveQuestion
 * @property {"curve"} kind
 * @property {string} text
 * @property {number[]} x
 * @property {number} low
 * @property {number} high
 * @property {string} x_title
 * @property {string} y_title
 * @property {boolean} log_x
 * @property {Series[]} known
 * @property {Series[]} measured the reader draws the first
 */

const STEPS = 50, FAR = 5; // steps of the arrow keys over the whole range; with Shift so many at once
/** @type {Series} */
const OWN = { name: "your prediction", values: [], dash: "dot", symbol: "circle-open", light: "", dark: "" };

/**
 * A curve whose points are dragged, or moved with the arrow keys; afterwards the measured curves are drawn beside it.
 * Points that have not been set lie on the lines between those that have.
 *
 * @param {HTMLElement} host
 * @param {CurveQuestion} question
 * @param {Tip} tip
 * @param {Change} changed
 * @returns {Asked}
 */
export function createCurve(host, question, tip, changed) {
  const { text, x, low, high, known, measured } = question, step = (high - low) / STEPS;
  const digits = Math.min(6, Math.max(0, -Math.floor(Math.log10(step) + 1e-9))); // as many as tell steps apart
  host.append(element("p", "kv-axis-title", question.y_title));
  const svg = host.appendChild(svgElement("svg", { height: TALL, role: "group", "aria-label": text }));
  const [axes, before, line, points, after] = ["", "", "kv-yours-line", "", ""].map((name) =>
    svg.appendChild(svgElement(name ? "path" : "g", name ? { class: name } : {}))
  );
  const legend = host.appendChild(element("p", "kv-legend"));
  /** @type {(number | undefined)[]} */
  let set = x.map(() => undefined);
  let current = 0, locked = false, shown = false;
  /** @type {Scales | null} */
  let scales = null;

  const handles = x.map((place, index) => {
    const handle = points.appendChild(svgElement("g", { class: "kv-point", role: "slider" }));
    handle.append(svgElement("circle", { class: "kv-reach", r: REACH }), svgElement("circle", { r: 7 }));
    const name = `${question.x_title || "x"} ${axisText(place)}`;
    const range = { "aria-valuemin": low, "aria-valuemax": high, "aria-orientation": "vertical", "aria-label": name };
    for (const [key, value] of Object.entries(range)) handle.setAttribute(key, String(value));
    handle.addEventListener("focus", () => {
      current = index;
      paint();
      const { left, bottom } = handle.getBoundingClientRect();
      if (handle.matches(":focus-visible")) tip.show(rowsOf(index), { clientX: left, clientY: bottom });
    });
    handle.addEventListener("blur", () => tip.hide());
    handle.addEventListener("keydown", (event) => press(event, index));
    return handle;
  });

  const isOpen = () => set.every((value) => value === undefined);

  /** The height of each point: those that are not set lie between those that are. */
  function heights() {
    const places = [...set.keys()].filter((index) => set[index] !== undefined);
    if (!places.length) return x.map(() => (low + high) / 2);
    const along = scales ? x.map(scales.x) : x;
    return x.map((_, index) => {
      const right = places.find((place) => place >= index), left = places.findLast((place) => place <= index);
      const one = Number(set[left ?? Number(right)]), other = Number(set[right ?? Number(left)]);
      if (left === undefined || right === undefined || left === right) return rounded(one);
      return rounded(one + ((other - one) * (along[index] - along[left])) / (along[right] - along[left]));
    });
  }

  /** @param {number} value */
  function rounded(value) {
    return Math.min(high, Math.max(low, Number(value.toFixed(digits))));
  }

  /** @param {Series} series */
  function colourOf(series) {
    return host.closest(".kvviz")?.getAttribute("data-theme") === "dark" ? series.dark : series.light;
  }

  function draw(moving = false) {
    const width = host.clientWidth;
    if (!width) return;
    const drawn = scales = scalesOf(question, width);
    svg.setAttribute("width", String(width));
    svg.setAttribute("viewBox", `0 0 ${width} ${TALL}`);
    axes.replaceChildren(...axesOf(question, drawn));
    const lineOf = (/** @type {Series} */ series) => {
      const node = seriesOf(
        series,
        colourOf(series),
        x.map((place, at) => [drawn.x(place), drawn.y(series.values[at])]),
      );
      return node;
    };
    const measuredNow = shown ? measured : [];
    before.replaceChildren(...known.map(lineOf));
    after.replaceChildren(...measuredNow.map(lineOf));
    after.setAttribute("class", `kv-measured-lines${moving ? " kv-moving" : ""}`);
    legend.replaceChildren(
      keyOf(OWN, "", "kv-yours"),
      ...known.map((series) => keyOf(series, colourOf(series))),
      ...measuredNow.map((series) => keyOf({ ...series, name: nameOf(series) }, colourOf(series), "kv-measured-lines")),
    );
    paint();
  }

  function paint() {
    const drawn = scales, values = heights();
    host.toggleAttribute("data-open", isOpen());
    if (drawn) {
      line.setAttribute("d", `M${x.map((place, at) => `${drawn.x(place)} ${drawn.y(values[at])}`).join("L")}`);
    }
    handles.forEach((handle, index) => {
      if (drawn) handle.setAttribute("transform", `translate(${drawn.x(x[index])} ${drawn.y(values[index])})`);
      handle.setAttribute("tabindex", index === current ? "0" : "-1");
      handle.setAttribute("aria-valuenow", String(values[index]));
      handle.setAttribute("aria-valuetext", saidOf(index, values[index]));
      handle.toggleAttribute("data-unset", set[index] === undefined);
      if (locked) handle.setAttribute("aria-disabled", "true");
      else handle.removeAttribute("aria-disabled");
    });
  }

  /**
   * @param {number} index
   * @param {number} value
   */
  function saidOf(index, value) {
    if (isOpen()) return OPEN;
    const own = fixed(value, digits);
    if (!shown) return own;
    return [`you ${own}`, ...measured.map((each) => `${nameOf(each)} ${measuredText(each.values[index])}`)].join(", ");
  }

  /** @param {number} index */
  function rowsOf(index) {
    /** @type {Rows} */
    const rows = [[question.x_title || "x", axisText(x[index])]];
    rows.push(["you", isOpen() ? OPEN : fixed(heights()[index], digits)]);
    for (const each of known) rows.push([each.name, measuredText(each.values[index])]);
    if (shown) { for (const each of measured) rows.push([nameOf(each), measuredText(each.values[index])]); }
    return rows;
  }

  /**
   * @param {number} index
   * @param {number} value
   */
  function put(index, value) {
    set[index] = rounded(value);
    current = index;
    paint();
  }

  function tell() {
    const values = heights();
    changed(values, `${question.x_title || "x"} ${axisText(x[current])}: ${fixed(values[current], digits)}`);
  }

  /**
   * @param {KeyboardEvent} event
   * @param {number} index
   */
  function press(event, index) {
    const last = x.length - 1;
    /** @type {Record<string, number>} */
    const to = { ArrowLeft: Math.max(0, index - 1), ArrowRight: Math.min(last, index + 1), Home: 0, End: last };
    /** @type {Record<string, number>} */
    const by = { ArrowUp: 1, ArrowDown: -1, Enter: 0, " ": 0 };
    if (hasModifier(event)) return;
    if (event.key in to) handles[to[event.key]].focus();
    else if (event.key in by) {
      if (!locked) {
        put(index, heights()[index] + by[event.key] * step * (event.shiftKey ? FAR : 1));
        tell();
        const { left, bottom } = handles[index].getBoundingClientRect();
        tip.show(rowsOf(index), { clientX: left, clientY: bottom });
      }
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  const pen = createPen(svg, x, {
    scales: () => locked ? null : scales,
    heights,
    grab: (index) => handles[index].focus({ preventScroll: true }),
    put,
    tell(event) {
      tell();
      tip.show(rowsOf(current), event);
    },
  });
  svg.addEventListener("pointermove", (event) => {
    if (scales && event.pointerType === "mouse") tip.show(rowsOf(pen.nearest(event, scales)), event);
  });
  svg.addEventListener("pointerleave", () => tip.hide());
  const resized = new ResizeObserver(() => host.clientWidth !== scales?.width && draw());
  resized.observe(host);
  return {
    /** @param {number[] | undefined} values */
    set(values) {
      set = values ? [...values] : x.map(() => undefined);
      paint();
    },
    lock(isLocked) {
      locked = isLocked;
      paint();
    },
    reveal() {
      shown = true;
      draw(true);
      return curveText(heights(), measured[0].values, measured[0].name);
    },
    hide() {
      shown = false;
      draw();
      if (!scales) paint();
    },
    recolour: () => draw(),
    close: () => resized.disconnect(),
  };
}

/** The name of a measured series, as a value of it is called.
 *
 * @param {Series} series
 */
function nameOf({ name }) {
  return name === "measured" ? name : `measured ${name}`;
}

/**
 * An entry of the legend.
 *
 * @param {Series} series
 * @param {string} colour
 */
function keyOf(series, colour, className = "") {
  const entry = element("span", "kv-key");
  entry.append(sampleOf(series, colour, className), element("span", "", series.name));
  return entry;
}
