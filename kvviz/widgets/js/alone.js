// TokenStrip and CanvasMatrix: parts of the other widgets, used alone.
import { element } from "./dom.js";
import { createMatrix } from "./matrix.js";
import { createStrip } from "./strip.js";
import { mapColours } from "./map_colours.js";
import { watchTheme } from "./theme.js";

/** @import { View } from "./host.js" */

/** @type {View} */
export function createTokenStrip(root, host) {
  const strip = createStrip(panelOf(root), {
    tokens: host.get("tokens"),
    label: host.get("label"),
    onHover: (position) => host.tell({ hovered: position ?? -1 }),
    onPick: (clicked) => host.tell({ clicked }),
  });
  const paint = () => {
    const looks = host.bytes("looks"), marks = host.bytes("marks");
    const positions = [...marks.keys()].filter((position) => marks[position]);
    strip.paint(positions, positions.map((position) => looks[position]), positions.map((position) => marks[position]));
  };
  host.on("looks", paint);
  host.on("marks", paint);
  host.on("focus", () => strip.focus(host.get("focus")));
  const unwatch = watchTheme(root);
  paint();
  return unwatch;
}

/** @type {View} */
export function createCanvasMatrix(root, host) {
  const matrix = createMatrix(panelOf(root), {
    label: host.get("label"),
    palette: () => (host.get("colours").byteLength ? host.bytes("colours").slice() : mapColours(root)),
    onHover: (cell) => host.tell({ hovered: cell ?? [-1, -1] }),
    onPick: (row, column) => host.tell({ clicked: [row, column] }),
  });
  const frame = () => matrix.frame(host.get("row"));
  const paint = () => {
    const values = host.bytes("values"), [rows, columns] = host.get("shape");
    if (values.length !== rows * columns) return; // only one of the two traits has changed yet
    matrix.paint(values, [rows, columns]);
    frame();
  };
  host.on("values", paint);
  host.on("shape", paint);
  host.on("colours", matrix.recolour);
  host.on("row", frame);
  const unwatch = watchTheme(root, matrix.recolour);
  paint();
  return () => {
    unwatch();
    matrix.destroy();
  };
}

/** @param {HTMLElement} root */
function panelOf(root) {
  root.className = "kvviz kv-alone";
  return root.appendChild(element("div", "kv-panel"));
}
