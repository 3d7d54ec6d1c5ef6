// TokenStrip and CanvasMatrix: parts of the other widgets, used alone.
import { element } from "./dom.js";
import { createRange, createZoom } from "./map_zoom.js";
import { createMatrix } from "./matrix.js";
import { createStrip } from "./strip.js";
import { mapColours } from "./map_colours.js";
import { watchTheme } from "./theme.js";

/** @import { View } from "./host.js" */
/** @import { Cell } from "./matrix.js" */

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
  const zoom = createZoom(host.get("shape")[1], () => paint(), { most: Infinity, noun: "columns" });
  /** @type {(row: number, column: number) => Cell} */
  const whole = (row, column) => [row, zoom.firstOf(column)];
  const matrix = createMatrix(panelOf(root), {
    label: host.get("label"),
    zoom,
    palette: () => (host.get("colours").byteLength ? host.bytes("colours").slice() : mapColours(root)),
    onHover: (cell) => host.tell({ hovered: cell ? whole(...cell) : [-1, -1] }),
    onPick: (row, column) => host.tell({ clicked: whole(row, column) }),
  });
  root.append(createRange(zoom));
  const frame = () => matrix.frame(host.get("row"));
  const paint = () => {
    const values = host.bytes("values"), [rows, columns] = host.get("shape");
    if (values.length !== rows * columns) return; // only one of the two traits has changed yet
    zoom.resize(columns);
    const [from, until] = zoom.range;
    matrix.paint(zoom.zoomed ? columnsOf(values, columns, from, until) : values, [rows, until - from]);
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

/**
 * The columns of a matrix of bytes from one to before another.
 *
 * @param {Uint8Array} values
 * @param {number} columns
 * @param {number} from
 * @param {number} until
 */
function columnsOf(values, columns, from, until) {
  const wide = until - from, cut = new Uint8Array((values.length / columns) * wide);
  for (let row = 0; row * columns < values.length; row++) {
    cut.set(values.subarray(row * columns + from, row * columns + until), row * wide);
  }
  return cut;
}
