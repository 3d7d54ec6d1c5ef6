import { element } from "./dom.js";
import { explain } from "./explain.js";
import { VIEWS } from "./inspector_words.js";

/** @import { ViewName } from "./inspector_words.js" */

/**
 * The legend of the map and the text, for a view.
 *
 * @param {HTMLElement} host
 * @param {ViewName} view
 * @param {boolean} stepped whether the star is the query of the step
 */
export function drawMapLegend(host, view, stepped) {
  const { one, ring } = VIEWS[view], scaled = "scaled to the keys' mean length";
  const star = stepped ? "query of the step" : "last query";
  const entries = [
    ["● token", `a key; its hue is that of its ${one}, as in the text`],
    ["○ centroid", ring],
    [`★ ${star}`, `the mean over the KV head's query heads${stepped ? "" : " at the last position"}, ${scaled}`],
  ];
  host.replaceChildren(...entries.map(([text, meaning]) => explain(element("span", "kv-entry", text), meaning)));
  const samples = [
    ["kv-attended kv-agreed", "--kv-h:250;--kv-a:1", `in the picked ${one}`],
    ["kv-attended kv-kept", "--kv-c:0;--kv-a:0.4", `in no ${one}`],
  ];
  for (const [mark, style, text] of samples) {
    const entry = host.appendChild(element("span", "kv-entry"));
    explain(entry, text.startsWith("in no") ? VIEWS[view].none : "tinted strongly and underlined in the text");
    entry.appendChild(element("span", mark, "text")).style.cssText = style;
    entry.append(element("span", "", text));
  }
}
