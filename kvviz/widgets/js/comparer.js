import { createColumn } from "./comparer_column.js";
import { createComparerControls } from "./comparer_controls.js";
import { createLabels } from "./comparer_labels.js";
import { meanOf, NAMES, NUMBERS, sortKey } from "./comparer_words.js";
import { element, hasModifier, targetOf } from "./dom.js";
import { explain } from "./explain.js";
import { createFind } from "./find.js";
import { createFollowText } from "./follow_text.js";
import { createHeadPanel } from "./head_panel.js";
import { bytesOf } from "./host.js";
import { createRange, createZoom } from "./map_zoom.js";
import { createLegend, keepKeys, stepKeys } from "./panel.js";
import { saveAs } from "./save.js";
import { frameOf, unpack } from "./slice.js";
import { watchTheme } from "./theme.js";
import { createTip } from "./tip.js";
import { isShown, STRENGTH, unionOf } from "./union.js";
import { createWait } from "./wait.js";
import { marksOf } from "./words.js";

/** @import { About } from "./comparer_column.js" */
/** @import { HeadNumbers } from "./head_panel.js" */
/** @import { View } from "./host.js" */
/** @import { Go } from "./panel.js" */
/** @import { Format } from "./save.js" */
/** @import { Union } from "./union.js" */
/** @typedef {ReturnType<typeof createColumn>} Column */
/**
 * @typedef {object} ComparerPage
 * @property {string} description
 * @property {string[]} prompt
 * @property {number} steps
 * @property {number[]} layers
 * @property {number[]} heads
 * @property {string} head_name
 * @property {Union[]} unions
 * @property {number} per_kv_head
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
  const heads = createHeadPanel(root, page, { tip, pick: ask, settings: controls.settings });
  const side = root.appendChild(element("div", "kv-columns"));
  side.setAttribute("role", "group");
  side.setAttribute("aria-label", "recordings side by side");
  const labels = createLabels(side);
  const zoom = createZoom(page.prompt.length + page.steps, () => columns.forEach((column) => column.paintMap()));
  /** @type {About} */
  const about = (rows, event) => (rows ? tip.show(rows, event) : tip.hide());
  const columns = page.methods.map((method) =>
    createColumn(side, page, method, { go, choose, turn, point, about, zoom })
  );
  const follow = createFollowText(
    controls.settings,
    labels.prompt,
    { span: page.span, prompt_length: page.prompt.length },
    {
      strip: () => columns[0].prompt,
      focus: (position) => columns.forEach((column) => column.focus(position, false)),
      picked: () => state.token,
    },
  );
  createFind(controls.bar, root, { tokens: page.prompt, strips: () => columns.map((column) => column.prompt) });
  controls.bar.append(createRange(zoom));
  const key = legend(page);
  root.append(key.host, ...page.notes.map((note) => element("p", "kv-note", note)));
  scrollTogether(columns.map((column) => column.panel));
  const unwatch = watchTheme(root, () => columns.forEach((column) => column.recolour()));

  function paint() {
    for (const column of columns) column.place(state.step);
    for (const column of columns) column.paint();
    arrange();
    labels.paint(columns, state.step);
    tip.hide();
    const [{ slice }] = columns, { kind } = unionOf(slice);
    heads.paint(slice.layer, slice.head, kind);
    key.say(kind !== "none");
    controls.paint(state, slice);
  }

  const frames = () => columns.map(({ slice }) => frameOf(slice, state.step));

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
    labels.curve(name, `0 to ${NUMBERS[name].share ? 1 : NUMBERS[name].write(top)}`);
  }

  /** @type {Go} */
  function go(by, to = state.step) {
    const next = Math.max(0, Math.min(page.steps - 1, to + by));
    if (next === state.step || !shown) return;
    state.step = next;
    paint();
    follow.show(frames());
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
   * @param {Union} union
   */
  function ask(layer, head, union) {
    if (root.dataset.busy === undefined && isShown(columns[0].slice, layer, head, union)) return;
    wait.begin(host);
    root.dataset.busy = "";
    heads.paint(layer, head, union);
    host.tell({ layer, head, union });
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
    const shownHeads = unionOf(columns[0].slice).kind === "none" ? `head-${head}` : "union";
    const name = `method-comparer-step-${state.step}-layer-${layer}-${shownHeads}`;
    root.style.width = `${root.offsetWidth + side.scrollWidth - side.clientWidth}px`; // with the columns out of sight
    saveAs(format, controls.menu, root, host, name); // draws the widget before it returns
    root.style.width = "";
  }

  function open() {
    if (state.token >= 0) return seek(state.token, false);
    const position = follow.opening();
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
    follow.show(frames(), opening);
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
 * The legend, and what sets its words for one head or a union of heads.
 *
 * @param {ComparerPage} page
 */
function legend(page) {
  const map = "on the map, wasted tokens have a paler tint and missed tokens the colour of the text";
  const host = createLegend(marksOf(page.merges), "", "");
  const last = /** @type {HTMLElement} */ (host.lastElementChild);
  return {
    host,
    /** @param {boolean} union */
    say(union) {
      last.textContent = `colour: method · strength: ${union ? "share of the heads" : "attention"}`;
      const strength = union ? STRENGTH : "the strength is logarithmic, from 0.0002 or less to 0.35 or more";
      explain(last, `${strength}; ${map}`);
    },
  };
}
