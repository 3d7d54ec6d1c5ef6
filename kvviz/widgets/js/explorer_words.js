/** @import { Marks } from "./panel.js" */

// What every number and picture of the explorer means; shown on hover.
export const MEANING = {
  budget:
    "budget: tokens that a head may attend, sinks and recent window included; tokens fed after the prompt come on top",
  recall:
    "recall: share of the oracle's tokens that were attended, mean over the steps; the oracle takes as many tokens as the method attended",
  mass:
    "mass: share of the exact attention that falls on the attended tokens, mean over the steps; centroids count nothing",
  error:
    "output error: ‖output − exact‖ / ‖exact‖ of the attention output, centroids included, mean over steps and query heads of the layer",
  attended:
    "attended: tokens and centroids that this head attends at the last step, those fed after the prompt included",
  metadata: "metadata: bytes that the method keeps of this layer, all heads, beside keys and values",
  read: "read to choose: bytes beside the attended keys and values that one step of this layer reads to choose",
  curve:
    "each dot is a run of the method on the trace with that budget; the oracle attends the tokens with the largest exact weights; a click takes the nearest budget",
  ledger: "the tokens that this head attends at the last step; all parts but the missed add up to them",
  text: "the trace as text; point at a token for its cluster, score and attention",
  map:
    "all positions from left to right; of those that share a column the strongest token is drawn; a click scrolls the text there",
  tint: "tokens that were not grouped are grey; the strength is logarithmic, from 0.0002 and less to 0.35 and more",
  sinks: "sinks: first tokens, attended without being chosen",
  recent: "recent: last tokens of the prompt, attended without being chosen",
  agreed: "agreed: chosen, and the oracle would take them too",
  wasted: "wasted: chosen, although the oracle would not take them",
  merged: "centroids: merged tokens, each standing for several",
  generated: "fed: attended tokens that were fed after the prompt",
  missed: "missed: the oracle would attend them and the method does not",
};

/**
 * The marks of the text, by their classes.
 *
 * @type {Marks}
 */
export const KEY = [
  ["kv-attended kv-agreed", "agreed"],
  ["kv-attended kv-wasted", "wasted"],
  ["kv-missed", "missed"],
  ["kv-merged", "merged"],
  ["kv-attended kv-kept", "sink or recent"],
];

/** @typedef {"mass" | "recall" | "error"} MeasureName */
/** @typedef {{ name: MeasureName, label: string, title: string, place: 1 | 2 | 3 }} Measure */

/** @type {Measure[]} */
export const MEASURES = [
  { name: "mass", label: "attention mass", title: "attention mass kept, by budget", place: 1 },
  { name: "recall", label: "recall", title: "recall of the oracle's tokens, by budget", place: 2 },
  {
    name: "error",
    label: "output error",
    title: "error of the attention output, by budget (lower is better)",
    place: 3,
  },
];

/** @param {number | null} value */
export function shortNumber(value) {
  if (value === null) return "∞";
  return value !== 0 && value < 0.1 ? value.toPrecision(2) : value.toFixed(3);
}
