import { hasHeadMap } from "./head_panel.js";
import { markSelected, picker } from "./panel.js";

/** @import { HeadPage } from "./head_panel.js" */
/** @import { Option } from "./panel.js" */

/**
 * The options of a menu of layers; one with a sliding window says so, and cannot be picked.
 *
 * @param {{ layers: number[], windows?: Record<string, string> }} page
 * @returns {Option[]}
 */
export function layerOptions({ layers, windows = {} }) {
  const all = [...new Set([...layers, ...Object.keys(windows).map(Number)])].sort((one, other) => one - other);
  return all.map((layer) =>
    windows[layer] ? [String(layer), `layer ${layer}, ${windows[layer]}`, "disabled"] : String(layer)
  );
}

/**
 * Drop-downs for layer and head, where no map of the heads picks them. Returns what sets them.
 *
 * @param {HTMLElement} host
 * @param {HeadPage} page
 * @param {(layer: number, head: number) => void} pick
 * @returns {(layer: number, head: number) => void}
 */
export function createPlacePickers(host, page, pick) {
  if (hasHeadMap(page)) return () => {};
  const changed = () => pick(Number(layer.value), Number(row.value));
  const layer = picker(
    host,
    "layer",
    layerOptions(page),
    page.layers_meaning ?? "layer: the layer that is shown",
    changed,
  );
  const meaning = `${page.head_name}: the head of the layer that is shown`;
  const row = picker(host, page.head_name, page.heads, meaning, changed);
  return (shownLayer, shownHead) => {
    layer.value = String(shownLayer);
    row.value = String(shownHead);
    markSelected(layer, row);
  };
}
