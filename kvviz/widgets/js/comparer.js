import { createColumn } from "./comparer_column.js";
import { createComparerControls } from "./comparer_controls.js";
import { meanOf, NAMES, NUMBERS, ROWS, sortKey } from "./comparer_words.js";
import { element, hasModifier, targetOf } from "./dom.js";
import { createHeadPanel } from "./head_panel.js";
import { bytesOf } from "./host.js";
import { createLegend, keepKeys, stepKeys } from "./panel.js";
import { saveAs } from "./save.js";
import { frameOf, unpack } from "./slice.js";
import { SINK } from "./strip.js";
import { watchTheme } from "./theme.js";
import { createTip } from "./tip.js";
import { createWait } from "./wait.js";
import { MEANING } from "./words.js";

/** @import { About } from "./comparer_column.js" */
/** @import { HeadNumbers } from "./head_panel.js" */
/** @import { View } from "./host.js" */
/** @import { Go, Marks } from "./panel.js" */
/** @import { Format } from "./save.js" */
/** @typedef {ReturnType<typeof createColumn>} Column */
/**
 * @typedef {object} ComparerPage
 * @property {string} description
 * @property {string[]} prompt
 * @property {number} steps
 * @property {number[]} layers
 * @property {number[]} heads
 * @property {string} head_name
 * @property {string[]} sorts
 * @property {ComparedMethod[]} methods
 * @property {boolean} merges
 * @property {string[]} notes
 * @property {HeadNumbers[]} head_maps
 * @property {number[]} span
 */
/**
 * @typedef {object} ComparedMethod
 * @property {string} label
 * @property {string} about
 * @property {number} budget
 * @property {string[]} fed
 * @property {string} next_token
 * @property {number} question_length
 * @property {string} group_name
 * @property {number} rows_a_head
 * @property {string} light
 * @property {string} dark
 */
/** @typedef {{ step: number, sort: string, token: number }} ComparerState */

/**
 * Several recordings, one column each. The host sends their slices when the layer or head changes; a step needs none.
 *
 * @type {View}
 */
export function createComparer(root, host) {
  /** @type {ComparerPage} */
  const page = host.get("page");
  /** @type {ComparerState} */
  const state = { step: host.get("step"), sort: host.get("sort"), token: host.get("token") };
  let shown = false;
  root.classList.add("kvviz", "kv-comparer");
  keepKeys(root);
  const controls = createComparerControls(root, page, { go, pick: ask, sort: order, save });
  const wait = createWait(root, paint);
  const tip = createTip(root);
  const heads = createHeadPanel(root, page, { tip, pick: ask });
  const side = root.appendChild(element("div", "kv-columns"));
  side.setAttribute("role", "group");
  side.setAttribute("aria-label", "recordings side by side");
  const curveLabel = labels(side);
  /** @type {About} */
  const about = (rows, event) => (rows ? tip.show(rows, event) : tip.hide());
  const columns = page.methods.map((method) => createColumn(side, page, method, { go, choose, turn, point, about }));
  root.append(legend(page), ...page.notes.map((note) => element("p", "kv-note", note)));
  scrollTogether(columns.map((column) => column.panel));
  const unwatch = watchTheme(root, () => columns.forEach((column) => column.recolour()));

  function paint() {
    for (const column of columns) column.place(state.step);
    for (const column of columns) column.paint();
    arrange();
    tip.hide();
    heads.paint(columns[0].slice.layer, columns[0].slice.head);
    controls.paint(state, columns[0].slice);
  }

  /** Orders the columns. The elements stay in place, because moving one would lay out its whole text again. */
  function arrange() {
    const key = sortKey(state.sort);
    const ranked = [...columns];
    if (key) {
      const valueOf = (/** @type {Column} */ { slice }) =>
        key.mean ? meanOf(slice[key.name]) : slice[key.name][state.step];
      ranked.sort((a, b) => (NUMBERS[key.name].more ? valueOf(b) - valueOf(a) : valueOf(a) - valueOf(b)));
    }
    ranked.forEach((column, place) => (column.element.style.order = String(place + 1)));
  }

  /** Draws the curves of the number that sorts the columns, or of recall. */
  function drawCurves() {
    const name = sortKey(state.sort)?.name ?? NAMES[0];
    const all = columns.map((column) => column.slice[name]);
    const top = NUMBERS[name].share ? 1 : Math.max(1e-12, ...all.flatMap((values) => [...values]));
    columns.forEach((column, index) => column.curve(name, all, index, top));
    curveLabel(name, `0 to ${NUMBERS[name].share ? 1 : NUMBERS[name].write(top)}`);
  }

  /** @type {Go} */
  function go(by, to = state.step) {
    const next = Math.max(0, Math.min(page.steps - 1, to + by));
    if (next === state.step || !shown) return;
    state.step = next;
    paint();
    host.tell({ step: next });
  }

  /** @param {string} next */
  function order(next) {
    if (next === state.sort || !shown) return;
    state.sort = next;
    drawCurves();
    paint();
    host.tell({ sort: next });
  }

  /**
   * @param {number} layer
   * @param {number} head
   */
  function ask(layer, head) {
    wait.begin();
    root.dataset.busy = "";
    host.tell({ layer, head });
  }

  /**
   * Moves all texts to a token and outlines it; -1 clears the choice.
   *
   * @param {number} position
   */
  function choose(position) {
    if (position === state.token) return seek(position);
    state.token = position;
    seek(position);
    controls.paint(state, columns[0].slice);
    host.tell({ token: position });
  }

  /** @param {number} position */
  function seek(position, flash = true) {
    if (position >= 0) { for (const column of columns) column.focus(position, flash); }
    point(null);
  }

  /** @param {number} direction */
  function turn(direction) {
    for (const column of columns) column.prompt.turn(direction);
  }

  /**
   * Outlines a token in every text; null outlines the chosen token.
   *
   * @param {number | null} position
   */
  function point(position) {
    const outlined = position ?? state.token;
    for (const column of columns) column.light(outlined < 0 ? [] : [outlined]);
  }

  /** @param {Format} format */
  function save(format) {
    const { layer, head } = columns[0].slice;
    const name = `method-comparer-step-${state.step}-layer-${layer}-head-${head}`;
    root.style.width = `${root.offsetWidth + side.scrollWidth - side.clientWidth}px`; // with the columns out of sight
    saveAs(format, controls.menu, root, host, name); // draws the widget before it returns
    root.style.width = "";
  }

  function open() {
    if (state.token >= 0) return seek(state.token, false);
    const position = heaviest(columns, state.step);
    for (const column of columns) column.focus(position, false);
  }

  root.addEventListener("keydown", (event) => {
    const move = stepKeys(page.steps)[event.key];
    if (hasModifier(event) || targetOf(event).tagName === "SELECT" || !move) return;
    go(...move);
    event.preventDefault();
  });

  function show() {
    const opening = !shown;
    shown = true;
    /** @type {ArrayBufferView<ArrayBuffer>[]} */
    const slices = host.get("slices");
    columns.forEach((column, index) => column.show(unpack(bytesOf(slices[index]))));
    columns.forEach((column) => column.describe());
    wait.end();
    drawCurves();
    paint();
    if (opening) requestAnimationFrame(open); // a notebook attaches the root first
  }

  host.on("slices", show);
  host.on("step", () => go(0, host.get("step")));
  host.on("sort", () => order(host.get("sort")));
  host.on("token", () => host.get("token") !== state.token && choose(host.get("token")));
  show();
  return () => {
    wait.close();
    unwatch();
    columns.forEach((column) => column.destroy());
  };
}

