import { element, hasModifier, targetOf } from "./dom.js";
import { createExplorerControls } from "./explorer_controls.js";
import { createCurve } from "./explorer_curve.js";
import { createLedger } from "./explorer_ledger.js";
import { createQuestions } from "./explorer_questions.js";
import { MEANING, meaningOf } from "./explorer_words.js";
import { explain } from "./explain.js";
import { createFind } from "./find.js";
import { createFollowText } from "./follow_text.js";
import { createHeadPanel } from "./head_panel.js";
import { createMatrix } from "./matrix.js";
import { keepKeys, titledPanel } from "./panel.js";
import { saveAs } from "./save.js";
import { explainNumber, SCOPE_OF, scopeIn, scopeText, tagOf } from "./scope.js";
import { frameOf, positionAt, unpack } from "./slice.js";
import { createStrip } from "./strip.js";
import { mapColours } from "./map_colours.js";
import { HUES, watchTheme } from "./theme.js";
import { createTip } from "./tip.js";
import { about as aboutHeads, createHeadsLegend, nameIn, unionOf } from "./union.js";
import { createWait } from "./wait.js";
import { marksOf } from "./words.js";

/** @import { Part } from "./explorer_ledger.js" */
/** @import { MeasureName } from "./explorer_words.js" */
/** @import { HeadNumbers } from "./head_panel.js" */
/** @import { View } from "./host.js" */
/** @import { Format } from "./save.js" */
/** @import { Frame, Slice } from "./slice.js" */
/** @import { OnHover } from "./strip.js" */
/** @import { HeadCounts, Union } from "./union.js" */

/**
 * @typedef {object} ExplorerPage
 * @property {string} model
 * @property {string} method
 * @property {string} title
 * @property {number | null} seed
 * @property {{ light: string, dark: string }} colours
 * @property {string[]} tokens
 * @property {number} prompt_length
 * @property {number} steps
 * @property {number[]} budgets
 * @property {{ name: string, label: string, values: number[], meaning: string }[]} sliders
 * @property {number[]} layers
 * @property {number[]} heads
 * @property {string} head_name
 * @property {Union[]} unions
 * @property {number} per_kv_head
 * @property {number[]} [joined_heads]
 * @property {string} group_name
 * @property {boolean} merges
 * @property {string[]} notes
 * @property {HeadNumbers[]} head_maps
 * @property {number[]} span
 */
/**
 * @typedef {{ budget: number, layer: number, head: number, union: Union, settings: Record<string, number> }} Place
 */
/** @typedef {Slice & Partial<HeadCounts>} ExplorerSlice the last step alone */
/** @typedef {Record<Part | "merged_tokens", number>} Parts */
/**
 * The numbers shown at a place. If the method refuses the place, `refusal` says why, and the rest may be missing.
 *
 * @typedef {Place & { mass: number, recall: number, error: number | null, oracle: Record<MeasureName, number>,
 *   parts: Parts, metadata_bytes: number, extra_bytes: number, call: string, refusal: string }} ExplorerNumbers
 */
/** @typedef {[budget: number, mass: number | null, recall: number | null, error: number | null][]} CurvePoints */
/** @typedef {{ points: CurvePoints, oracle: CurvePoints, done: boolean }} Curve */

/** @type {Record<string, number>} */
const STOPS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, Home: -Infinity, End: Infinity };

/**
 * Sliders for a method's budget and fields over a trace. The host computes each selection, or holds a grid of them.
 *
 * @type {View}
 */
