import { element } from "./dom.js";

/** @import { Rows, Tip } from "./tip.js" */
/** @typedef {{ layer: number, head: number }} Head */

/** @type {Record<string, [layers: number, heads: number] | undefined>} */
const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/**
 * A map of layers × heads, which is also their picker: the area of a mark is the value of the head. With the focus, the
 * arrow keys go from head to head.
 *
 * @param {HTMLElement} host
 * @param {object} options
 * @param {number[]} options.layers
 * @param {number[]} options.heads
 * @param {string} options.headName
 * @param {string} options.label
 * @param {(head: Head) => Rows} options.about
 * @param {(head: Head) => void} options.pick
 * @param {Tip} options.tip
 */
export function createHeadMap(host, { layers, heads, headName, label, about, pick, tip }) {
  /** @param {Head} place */
  const nameOf = ({ layer, head }) => `layer ${layer}, ${headName} ${head}`;
  /** @param {Head} place */
  const keyOf = ({ layer, head }) => String([layer, head]);

  let current = { layer: -1, head: -1 };
  const table = host.appendChild(element("div", "kv-headmap"));
  table.setAttribute("role", "grid");
  table.setAttribute("aria-label", label);
  table.style.setProperty("--kv-layers", String(layers.length));
  if (heads.length > 12) table.dataset.small = "";
  /** @type {Map<string, HTMLButtonElement>} */
  const cells = new Map();
  for (const head of heads) {
    const row = table.appendChild(element("div", "kv-headrow"));
    row.setAttribute("role", "row");
    const name = row.appendChild(element("span", "kv-headname", String(head)));
    name.setAttribute("role", "rowheader");
    for (const layer of layers) row.append(cell({ layer, head }));
  }
  const axis = table.appendChild(element("div", "kv-headrow kv-headaxis"));
  axis.setAttribute("aria-hidden", "true");
  axis.append(element("span", "kv-headname", "layer"));
  const every = Math.max(1, Math.ceil(layers.length / 10));
  layers.forEach((layer, at) => axis.append(element("span", "", at % every ? "" : String(layer))));
  const said = host.appendChild(element("p", "kv-headsaid"));
  said.setAttribute("role", "status");

  /** @param {Head} place */
  function cell(place) {
    const node = element("button", "kv-headcell");
    node.type = "button";
    node.setAttribute("role", "gridcell");
    node.tabIndex = -1;
    node.append(element("span"));
    node.addEventListener("click", () => pick(place));
    node.addEventListener("pointerover", (event) => tip.show([["head", nameOf(place)], ...about(place)], event));
    node.addEventListener("pointerleave", () => tip.hide());
    cells.set(keyOf(place), node);
    return node;
  }

  table.addEventListener("keydown", (event) => {
    const [right, down] = MOVES[event.key] ?? [];
    if (right === undefined || down === undefined) return;
    const layer = layers[layers.indexOf(current.layer) + right], head = heads[heads.indexOf(current.head) + down];
    event.preventDefault();
    event.stopPropagation();
    if (layer === undefined || head === undefined) return;
    pick({ layer, head });
    cells.get(keyOf({ layer, head }))?.focus();
  });

  return {
    table,
    /**
     * Draws a value for each head; below 0 the mark is hollow.
     *
     * @param {(head: Head) => number} valueOf
     * @param {number} most
     */
    draw(valueOf, most) {
      for (const layer of layers) {
        for (const head of heads) {
          const node = /** @type {HTMLButtonElement} */ (cells.get(keyOf({ layer, head })));
          const value = valueOf({ layer, head }), [, told = ""] = about({ layer, head })[0] ?? [];
          const mark = /** @type {HTMLElement} */ (node.firstChild);
          mark.className = value < 0 ? "kv-hollow" : "";
          mark.style.width = mark.style.height = `${
            Math.max(8, 100 * Math.sqrt(Math.min(1, Math.abs(value) / most)))
          }%`;
          node.setAttribute("aria-label", `${nameOf({ layer, head })}: ${told}`);
        }
      }
    },
    /** @param {Head} picked */
    paint({ layer, head }) {
      const before = cells.get(keyOf(current));
      before?.removeAttribute("data-picked");
      if (before) before.tabIndex = -1;
      current = { layer, head };
      const node = cells.get(keyOf(current));
      if (node) {
        node.dataset.picked = "";
        node.tabIndex = 0;
      }
      said.textContent = `${nameOf(current)}: ${about(current).map(([name, value]) => `${name} ${value}`).join(" · ")}`;
    },
    /**
     * Sets or removes an attribute of each head.
     *
     * @param {string} name
     * @param {(head: Head) => boolean} holds
     */
    mark(name, holds) {
      for (const layer of layers) {
        for (const head of heads) cells.get(keyOf({ layer, head }))?.toggleAttribute(name, holds({ layer, head }));
      }
    },
  };
}
