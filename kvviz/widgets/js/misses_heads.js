import { element } from "./dom.js";
import { nats } from "./misses_words.js";

/** @import { Change, MissesPage, Picked } from "./misses.js" */
/** @import { Tip } from "./tip.js" */

/** @type {Record<string, [layer: number, head: number] | undefined>} */
const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/**
 * The map of layers × KV heads: the area of a mark is what restoring the head brings back. It is also the picker.
 *
 * @param {HTMLElement} host
 * @param {MissesPage} page
 * @param {{ tip: Tip, pick: (changes: Partial<Picked>) => void }} options
 */
export function createHeads(host, page, { tip, pick }) {
  const table = host.appendChild(element("div", "kv-headmap"));
  table.setAttribute("role", "grid");
  table.setAttribute("aria-label", "layers and KV heads: the log-probability that restoring each brings back");
  table.style.setProperty("--kv-layers", String(page.layers.length));
  const all = page.restored.filter(([, , stage]) => stage === "all");
  const most = Math.max(1e-9, ...all.map(([, , , gained]) => Math.abs(gained)));
  const smallest = new Set((page.smallest ?? []).map(String));
  /** @type {Map<string, HTMLButtonElement>} */
  const cells = new Map();
  for (let head = 0; head < page.heads; head++) {
    const row = table.appendChild(element("div", "kv-headrow"));
    row.setAttribute("role", "row");
    row.append(element("span", "kv-headname", String(head)));
    for (const layer of page.layers) row.append(cell(layer, head));
  }
  const axis = table.appendChild(element("div", "kv-headrow kv-headaxis"));
  axis.append(element("span", "kv-headname", "layer"));
  const every = Math.max(1, Math.ceil(page.layers.length / 10));
  page.layers.forEach((layer, at) => axis.append(element("span", "", at % every ? "" : String(layer))));
  const said = host.appendChild(element("p", "kv-headsaid"));
  said.setAttribute("role", "status");

  /**
   * @param {number} layer
   * @param {number} head
   */
  function cell(layer, head) {
    const gained = gainOf(layer, head), share = Math.sqrt(Math.abs(gained) / most);
    const node = element("button", "kv-headcell");
    node.type = "button";
    node.setAttribute("role", "gridcell");
    node.setAttribute("aria-label", `layer ${layer}, KV head ${head}: ${nats(gained)}`);
    node.tabIndex = -1;
    if (smallest.has(String([layer, head]))) node.dataset.smallest = "";
    const mark = node.appendChild(element("span", gained < 0 ? "kv-hollow" : ""));
    mark.style.width = mark.style.height = `${Math.max(8, 100 * share)}%`;
    node.addEventListener("click", () => pick({ layer, head }));
    node.addEventListener("pointerover", (event) => tip.show(about(layer, head), event));
    node.addEventListener("pointerleave", () => tip.hide());
    cells.set(String([layer, head]), node);
    return node;
  }

  /**
   * @param {number} layer
   * @param {number} head
   */
  function gainOf(layer, head) {
    return all.find((row) => row[0] === layer && row[1] === head)?.[3] ?? 0;
  }

  /**
   * @param {number} layer
   * @param {number} head
   * @returns {[string, string][]}
   */
  function about(layer, head) {
    const stages = page.restored.filter(([l, h, stage]) => l === layer && h === head && stage !== "all");
    return [
      ["head", `layer ${layer}, KV head ${head}`],
      ["restored", `${nats(gainOf(layer, head))} nats`],
      ...stages.map(([, , stage, gained]) => /** @type {[string, string]} */ ([`${stage} exact`, `${nats(gained)}`])),
    ];
  }

  table.addEventListener("keydown", (event) => {
    const [layers, heads] = MOVES[event.key] ?? [];
    if (layers === undefined || heads === undefined) return;
    const [layer, head] = current;
    const at = page.layers.indexOf(layer) + layers, other = head + heads;
    event.preventDefault();
    event.stopPropagation();
    if (!(at in page.layers) || other < 0 || other >= page.heads) return;
    pick({ layer: page.layers[at], head: other });
    cells.get(String([page.layers[at], other]))?.focus();
  });

  let current = [-1, -1];
  return {
    /** @param {Picked} picked */
    paint({ layer, head }) {
      const before = cells.get(String(current));
      before?.removeAttribute("data-picked");
      if (before) before.tabIndex = -1;
      current = [layer, head];
      const node = cells.get(String(current));
      if (node) {
        node.dataset.picked = "";
        node.tabIndex = 0;
      }
      said.textContent = `layer ${layer}, KV head ${head}: ` +
        about(layer, head).slice(1).map(([name, value]) => `${name} ${value}`).join(" · ");
    },
    /** @param {Change[]} changes */
    changed(changes) {
      for (const [name, node] of cells) {
        const restored = changes.some(({ kind, layer, head }) => kind === "restore" && String([layer, head]) === name);
        node.toggleAttribute("data-restored", restored);
      }
    },
  };
}
