import { element, format, hasModifier, targetOf } from "./dom.js";
import { explain } from "./explain.js";
import { createFind } from "./find.js";
import { createHeadPanel } from "./head_panel.js";
import { createZoom, mapOf } from "./map_zoom.js";
import { createMatrix } from "./matrix.js";
import { keepKeys, stepKeys, titledPanel } from "./panel.js";
import { saveAs } from "./save.js";
import { tagOf } from "./scope.js";
import { frameOf, positionAt, unpack } from "./slice.js";
import { createAxis } from "./stepper_axis.js";
import { createClusters } from "./stepper_clusters.js";
import { createFollow } from "./stepper_follow.js";
import { createControls } from "./stepper_controls.js";
import { ATTENDED, createStrip } from "./strip.js";
import { mapColours } from "./map_colours.js";
import { HUES, watchTheme } from "./theme.js";
import { createTip } from "./tip.js";
import { createWait } from "./wait.js";
import { about as aboutHeads, createHeadsLegend, isShown, unionOf } from "./union.js";
import { marksOf, MEANING } from "./words.js";

/** @import { HeadNumbers } from "./head_panel.js" */
/** @import { View } from "./host.js" */
/** @import { Go } from "./panel.js" */
/** @import { Format } from "./save.js" */
/** @import { Clusters, Drawn, Frame, Slice } from "./slice.js" */
/** @import { OnHover } from "./strip.js" */
/** @import { HeadCounts, Union } from "./union.js" */
/** @typedef {Slice & Clusters & StepperNumbers & Partial<HeadCounts>} StepperSlice */
/**
 * @typedef {object} StepperNumbers
 * @property {Int32Array} group_offsets
 * @property {Float64Array} recall
 * @property {Float64Array} mass
 * @property {Float64Array} read_bytes
 * @property {Float64Array} moved_bytes
 */
/**
 * @typedef {object} StepperPage
 * @property {string} description
 * @property {string} call
 * @property {string[]} tokens
 * @property {string[]} next_tokens
 * @property {number} prompt_length
 * @property {number} question_length
 * @property {number} steps
 * @property {number[]} layers
 * @property {string} layers_meaning
 * @property {number[]} heads
 * @property {string} head_name
 * @property {Union[]} unions
 * @property {number} per_kv_head
 * @property {string} group_name
 * @property {boolean} merges
 * @property {boolean} lists_centroids
 * @property {string[]} notes
 * @property {HeadNumbers[]} head_maps
 * @property {number[]} span
 */

const STEP_MS = 700; // while playing

/**
 * A recording, step by step. The host sends a slice when the layer or head changes; a step needs none.
 *
 * @type {View}
 */
