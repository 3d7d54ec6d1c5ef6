import { element } from "./dom.js";
import { explain } from "./explain.js";
import { createHeadMap } from "./head_map.js";
import { setting } from "./menu.js";
import { scopeIn, SCOPES } from "./scope.js";
import { MEANING } from "./words.js";

/** @import { Head } from "./head_map.js" */
/** @import { Tip } from "./tip.js" */
/** @import { Scope } from "./scope.js" */
/** @import { Union } from "./union.js" */
/** @typedef {{ label: string, about: string, measure: string, scope: Scope, values: Record<string, number[]> }} HeadNumbers */
/**
 * `layers` and `heads` are those with data; the numbers of `head_maps` may have more, of which `elsewhere` says where
 * they are. `per_kv_head` heads share a KV head; `joined_heads`: only unions with one of these are there.
 *
 * @typedef {object} HeadPage
 * @property {HeadNumbers[]} head_maps
 * @property {number[]} layers
 * @property {string} [layers_meaning]
 * @property {number[]} heads
 * @property {string} head_name
 * @property {Union[]} [unions]
 * @property {number} [per_kv_head]
 * @property {number[]} [joined_heads]
 * @property {string} [elsewhere]
 * @property {Record<string, string>} [windows] what layers with a sliding window attend to
 */
/** @typedef {(layer: number, head: number, union: Union) => void} PickHead */

const ALL = -1; // the row of the map for all heads; the rows before it, -2 and below, are the query heads of a KV head

/**
 * Whether a widget shows a map of the heads, which picks one; others have drop-downs.
 *
 * @param {HeadPage} page
 */
export function hasHeadMap(page) {
  return page.head_maps.length > 0 && layersOf(page).length * headsOf(page).length > 1;
}

/** @param {HeadPage} page */
const layersOf = ({ head_maps: [numbers], windows = {} }) =>
  [...new Set([...Object.keys(numbers.values), ...Object.keys(windows)])].map(Number).sort((one, other) => one - other);

/** @param {HeadPage} page */
const headsOf = (page) => Object.values(page.head_maps[0].values)[0].map((_, head) => head);

/**
 * The map of layers × heads of a widget. The number that it shows is picked in the `settings`, if there are any.
 *
 * @param {HTMLElement} root
 * @param {HeadPage} page
 * @param {{ tip: Tip, pick: PickHead, settings?: HTMLElement }} options
 */
export function createHeadPanel(root, page, { tip, pick, settings }) {
  /** @type {(layer: number, head: number, union?: Union) => void} */
  const nothing = () => {};
  if (!hasHeadMap(page)) return { paint: nothing };
  const { unions = [], per_kv_head: perKvHead = 1, elsewhere = "", windows = {} } = page;
  const layers = layersOf(page), heads = headsOf(page), joinedHeads = page.joined_heads ?? heads;
  const joined = unions.includes("kv_head") ? heads.filter((head) => head % perKvHead === 0).map(rowOfKvHead) : [];
  if (unions.includes("layer")) joined.push(ALL);
  const section = root.appendChild(element("section", "kv-headpanel"));
  const title = section.appendChild(element("h3", "", `layers × ${page.head_name}s: `));
  const label = "the number that the map of heads shows";
  const name = title.appendChild(element("span", "kv-headlabel"));
  const select = settings
    ? setting(settings, "the map of heads shows", label, MEANING.heads)
    : title.appendChild(element("select", "kv-headmeasure"));
  select.setAttribute("aria-label", label);
  for (const { label } of page.head_maps) select.append(new Option(label));
  const note = title.appendChild(element("span", "kv-headnote"));
  let shown = page.head_maps[0], place = { layer: -1, head: 0 };

  /** @param {number} head */
  function rowOfKvHead(head) {
    return ALL - 1 - head / perKvHead;
  }

  /**
   * The heads that a row of the map stands for.
   *
   * @param {number} row
   */
  function headsOfRow(row) {
    if (row >= 0) return [row];
    return row === ALL ? heads : heads.filter((head) => rowOfKvHead(head - head % perKvHead) === row);
  }

  /**
   * @param {number} row
   * @returns {Union}
   */
  function unionOfRow(row) {
    return row >= 0 ? "none" : row === ALL ? "layer" : "kv_head";
  }

  /**
   * @param {HeadNumbers} numbers
   * @param {Head} place
   */
  function valueOf(numbers, { layer, head }) {
    const values = headsOfRow(head).map((each) => numbers.values[layer]?.[each] ?? 0);
    return values.reduce((sum, value) => sum + value, 0) / values.length;
  }

  const map = createHeadMap(section, {
    layers,
    heads: [...heads, ...joined],
    headName: page.head_name,
    label: "map of the heads, which picks one",
    joined(row) {
      if (row === ALL) return { name: `union of all ${page.head_name}s`, short: "all" };
      const number = ALL - 1 - row;
      return row < 0 ? { name: `union of the query heads of KV head ${number}`, short: `KV ${number}` } : undefined;
    },
    about: (place) => {
      if (windows[place.layer]) return [];
      const others = page.head_maps.filter((numbers) => numbers !== shown);
      const several = headsOfRow(place.head).length > 1, kind = unionOfRow(place.head);
      return [shown, ...others].map((numbers) => [
        `${several && numbers.scope === "head" ? "mean over the heads of " : ""}${numbers.label} (${
          SCOPES[scopeIn(numbers.scope, kind)]
        })`,
        valueOf(numbers, place).toFixed(3),
      ]);
    },
    available: ({ layer, head: row }) =>
      page.layers.includes(layer) &&
      headsOfRow(row).some((head) => (row < 0 ? joinedHeads : page.heads).includes(head)),
    elsewhere: ({ layer }) => windows[layer] ?? elsewhere,
    pick({ layer, head: row }) {
      if (row >= 0) pick(layer, row, "none");
      else if (row === ALL) pick(layer, place.head < 0 ? 0 : place.head, "layer");
      else pick(layer, headsOfRow(row)[0], "kv_head");
    },
    tip,
  });

  function draw() {
    shown = page.head_maps[select.selectedIndex] ?? shown;
    if (settings) name.textContent = `${shown.label}; `;
    const all = layers.flatMap((layer) => heads.map((head) => valueOf(shown, { layer, head })));
    const most = Math.max(1e-9, ...all);
    map.draw((place) => valueOf(shown, place), most);
    const windowed = Object.keys(windows).length;
    const away = layers.length - windowed > page.layers.length || heads.length > page.heads.length;
    const dashed = [windowed ? "sliding windows" : "", away ? "not in this page" : ""].filter(Boolean).join(", or ");
    note.textContent = `largest ${most.toFixed(3)}; ${shown.about}${dashed ? `; dashed: ${dashed}` : ""}`;
    explain(title, [MEANING.heads, MEANING[shown.measure], page.layers_meaning].filter(Boolean).join(". "));
    for (const option of select.options) option.toggleAttribute("selected", option.selected);
  }
  select.addEventListener("change", () => {
    draw();
    map.paint(place);
  });
  draw();
  return {
    /**
     * @param {number} layer
     * @param {number} head
     * @param {Union} [union]
     */
    paint(layer, head, union = "none") {
      const row = union === "layer" ? ALL : union === "kv_head" ? rowOfKvHead(head - head % perKvHead) : head;
      place = { layer, head: row };
      map.paint(place);
    },
  };
}
