import { element, format, hasModifier, targetOf } from "./dom.js";
import { createHeadPanel } from "./head_panel.js";
import { createMatrix } from "./matrix.js";
import { createLegend, keepKeys, stepKeys, titledPanel } from "./panel.js";
import { saveAs } from "./save.js";
import { frameOf, positionAt, unpack } from "./slice.js";
import { createClusters } from "./stepper_clusters.js";
import { createFollow } from "./stepper_follow.js";
import { createControls } from "./stepper_controls.js";
import { ATTENDED, createStrip } from "./strip.js";
import { mapColours } from "./map_colours.js";
import { HUES, watchTheme } from "./theme.js";
import { createTip } from "./tip.js";
import { createWait } from "./wait.js";
import { aboutToken, MEANING } from "./words.js";

/** @import { HeadNumbers } from "./head_panel.js" */
/** @import { View } from "./host.js" */
/** @import { Go, Marks } from "./panel.js" */
/** @import { Format } from "./save.js" */
/** @import { Clusters, Frame, Slice } from "./slice.js" */
/** @import { OnHover } from "./strip.js" */
/** @typedef {Slice & Clusters & StepperNumbers} StepperSlice */
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
 * @property {string} group_name
 * @property {boolean} merges
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
  /** @type {Frame | null} */
  let frame = null;
  /** @type {number | null} */
  let timer = null;
  root.classList.add("kvviz", "kv-stepper");
  keepKeys(root);
  const controls = createControls(root, page, { go, toggle, pick: ask, save });
  const wait = createWait(root, () => slice && paint(slice));

  const tip = createTip(root);
  const heads = createHeadPanel(root, page, { tip, pick: ask });
  const grid = root.appendChild(element("div", "kv-grid"));
  const { panel: promptPanel, heading } = titledPanel(grid, "prompt", "kv-prompt", MEANING.prompt);
  const follow = createFollow(heading, page, () => prompt);
  const { panel: mapPanel } = titledPanel(grid, "steps ↓ × positions →", "kv-map", MEANING.map);
  const recalledPanel = titledPanel(grid, "recalled, by score", "kv-recalled", MEANING.recalled);
  const { panel: writtenPanel } = titledPanel(grid, "written so far", "kv-written", MEANING.written);
  root.append(legend(page), ...page.notes.map((note) => element("p", "kv-note", note)));

  /** @type {OnHover} */
  const about = (position, event) => {
    if (position === null || !frame || !slice) tip.hide();
    else tip.show(aboutToken(page, slice, frame, now, position), event);
  };
  const prompt = createStrip(promptPanel, {
    tokens: page.tokens.slice(0, page.prompt_length),
    span: page.span,
    label: "prompt",
    onHover: about,
    onPick: (token) => host.tell({ token: follow.pick(token) }),
    onScroll: sight,
  });
  const written = createStrip(writtenPanel, {
    tokens: page.tokens.slice(page.prompt_length),
    start: page.prompt_length,
    label: "written so far",
    onHover: about,
  });
  const next = writtenPanel.appendChild(element("span", "kv-next"));
  next.title = "the token that this step predicts";
  writtenPanel.querySelectorAll("[data-position]").forEach((span, index) =>
    span.toggleAttribute("data-question", index < page.question_length)
  );
  const map = createMatrix(mapPanel, {
    label: "map of the attended tokens: one row per step, one column per position",
    palette: () => mapColours(root),
    onHover(cell, event) {
      if (!cell || !slice) return tip.hide();
      const [row] = cell, position = positionAt(slice, cell);
      tip.show([["step", format(row)], ...aboutToken(page, slice, frameOf(slice, row), row, position)], event);
    },
    onPick(row, column) {
      if (!slice) return;
      const position = positionAt(slice, [row, column]);
      go(0, row);
      (position < page.prompt_length ? prompt : written).focus(position);
    },
  });
  const sightBar = element("div", "kv-sight");
  sightBar.title = "the visible part of the prompt, the end of the prompt, and the marked tokens";
  sightBar.append(
    placed("kv-end", page.prompt_length, "the end of the prompt"),
    ...page.span.map((position) => placed("kv-asked", position + 0.5, "a marked token")),
  );
  mapPanel.before(sightBar);
  const axis = element("div", "kv-axis");
  axis.append(
    element("span", "", "0"),
    element("span", "", `position; steps 0 to ${format(page.steps - 1)} from top to bottom`),
    element("span", "", format(page.tokens.length - 1)),
  );
  mapPanel.after(axis);
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
    const recalled = clusters.paint(slice, now, frame);
    recalledPanel.heading.textContent = page.merges
      ? "centroids whose tokens have the most attention (bar: exact attention)"
      : `${format(recalled)} ${page.group_name}${recalled === 1 ? "" : "s"} recalled, by score (bar: exact attention)`;
    follow.paint(slice, frame, opening);
    heads.paint(slice.layer, slice.head);
    controls.paint(now, slice, marks.reduce((count, mark) => count + (mark & ATTENDED), 0));
    tip.hide();
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
   */
  function ask(layer, head) {
    wait.begin();
    root.dataset.busy = "";
    host.tell({ layer, head });
  }

  /**
   * A mark above the map.
   *
   * @param {string} name
   * @param {number} position
   * @param {string} meaning
   */
  function placed(name, position, meaning) {
    const mark = element("span", name);
    mark.style.left = `${(100 * position) / page.tokens.length}%`;
    mark.title = meaning;
    return mark;
  }

  function sight() {
    const [from, until] = prompt.inSight();
    sightBar.style.setProperty("--from", String(from / page.tokens.length));
    sightBar.style.setProperty("--until", String(Math.min(until, page.prompt_length) / page.tokens.length));
  }

  /** @param {Format} format */
  function save(format) {
    const place = `step-${now}-layer-${slice?.layer}-head-${slice?.head}`;
    return saveAs(format, controls.menu, root, host, `decode-stepper-${place}`);
  }

  root.addEventListener("keydown", (event) => {
    const tag = targetOf(event).tagName, move = stepKeys(page.steps)[event.key];
    if (hasModifier(event) || tag === "SELECT") return;
    if (event.key === " " && tag !== "BUTTON" && tag !== "SUMMARY") toggle();
    else if (move) go(...move);
    else return;
    event.preventDefault();
  });
  const resized = new ResizeObserver(sight);
  resized.observe(promptPanel);
  controls.playing(false);

  function show() {
    const opening = slice === null;
    slice = /** @type {StepperSlice} */ (unpack(host.bytes("slice")));
    map.paint(slice.map_looks, slice.shapes.map_looks); // reads the layout, so it comes before any change
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
  /** @type {Marks} */
  const marks = [
    ["kv-attended kv-agreed", "agreed", "attended, and the oracle would attend to it too"],
    ["kv-attended kv-wasted", "wasted", "recalled by the method, although the oracle would not attend to it"],
    ["kv-missed", "missed", "the oracle would attend to it; the method did not"],
    ["kv-attended kv-kept", "sink or recent", "always attended, without being recalled"],
  ];
  if (page.merges) marks.splice(3, 0, ["kv-merged", "merged", MEANING.merged]);
  const hue = `a ${page.group_name} keeps its hue over all steps`;
  const tint = `${hue}; the strength is logarithmic, from 0.0002 or less to 0.35 or more`;
  return createLegend(marks, `hue: ${page.group_name} (${HUES}, then they repeat) · strength: attention`, tint);
}
