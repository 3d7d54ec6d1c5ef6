import { mapColours, watchTheme } from "./theme.js";
import { ATTENDED, createStrip, element, format } from "./strip.js";
import { createMatrix } from "./matrix.js";
import { frameOf, unpack } from "./slice.js";
import { MEANING, aboutToken } from "./words.js";
import { createTip } from "./tip.js";
import { createClusters } from "./clusters.js";
import { createControls } from "./controls.js";
import { createLegend, keepKeys, savePicture, section } from "./panel.js";

const STEP_MS = 700; // while playing

// Draws a recording into `root`. `request(layer, head)` asks the host for bytes, which it hands to `show`;
// `stepped(step)` tells it of a new step. Both hosts, the live widget and the page without a kernel, use this alone.
export function createStepper(root, page, { step: first, css, request, stepped }) {
  const state = { step: first };
  let slice = null, frame = null, timer = null;
  root.classList.add("kvviz", "kv-stepper");
  keepKeys(root);
  const controls = createControls(root, page, { go, toggle, pick: (layer, head) => ask(layer, head), save });

  const grid = root.appendChild(element("div", "kv-grid"));
  const promptPanel = panel(grid, "prompt", "kv-prompt", MEANING.prompt);
  const mapPanel = panel(grid, "steps ↓ × positions →", "kv-map", MEANING.map);
  const recalledPanel = panel(grid, "recalled, by score", "kv-recalled", MEANING.recalled);
  const writtenPanel = panel(grid, "written so far", "kv-written", MEANING.written);
  root.append(legend(page), ...page.notes.map((note) => element("p", "kv-note", note)));
  const tip = createTip(root);

  const about = (position, event) => {
    if (position === null || !frame) tip.hide();
    else tip.show(aboutToken(page, slice, frame, state.step, position), event);
  };
  const prompt = createStrip(promptPanel, { tokens: page.tokens.slice(0, page.prompt_length), label: "prompt", onHover: about, onScroll: sight });
  const written = createStrip(writtenPanel, { tokens: page.tokens.slice(page.prompt_length), start: page.prompt_length, label: "written so far", onHover: about });
  const next = writtenPanel.appendChild(element("span", "kv-next"));
  next.title = "what this step predicts";
  writtenPanel.querySelectorAll("[data-position]").forEach((span, index) => span.toggleAttribute("data-question", index < page.question_length));
  const map = createMatrix(mapPanel, {
    label: "map of the attended tokens: one row a step, one column a position",
    palette: () => mapColours(root),
    onHover(cell, event) {
      if (!cell || !slice) return tip.hide();
      const [row, column] = cell, position = slice.map_positions[row * slice.shapes.map_positions[1] + column];
      tip.show([["step", format(row)], ...aboutToken(page, slice, frameOf(slice, row), row, position)], event);
    },
    onPick(row, column) {
      const position = slice.map_positions[row * slice.shapes.map_positions[1] + column];
      go(0, row);
      (position < page.prompt_length ? prompt : written).focus(position);
    },
  });
  const sightBar = element("div", "kv-sight");
  sightBar.title = "the part of the prompt that is in sight";
  mapPanel.before(sightBar);
  const axis = element("div", "kv-axis");
  axis.append(element("span", "", "0"), element("span", "", "position"), element("span", "", format(page.tokens.length - 1)));
  mapPanel.after(axis);
  const clusters = createClusters(recalledPanel, page, { onHover: (members) => prompt.light(members), onPick: (member) => prompt.focus(member) });
  const unwatch = watchTheme(root, map.recolour);

  function paint() {
    frame = frameOf(slice, state.step);
    const { positions, looks, marks } = frame;
    prompt.paint(positions, looks, marks);
    written.paint(positions, looks, marks);
    written.reveal(state.step + 1);
    const predicted = state.step >= page.question_length - 1;
    next.hidden = !predicted;
    next.textContent = page.next_tokens[state.step];
    writtenPanel.scrollTop = writtenPanel.scrollHeight; // the newest word stays in sight
    map.frame(state.step);
    const recalled = clusters.paint(slice, state.step, frame);
    recalledPanel.previousSibling.textContent = page.merges
      ? "centroids whose tokens have the most attention (bar: exact attention)"
      : `${format(recalled)} ${page.group_name}${recalled === 1 ? "" : "s"} recalled, by score (bar: exact attention)`;
    controls.paint(state, slice, marks.reduce((count, mark) => count + (mark & ATTENDED), 0));
    tip.hide();
  }

  function go(by, to = state.step) {
    const step = Math.max(0, Math.min(page.steps - 1, to + by));
    if (step === state.step || !slice) return;
    state.step = step;
    paint();
    stepped(step);
  }

  function toggle() {
    if (timer) stop();
    else {
      if (state.step === page.steps - 1) go(0, 0);
      timer = setInterval(() => (state.step < page.steps - 1 ? go(1) : stop()), STEP_MS);
    }
    controls.playing(timer !== null);
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    controls.playing(false);
  }

  function ask(layer, head) {
    root.dataset.busy = "";
    request(layer, head);
  }

  function sight() {
    const [from, until] = prompt.inSight();
    sightBar.style.setProperty("--from", from / page.tokens.length);
    sightBar.style.setProperty("--until", Math.min(until, page.prompt_length) / page.tokens.length);
  }

  function save() {
    return savePicture(controls.menu, root, css, `decode-stepper-step-${state.step}-layer-${slice.layer}-head-${slice.head}.png`, map.canvas);
  }

  root.addEventListener("keydown", (event) => {
    const tag = event.target.tagName, moves = { ArrowLeft: [-1], ArrowRight: [1], Home: [0, 0], End: [0, page.steps - 1] };
    if (event.ctrlKey || event.metaKey || event.altKey || tag === "SELECT") return;
    if (event.key === " " && tag !== "BUTTON" && tag !== "SUMMARY") toggle();
    else if (moves[event.key]) go(...moves[event.key]);
    else return;
    event.preventDefault();
  });
  const resized = new ResizeObserver(sight);
  resized.observe(promptPanel);
  controls.playing(false);

  return {
    show(bytes) {
      const opening = slice === null;
      slice = unpack(bytes);
      map.paint(slice.map_looks, ...slice.shapes.map_looks); // reads the layout, before anything changes it
      delete root.dataset.busy;
      paint();
      if (opening) requestAnimationFrame(() => prompt.focus(strongest(frame), false)); // a notebook attaches the root first
    },
    step: (step) => go(0, step),
    destroy() {
      stop();
      unwatch();
      resized.disconnect();
      map.destroy();
    },
  };
}

// The recalled token with the most attention: where the text opens.
function strongest(frame) {
  let best = -1;
  for (let index = 0; index < frame.groups.length; index++) {
    if (frame.groups[index] >= 0 && (best < 0 || frame.weights[index] > frame.weights[best])) best = index;
  }
  return best < 0 ? 0 : frame.positions[best];
}

function panel(grid, title, name, meaning) {
  return section(grid, title, name, meaning).appendChild(element("div", "kv-panel"));
}

function legend(page) {
  const marks = [
    ["kv-attended kv-agreed", "attended, the oracle too", MEANING.recall],
    ["kv-attended kv-wasted", "attended, the oracle would not", "wasted: a token that was recalled although the oracle would not take it"],
    ["kv-missed", "missed", "a token that the oracle would attend and the method did not"],
    ["kv-attended kv-kept", "sink or recent", "always attended, without being recalled"],
  ];
  if (page.merges) marks.splice(3, 0, ["kv-merged", "merged", MEANING.merged]);
  const tint = `a ${page.group_name} keeps its hue over all steps; the strength is logarithmic, from 0.0002 and less to 0.35 and more`;
  return createLegend(marks, `hue: ${page.group_name} · strength: attention`, tint);
}
