import { mapColours, watchTheme } from "./theme.js";
import { createStrip, element, format } from "./strip.js";
import { createMatrix } from "./matrix.js";
import { frameOf, unpack } from "./slice.js";
import { aboutToken } from "./words.js";
import { createTip } from "./tip.js";
import { createLegend, keepKeys, savePicture, section } from "./panel.js";
import { EXPLORER_KEY, EXPLORER_MEANING } from "./explorer_words.js";
import { createExplorerControls } from "./explorer_controls.js";
import { createExplorerCurve } from "./explorer_curve.js";
import { createExplorerLedger } from "./explorer_ledger.js";

// Draws the explorer into `root`. `ask(place)` asks the host for a budget, settings, layer and head; it answers with
// `show`, and hands over what it has of the curve with `curve`. Both hosts use this alone.
export function createExplorer(root, page, { css, ask }) {
  let place = null, numbers = null, slice = null, frame = null;
  root.classList.add("kvviz", "kv-explorer");
  keepKeys(root);
  const controls = createExplorerControls(root, page, { change, measured, save });
  const right = controls.grid.appendChild(element("div", "kv-explorer-pictures"));
  const curvePanel = explorerPanel(right, "", "kv-explorer-curve", EXPLORER_MEANING.curve);
  const ledgerPanel = explorerPanel(right, `where the tokens went, at step ${page.steps - 1}`, "kv-explorer-ledger", EXPLORER_MEANING.ledger);
  const textPanel = explorerPanel(right, `which tokens they are, at step ${page.steps - 1}`, "kv-explorer-text", EXPLORER_MEANING.text);
  root.append(...page.notes.map((note) => element("p", "kv-note", note)));
  const tip = createTip(root);

  const curve = createExplorerCurve(curvePanel, page, { tip, pick: (budget) => change({ budget }) });
  const ledger = createExplorerLedger(ledgerPanel);
  const about = (position, event) => {
    if (position === null || position === undefined || !frame) tip.hide();
    else tip.show(aboutToken(page, slice, frame, page.steps - 1, position), event);
  };
  const mapHost = element("div", "kv-explorer-map");
  mapHost.title = EXPLORER_MEANING.map;
  textPanel.before(mapHost);
  const columnAt = ([, column]) => slice.map_positions[column];
  const map = createMatrix(mapHost, {
    label: "map of the attended tokens over all positions",
    palette: () => mapColours(root),
    onHover: (cell, event) => (cell && slice ? about(columnAt(cell), event) : tip.hide()),
    onPick: (row, column) => strip.focus(columnAt([row, column])),
  });
  const marks = EXPLORER_KEY.filter(([mark]) => page.merges || mark !== "kv-merged");
  textPanel.parentNode.append(createLegend(marks, `hue: ${page.group_name} · strength: attention`, EXPLORER_MEANING.tint));
  const strip = createStrip(textPanel, { tokens: page.tokens, label: "text with the attended tokens", onHover: about });
  const unwatch = watchTheme(root, () => {
    root.style.setProperty("--kv-method", page.colours[root.dataset.theme]);
    map.recolour();
  });

  function change(changes) {
    if (!place) return;
    place = { ...place, ...changes, settings: { ...place.settings, ...changes.settings } };
    controls.set(place);
    root.dataset.busy = "";
    ask(place);
  }

  function measured() {
    curvePanel.previousSibling.textContent = controls.measure.title;
    curve.paint(controls.measure, numbers);
  }

  function save() {
    const name = `budget-explorer-${page.method}-${numbers.budget}-layer-${numbers.layer}-head-${numbers.head}.png`;
    return savePicture(controls.menu, root, css, name, map.canvas);
  }

  // Ours for the sliders too: JupyterLab keeps the arrow keys' own effect from them.
  root.addEventListener("keydown", (event) => {
    const keys = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, Home: -Infinity, End: Infinity };
    const tag = event.target.tagName, vertical = event.key === "ArrowUp" || event.key === "ArrowDown";
    if (event.ctrlKey || event.metaKey || event.altKey || tag === "SELECT" || !(event.key in keys)) return;
    if (vertical && tag !== "INPUT") return; // they scroll
    controls.move(event.target, keys[event.key]);
    event.preventDefault();
  });

  return {
    // `refusal` is the reason why there is nothing to show: the pictures keep what they showed last.
    show(found, bytes) {
      delete root.dataset.busy;
      controls.refuse(found.refusal);
      if (found.refusal) return;
      const opening = slice === null;
      numbers = found;
      place = { budget: found.budget, layer: found.layer, head: found.head, settings: { ...found.settings } };
      slice = unpack(bytes);
      frame = frameOf(slice, 0);
      strip.paint(frame.positions, frame.looks, frame.marks);
      map.paint(slice.map_looks, ...slice.shapes.map_looks);
      ledger.paint(found);
      controls.paint(found);
      measured();
      tip.hide();
      if (opening) requestAnimationFrame(() => strip.focus(explorerOpening(frame), false)); // a notebook attaches the root first
    },
    curve(points) {
      curve.points(points);
    },
    destroy() {
      unwatch();
      map.destroy();
      curve.destroy();
    },
  };
}

// The chosen token with the most attention: where the text opens.
function explorerOpening(frame) {
  let best = 0;
  for (let index = 1; index < frame.positions.length; index++) {
    const chosen = frame.groups[index] >= 0, before = frame.groups[best] >= 0;
    if (chosen > before || (chosen === before && frame.weights[index] > frame.weights[best])) best = index;
  }
  return frame.positions.length ? frame.positions[best] : 0;
}

function explorerPanel(host, title, name, meaning) {
  return section(host, title, name, meaning).appendChild(element("div", "kv-panel"));
}
