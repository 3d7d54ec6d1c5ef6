import { element, format } from "./dom.js";
import { explain, explainTogether } from "./explain.js";
import { meaningOf } from "./explorer_words.js";

/** @import { ExplorerNumbers } from "./explorer.js" */
/** @import { Union } from "./union.js" */
/** @typedef {"sinks" | "recent" | "agreed" | "wasted" | "merged" | "generated" | "missed"} Part */
/** @type {Part[]} */
const PARTS = ["sinks", "recent", "agreed", "wasted", "merged", "generated", "missed"]; // in the order of the bar
/** @type {Partial<Record<Part, string>>} */
const PART_LABELS = { merged: "centroids", generated: "fed" };

/**
 * A bar of the tokens that a head attends to, then, only outlined, those that it misses; below, the counts.
 *
 * @param {HTMLElement} host
 */
export function createLedger(host) {
  const bar = host.appendChild(element("div", "kv-explorer-bar"));
  bar.setAttribute("role", "img");
  const list = explainTogether(host.appendChild(element("p", "kv-legend")), "where the tokens went");
  return {
    /**
     * @param {ExplorerNumbers} numbers
     * @param {{ kind: Union, heads: number }} union
     */
    paint({ parts }, union) {
      const shown = PARTS.filter((name) => parts[name] > 0);
      const attended = shown.reduce((sum, name) => sum + (name === "missed" ? 0 : parts[name]), 0);
      bar.replaceChildren(...shown.map((name) => {
        const segment = element("span", `kv-explorer-part kv-explorer-${name}`);
        segment.style.flexGrow = String(parts[name]);
        explain(segment, `${meaningOf(name, union)}: ${format(parts[name])}`);
        return segment;
      }));
      bar.setAttribute("aria-label", shown.map((name) => `${PART_LABELS[name] ?? name} ${parts[name]}`).join(", "));
      list.replaceChildren(...shown.map((name) => {
        const entry = element("span", "kv-entry");
        explain(entry, meaningOf(name, union));
        const share = name === "missed" ? "" : ` (${((100 * parts[name]) / attended).toFixed(1)} %)`;
        const members = name === "merged" ? ` for ${format(parts.merged_tokens)} tokens` : "";
        entry.append(
          element("i", `kv-explorer-part kv-explorer-${name}`),
          element("span", "", PART_LABELS[name] ?? name),
        );
        entry.append(element("b", "", format(parts[name])), element("span", "", `${members}${share}`.trim()));
        return entry;
      }));
    },
  };
}
