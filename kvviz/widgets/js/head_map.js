import { element } from "./dom.js";
import { explain } from "./explain.js";

/** @import { Rows, Tip } from "./tip.js" */
/** @typedef {{ layer: number, head: number }} Head */

const FEW = 10; // layers, each of which has a label
/** @type {Record<string, [layers: number, heads: number] | undefined>} */
const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/**
 * A map of layers × heads, which is also their picker: the area of a mark is the value of the head. With the focus, the
 * arrow keys go from head to head; those that are not `available` are read, but cannot be picked.
 *
 * @param {HTMLElement} host
 * @param {object} options
 * @param {number[]} options.layers
 * @param {number[]} options.heads
 * @param {string} options.headName
 * @param {string} options.label
 * @param {(head: Head) => Rows} options.about
 * @param {(head: Head) => void} options.pick
 * @param {(head: number) => { name: string, short: string } | undefined} [options.joined] what a row of several heads is
 * @param {(head: Head) => boolean} [options.available]
 * @param {(head: Head) => string} [options.elsewhere] what is said of a head that is not available
 * @param {Tip} options.tip
 */
export function createHeadMap(host, options) {
  const { layers, heads, headName, label, about, pick, tip } = options;
  const { joined = () => undefined, available = () => true, elsewhere = () => "" } = options;
  /** @param {Head} place */
  const nameOf = ({ layer, head }) => `layer ${layer}, ${joined(head)?.name ?? `${headName} ${head}`}`;
  /** @param {Head} place */
  const keyOf = ({ layer, head }) => String([layer, head]);

  let current = { layer: -1, head: -1 }, cursor = current; // what is picked, and where the keys are
  const table = host.appendChild(element("div", "kv-headmap"));
  table.setAttribute("role", "grid");
  table.setAttribute("aria-label", label);
  table.style.setProperty("--kv-layers", String(layers.length));
  const small = heads.length > 12, few = layers.length <= FEW;
  if (small) table.dataset.small = few ? "few" : "many";
  /** @type {Map<string, HTMLButtonElement>} */
  const cells = new Map();
  for (const head of heads) {
    const row = table.appendChild(element("div", "kv-headrow"));
    row.setAttribute("role", "row");
    const several = joined(head),
      name = row.appendChild(element("span", "kv-headname", several?.short ?? String(head)));
    name.setAttribute("role", "rowheader");
    explain(name, several?.name ?? "");
    row.toggleAttribute("data-joined", Boolean(several));
    for (const layer of layers) row.append(cell({ layer, head }));
  }
  const axis = table.appendChild(element("div", "kv-headrow kv-headaxis"));
  axis.setAttribute("aria-hidden", "true");
  axis.append(element("span", "kv-headname", "layer"));
  const every = Math.max(small && !few ? 2 : 1, Math.ceil(layers.length / FEW)); // a small cell has no room for two digits
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
    if (!available(place)) {
      node.dataset.away = "";
      node.setAttribute("aria-disabled", "true");
    }
    node.addEventListener("click", () => go(place));
    node.addEventListener("pointerover", (event) => tip.show([["head", nameOf(place)], ...told(place)], event));
    node.addEventListener("pointerleave", () => tip.hide());
    cells.set(keyOf(place), node);
    return node;
  }

  /**
   * @param {Head} place
   * @returns {Rows}
   */
  function told(place) {
    return available(place) ? about(place) : [...about(place), ["data", elsewhere(place)]];
  }

  /** @param {Head} place */
  function go(place) {
    move(place);
    if (available(place)) pick(place);
    cells.get(keyOf(place))?.focus();
  }

  /** @param {Head} place */
  function move(place) {
    const before = cells.get(keyOf(cursor)), node = cells.get(keyOf(place));
    if (before) before.tabIndex = -1;
    if (node) node.tabIndex = 0;
    cursor = place;
    say(place);
  }

  /** @param {Head} place */
  function say(place) {
    const words = `${nameOf(place)}: ${told(place).map(([name, value]) => `${name} ${value}`).join(" · ")}`;
    if (said.textContent !== words) said.textContent = words; // a screen reader reads it again, even if it is the same
  }

  table.addEventListener("keydown", (event) => {
    const [right, down] = MOVES[event.key] ?? [];
    if (right === undefined || down === undefined) return;
    const layer = layers[layers.indexOf(cursor.layer) + right], head = heads[heads.indexOf(cursor.head) + down];
    event.preventDefault();
    event.stopPropagation();
    if (layer !== undefined && head !== undefined) go({ layer, head });
  });
  table.addEventListener("focusout", ({ relatedTarget }) => {
    if (!table.contains(/** @type {Node | null} */ (relatedTarget))) move(current);
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
          const value = valueOf({ layer, head }), [, number = ""] = about({ layer, head })[0] ?? [];
          const mark = /** @type {HTMLElement} */ (node.firstChild);
          mark.className = value < 0 ? "kv-hollow" : "";
          mark.style.width = mark.style.height = `${
            Math.max(8, 100 * Math.sqrt(Math.min(1, Math.abs(value) / most)))
          }%`;
          const away = available({ layer, head }) ? "" : elsewhere({ layer, head });
          const words = [number, away].filter(Boolean).join(", ");
          node.setAttribute("aria-label", `${nameOf({ layer, head })}: ${words}`);
        }
      }
    },
    /** @param {Head} picked */
    paint({ layer, head }) {
      cells.get(keyOf(current))?.removeAttribute("data-picked");
      const moved = keyOf({ layer, head }) !== keyOf(current);
      current = { layer, head };
      cells.get(keyOf(current))?.setAttribute("data-picked", "");
      if (moved && !table.contains(document.activeElement)) move(current);
      else if (moved || keyOf(cursor) === keyOf(current)) say(current); // the keys may have gone on
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