export function createStepper(root, host) {
  /** @type {StepperPage} */
  const page = host.get("page");
  /** @type {number} */
  let now = host.get("step");
  /** @type {StepperSlice | null} */
  let slice = null;
  /** @type {Drawn} what the map shows of the slice */
  let drawn;
  /** @type {Frame | null} */
  let frame = null;
  /** @type {number | null} */
  let timer = null;
  root.classList.add("kvviz", "kv-stepper");
  keepKeys(root);
  const controls = createControls(root, page, { go, toggle, pick: ask, save });
  const wait = createWait(root, () => slice && paint(slice));

  const tip = createTip(root);
  const heads = createHeadPanel(root, page, { tip, pick: ask, settings: controls.settings });
  const grid = root.appendChild(element("div", "kv-grid"));
  const { panel: promptPanel, heading } = titledPanel(grid, "prompt", "kv-prompt", MEANING.prompt);
  const follow = createFollow(controls.settings, heading, page, () => prompt);
  createFind(heading, root, { tokens: page.tokens.slice(0, page.prompt_length), strips: () => [prompt] });
  const { panel: mapPanel } = titledPanel(grid, "steps ↓ × positions →", "kv-map", MEANING.map);
  const zoom = createZoom(page.tokens.length, paintMap);
  const axis = createAxis(mapPanel, page, zoom);
  const recalledPanel = titledPanel(grid, "", "kv-recalled", MEANING.recalled);
  const recalledTitle = recalledPanel.heading.appendChild(element("span"));
  const recalledTag = tagOf(recalledPanel.panel, "head", "step");
  recalledPanel.heading.append(" ", recalledTag);
  const { panel: writtenPanel } = titledPanel(grid, "written so far", "kv-written", MEANING.written);
  const key = legend(page);
  root.append(key.host, ...page.notes.map((note) => element("p", "kv-note", note)));

  /** @type {OnHover} */
  const about = (position, event) => {
    if (position === null || !frame || !slice) tip.hide();
    else tip.show(aboutHeads(page, slice, frame, now, position), event);
  };
  const prompt = createStrip(promptPanel, {
    tokens: page.tokens.slice(0, page.prompt_length),
    span: page.span,
    label: "prompt",
    onHover: about,
    onPick: (token) => host.tell({ token: follow.pick(token) }),
    onScroll: axis.sight,
  });
  const written = createStrip(writtenPanel, {
    tokens: page.tokens.slice(page.prompt_length),
    start: page.prompt_length,
    label: "written so far",
    onHover: about,
  });
  const next = writtenPanel.appendChild(element("span", "kv-next"));
  explain(next, MEANING.next);
  writtenPanel.querySelectorAll("[data-position]").forEach((span, index) =>
    span.toggleAttribute("data-question", index < page.question_length)
  );
  const map = createMatrix(mapPanel, {
    label: "map of the attended tokens: one row per step, one column per position",
    palette: () => mapColours(root),
    zoom,
    onHover(cell, event) {
      if (!cell || !slice) return tip.hide();
      const [row] = cell, position = positionAt(drawn, cell);
      tip.show([["step", format(row)], ...aboutHeads(page, slice, frameOf(slice, row), row, position)], event);
    },
    onPick(row, column) {
      if (!slice) return;
      const position = positionAt(drawn, [row, column]);
      go(0, row);
      (position < page.prompt_length ? prompt : written).focus(position);
    },
  });
  const clusters = createClusters(recalledPanel.panel, page, {
    tip,
    onHover: (members) => members.length ? prompt.light(members) : follow.light(),
    onPick: (member) => prompt.focus(member),
  });
  const unwatch = watchTheme(root, map.recolour);

  /** @param {StepperSlice} slice */
  function paint(slice, opening = false) {
    frame = frameOf(slice, now);
    const { positions, looks, marks } = frame;
    prompt.paint(positions, looks, marks);
    written.paint(positions, looks, marks);
    written.reveal(now + 1);
    const predicted = now >= page.question_length - 1;
    next.hidden = !predicted;
    next.textContent = page.next_tokens[now];
    writtenPanel.scrollTop = writtenPanel.scrollHeight; // keeps the newest token in sight
    map.frame(now);
    const recalled = clusters.paint(slice, now, frame), { kind } = unionOf(slice);
    recalledPanel.panel.hidden = kind !== "none";
    recalledTag.hidden = kind !== "none";
    recalledTitle.textContent = kind !== "none"
      ? `${page.group_name}s belong to one head: pick a head in the map to see those it recalled`
      : page.lists_centroids
      ? "centroids whose tokens have the most attention (bar: exact attention)"
      : `${format(recalled)} ${page.group_name}${recalled === 1 ? "" : "s"} recalled, by score (bar: exact attention)`;
    follow.paint(slice, frame, opening);
    heads.paint(slice.layer, slice.head, kind);
    key.say(slice);
    controls.paint(now, slice, marks.reduce((count, mark) => count + (mark & ATTENDED), 0));
    tip.hide();
  }

  function paintMap() {
    if (!slice) return;
    drawn = mapOf(slice, zoom, true);
    map.paint(drawn.map_looks, drawn.shapes.map_looks);
  }

  /** @type {Go} */
  function go(by, to = now) {
    const step = Math.max(0, Math.min(page.steps - 1, to + by));
    if (step === now || !slice) return;
    now = step;
    paint(slice);
    host.tell({ step });
  }

  function toggle() {
    if (timer) stop();
    else {
      if (now === page.steps - 1) go(0, 0);
      timer = setInterval(() => (now < page.steps - 1 ? go(1) : stop()), STEP_MS);
    }
    controls.playing(timer !== null);
  }

  function stop() {
    if (timer) clearInterval(timer);
    timer = null;
    controls.playing(false);
  }

  /**
   * @param {number} layer
   * @param {number} head
   * @param {Union} union
   */
  function ask(layer, head, union) {
    if (slice && root.dataset.busy === undefined && isShown(slice, layer, head, union)) return;
    wait.begin(host);
    root.dataset.busy = "";
    heads.paint(layer, head, union);
    host.tell({ layer, head, union });
  }

  /** @param {Format} format */
  function save(format) {
    const head = slice && unionOf(slice).kind !== "none" ? "union" : `head-${slice?.head}`;
    return saveAs(format, controls.menu, root, host, `decode-stepper-step-${now}-layer-${slice?.layer}-${head}`);
  }

  root.addEventListener("keydown", (event) => {
    const tag = targetOf(event).tagName, move = stepKeys(page.steps)[event.key];
    if (hasModifier(event) || tag === "SELECT") return;
    if (event.key === " " && tag !== "BUTTON" && tag !== "SUMMARY") toggle();
    else if (move) go(...move);
    else return;
    event.preventDefault();
  });
  axis.follow(prompt);
  const resized = new ResizeObserver(axis.sight);
  resized.observe(promptPanel);
  controls.playing(false);

  function show() {
    const opening = slice === null;
    slice = /** @type {StepperSlice} */ (unpack(host.bytes("slice")));
    paintMap(); // reads the layout, so it comes before any change
    wait.end();
    paint(slice, opening);
    // A notebook has to attach the root first.
    if (opening) requestAnimationFrame(() => frame && prompt.focus(follow.opening(), false));
  }
  host.on("slice", show);
  host.on("step", () => go(0, host.get("step")));
  show();
  return () => {
    stop();
    wait.close();
    unwatch();
    resized.disconnect();
    map.destroy();
  };
}

/** @param {StepperPage} page */
function legend(page) {
  const tint =
    `a ${page.group_name} keeps its hue over all steps; the strength is logarithmic, from 0.0002 or less to ` +
    "0.35 or more";
  const words = `hue: ${page.group_name} (${HUES}, then they repeat) · strength: attention`;
  return createHeadsLegend(marksOf(page.merges), words, tint);
}