export function createExplorer(root, host) {
  /** @type {ExplorerPage} */
  const page = host.get("page");
  /** @type {Place | null} */
  let place = null;
  /** @type {ExplorerNumbers} */
  let numbers;
  /** @type {ExplorerSlice | null} */
  let slice = null;
  /** @type {Frame | null} */
  let frame = null;
  root.classList.add("kvviz", "kv-explorer");
  keepKeys(root);
  const controls = createExplorerControls(root, page, { change, measured: paintCurve, save });
  const wait = createWait(root, () => {
    questions.forget();
    place = placeOf(numbers);
    controls.set(place);
    heads.paint(place.layer, place.head, place.union);
  });
  controls.grid.before(wait.words);
  const tip = createTip(root);
  const above = element("div");
  controls.grid.before(above);
  const heads = createHeadPanel(above, page, {
    tip,
    pick: (layer, head, union) => change({ layer, head, union }),
    settings: controls.settings,
  });
  const right = controls.grid.appendChild(element("div", "kv-explorer-pictures"));
  const [ledgerTitle, textTitle] = ["where the tokens went", "which tokens they are"].map((title) =>
    `${title}, at step ${page.steps - 1}`
  );
  const curvePanel = titledPanel(right, "", "kv-explorer-curve", MEANING.curve);
  curvePanel.heading.tabIndex = 0; // nothing else in this panel takes the focus
  const { heading: ledgerHeading, panel: ledgerPanel } = titledPanel(
    right,
    `${ledgerTitle} `,
    "kv-explorer-ledger",
    MEANING.ledger,
  );
  const ledgerTag = ledgerHeading.appendChild(tagOf(ledgerPanel, "head", "last"));
  const { panel: textPanel, heading: textHeading } = titledPanel(right, textTitle, "kv-explorer-text", MEANING.text);
  root.append(...page.notes.map((note) => element("p", "kv-note", note)));

  const curve = createCurve(curvePanel.panel, page, { tip, pick: (budget) => change({ budget }) });
  const ledger = createLedger(ledgerPanel);
  /** @type {OnHover} */
  const about = (position, event) => {
    if (position === null || !slice || !frame) tip.hide();
    else tip.show(aboutHeads(page, slice, frame, page.steps - 1, position, 0), event);
  };
  const mapHost = element("div", "kv-explorer-map");
  explain(mapHost, MEANING.map);
  textPanel.before(mapHost);
  const map = createMatrix(mapHost, {
    label: "map of the attended tokens over all positions",
    palette: () => mapColours(root),
    onHover: (cell, event) => (cell && slice ? about(positionAt(slice, cell), event) : tip.hide()),
    onPick: (row, column) => slice && strip.focus(positionAt(slice, [row, column])),
  });
  const legend = createHeadsLegend(
    marksOf(page.merges),
    `hue: ${page.group_name} (${HUES}, then they repeat) · strength: attention`,
    MEANING.tint,
  );
  textPanel.after(legend.host);
  const strip = createStrip(textPanel, {
    tokens: page.tokens,
    span: page.span,
    label: "text with the attended tokens",
    onHover: about,
    onPick(position) {
      picked = picked === position ? -1 : position;
      strip.light(picked < 0 ? [] : [picked]);
    },
  });
  let picked = -1;
  const text = { span: page.span, prompt_length: page.tokens.length };
  const follow = createFollowText(controls.settings, textHeading, text, { strip: () => strip, picked: () => picked });
  createFind(textHeading, root, { tokens: page.tokens, strips: () => [strip] });
  const unwatch = watchTheme(root, () => {
    root.style.setProperty("--kv-method", root.dataset.theme === "dark" ? page.colours.dark : page.colours.light);
    map.recolour();
  });

  /** @param {Partial<Place>} changes */
  function change(changes) {
    if (!place) return;
    place = { ...place, ...changes, settings: { ...place.settings, ...changes.settings } };
    controls.set(place);
    heads.paint(place.layer, place.head, place.union);
    wait.begin(host);
    root.dataset.busy = "";
    questions.ask(place);
  }

  function paintCurve() {
    if (!slice) return;
    const { measure } = controls, union = unionOf(slice);
    const scope = scopeIn(SCOPE_OF[measure.name], union.kind);
    const title = nameIn(measure.name, union.kind, measure.title);
    const about = scope === "layer" ? MEANING.curve : meaningOf("curve", union);
    curvePanel.heading.replaceChildren(`${title} `, tagOf(curvePanel.panel, scope, "steps"));
    explainNumber(curvePanel.heading, `${meaningOf(measure.name, union)}. ${about}`, scope, "steps");
    curve.paint({ ...measure, title }, numbers);
  }

  /**
   * Says of which heads the panels at the last step are.
   *
   * @param {ExplorerSlice} slice
   */
  function describe(slice) {
    const union = unionOf(slice), scope = scopeIn("head", union.kind);
    ledgerTag.textContent = scopeText(scope, "last");
    ledgerPanel.dataset.scope = `${scope} last`;
    explain(ledgerHeading, meaningOf("ledger", union));
    explain(textHeading, meaningOf("text", union));
    legend.say(slice);
  }

  /** @param {Format} format */
  function save(format) {
    const { budget, layer, head, union } = numbers;
    const heads = union === "none" ? `head-${head}` : "union";
    const name = `budget-explorer-${page.method}-${budget}-layer-${layer}-${heads}`;
    return saveAs(format, controls.menu, root, host, name);
  }

  // The sliders' keys too: JupyterLab suppresses what the arrow keys do to a slider.
  root.addEventListener("keydown", (event) => {
    const target = targetOf(event), tag = target.tagName;
    const vertical = event.key === "ArrowUp" || event.key === "ArrowDown";
    if (hasModifier(event) || tag === "SELECT" || !(event.key in STOPS)) return;
    if (vertical && tag !== "INPUT") return; // these keys scroll
    controls.move(target, STOPS[event.key]);
    event.preventDefault();
  });

  /** If the method refuses the place, the panels keep what they showed last. */
  function show() {
    /** @type {ExplorerNumbers} */
    const answer = host.get("numbers");
    wait.end();
    controls.refuse(answer.refusal);
    if (answer.refusal) return;
    const opening = slice === null;
    numbers = answer;
    place = placeOf(answer);
    slice = /** @type {ExplorerSlice} */ (unpack(host.bytes("slice")));
    frame = frameOf(slice, 0);
    const union = unionOf(slice);
    strip.paint(frame.positions, frame.looks, frame.marks);
    map.paint(slice.map_looks, slice.shapes.map_looks);
    ledger.paint(answer, union);
    controls.paint(answer, union);
    heads.paint(answer.layer, answer.head, answer.union);
    describe(slice);
    paintCurve();
    follow.show([frame], opening);
    tip.hide();
    if (opening) requestAnimationFrame(() => strip.focus(follow.opening(), false)); // a notebook attaches the root first
  }

  const questions = createQuestions(host, { show, grown: curve.points });
  return () => {
    questions.close();
    wait.close();
    unwatch();
    map.destroy();
    curve.destroy();
  };
}

/**
 * @param {ExplorerNumbers} numbers
 * @returns {Place}
 */
function placeOf({ budget, layer, head, union, settings }) {
  return { budget, layer, head, union, settings: { ...settings } };
}