/**
 * Where the texts open: the token with the most attention that a method selected and that is no method's sink.
 *
 * @param {Column[]} columns
 * @param {number} step
 */
function heaviest(columns, step) {
  const frames = columns.map(({ slice }) => frameOf(slice, step)), sinks = new Set();
  for (const { positions, marks } of frames) {
    positions.forEach((position, index) => marks[index] & SINK && sinks.add(position));
  }
  let heaviestToken = 0, heaviestWeight = -1;
  for (const { positions, groups, weights } of frames) {
    positions.forEach((position, index) => {
      if (groups[index] >= 0 && weights[index] > heaviestWeight && !sinks.has(position)) {
        [heaviestToken, heaviestWeight] = [position, weights[index]];
      }
    });
  }
  return heaviestToken;
}

/**
 * Scrolls all panels together. The scroll events that this causes are recognized by their position and ignored.
 *
 * @param {HTMLElement[]} panels
 */
function scrollTogether(panels) {
  const lastTops = new Map();
  for (const leader of panels) {
    leader.addEventListener("scroll", () => {
      const top = leader.scrollTop;
      if (lastTops.get(leader) === top) return;
      lastTops.set(leader, top);
      for (const panel of panels) {
        if (panel === leader || panel.scrollTop === top) continue;
        panel.scrollTop = top;
        lastTops.set(panel, panel.scrollTop);
      }
    });
  }
}

/**
 * The names of the rows, which stay in sight while the columns scroll sideways. Returns what sets the curve's name.
 *
 * @param {HTMLElement} host
 */
function labels(host) {
  const list = host.appendChild(element("div", "kv-labels"));
  list.setAttribute("aria-hidden", "true"); // every cell has its own description
  list.append(element("span"));
  for (const name of NAMES) list.appendChild(element("span", "", name)).title = NUMBERS[name].meaning;
  const curve = list.appendChild(element("span"));
  curve.title = ROWS.curve;
  const name = curve.appendChild(element("span")), range = curve.appendChild(element("span", "kv-mean"));
  list.appendChild(element("span", "", "steps ↓ × positions →")).title = ROWS.map;
  list.appendChild(element("span", "", "prompt")).title = ROWS.prompt;
  list.appendChild(element("span", "", "answer")).title = ROWS.answer;
  return (/** @type {string} */ number, /** @type {string} */ rangeText) => {
    name.textContent = `${number} over the steps`;
    range.textContent = rangeText;
  };
}

/** @param {ComparerPage} page */
function legend(page) {
  /** @type {Marks} */
  const marks = [
    ["kv-attended kv-agreed", "agreed", "attended, and the oracle of the same size would attend to it too"],
    ["kv-missed", "missed", "the oracle would attend to it; the method did not"],
    ["kv-attended kv-wasted", "wasted", "selected by the method, although the oracle would not attend to it"],
    ["kv-attended kv-kept", "sink or recent", "always attended, without being selected"],
  ];
  if (page.merges) marks.splice(2, 0, ["kv-merged", "merged", MEANING.merged]);
  const strength = "the strength is logarithmic, from 0.0002 or less to 0.35 or more";
  return createLegend(
    marks,
    "colour: method · strength: attention",
    `${strength}; on the map, wasted tokens have a paler tint and missed tokens the colour of the text`,
  );
}
