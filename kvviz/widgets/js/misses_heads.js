import { createHeadMap } from "./head_map.js";
import { nats } from "./misses_words.js";

/** @import { Head } from "./head_map.js" */
/** @import { Change, MissesPage, Picked } from "./misses.js" */
/** @import { Rows, Tip } from "./tip.js" */

/**
 * The map of layers × KV heads: the area of a mark is what restoring the head brings back.
 *
 * @param {HTMLElement} host
 * @param {MissesPage} page
 * @param {{ tip: Tip, pick: (changes: Partial<Picked>) => void }} options
 */
export function createHeads(host, page, { tip, pick }) {
  const all = page.restored.filter(([, , stage]) => stage === "all");
  const gainOf = (/** @type {Head} */ { layer, head }) =>
    all.find((row) => row[0] === layer && row[1] === head)?.[3] ?? 0;
  const map = createHeadMap(host, {
    layers: page.layers,
    heads: Array.from({ length: page.heads }, (_, head) => head),
    headName: "KV head",
    label: "layers and KV heads: the log-probability that restoring each brings back",
    about,
    pick,
    tip,
  });
  map.draw(gainOf, Math.max(1e-9, ...all.map(([, , , gained]) => Math.abs(gained))));
  const smallest = new Set((page.smallest ?? []).map(String));
  map.mark("data-smallest", ({ layer, head }) => smallest.has(String([layer, head])));

  /**
   * @param {Head} place
   * @returns {Rows}
   */
  function about({ layer, head }) {
    const stages = page.restored.filter(([l, h, stage]) => l === layer && h === head && stage !== "all");
    return [
      ["restored", `${nats(gainOf({ layer, head }))} nats`],
      ...stages.map(([, , stage, gained]) => /** @type {[string, string]} */ ([`${stage} exact`, `${nats(gained)}`])),
    ];
  }

  return {
    paint: map.paint,
    /** @param {Change[]} changes */
    changed(changes) {
      map.mark(
        "data-restored",
        (place) =>
          changes.some(({ kind, layer, head }) => kind === "restore" && layer === place.layer && head === place.head),
      );
    },
  };
}
