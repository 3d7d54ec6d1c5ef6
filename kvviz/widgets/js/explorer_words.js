import { meaningIn } from "./union.js";
import { MEANING as COMMON } from "./words.js";

/** @import { Scope } from "./scope.js" */
/** @import { Union } from "./union.js" */

// The meaning of every number and panel of the explorer, shown on hover, focus and tap.
/** @type {Record<string, string>} */
export const MEANING = {
  budget:
    "budget: tokens that a head may attend to, including sinks and recent window; tokens fed after the prompt are extra",
  recall: `${COMMON.recall}; mean over the steps`,
  mass: `${COMMON.mass}; mean over the steps`,
  error: `output ${COMMON.error}, and over the steps`,
  attended:
    "attended: tokens and centroids that this head attends to at the last step, including those fed after the prompt",
  metadata: "metadata: bytes that the method keeps for this layer, all heads, in addition to keys and values",
  read: "read to choose: bytes that one step of this layer reads to choose, besides the keys and values attended to",
  curve:
    "each dot is a run of the method on the trace with that budget; the oracle attends to the tokens with the largest exact weights; click to set the nearest budget",
  ledger: "the tokens that this head attends to at the last step; all parts except the missed tokens add up to them",
  text: "the trace as text; point at a token to see its cluster, score and attention",
  map:
    "all positions from left to right; of the tokens in a column, the strongest is drawn; click to scroll the text there",
  tint: "tokens in no group are grey; the strength is logarithmic, from 0.0002 or less to 0.35 or more",
  sinks: "sinks: first tokens of the prompt, always attended, without being selected",
  recent: "recent: last tokens of the prompt, always attended, without being selected",
  agreed: "agreed: selected, and the oracle would select them too",
  wasted: "wasted: selected, although the oracle would not select them",
  merged: "centroids: merged tokens, each of which stands for several tokens",
  generated: "fed: attended tokens that were fed after the prompt",
  missed:
    "missed: the oracle would attend to them; the method does not, or their centroids give them less than half of their weight",
};

/** @type {Record<string, string>} */
const OF_UNION = {
  attended: "attended: tokens that at least one of these heads attends to at the last step, each counted once, and " +
    "their centroids; the budget is that of each head, so that these may be more",
  ledger: "the tokens that at least one of these heads attends to at the last step, each counted once; all parts " +
    "except the missed tokens add up to them",
  text: "the trace as text; point at a token to see how many heads attend to it, and its mean attention",
  agreed: "agreed: a head attends to the token, and the oracle of a head would select it",
  wasted: "wasted: a head selected the token, and no oracle would",
  merged: "centroids: merged tokens of each of these heads, each of which stands for several tokens",
  missed: "missed: no head attends to the token, and the oracle of a head would",
  curve: `means over the heads, each with that budget; ${MEANING.curve}`,
};

/**
 * What a number or panel means for one head, or for a union of `heads`.
 *
 * @param {string} name
 * @param {{ kind: Union, heads: number }} union
 */
export function meaningOf(name, { kind, heads }) {
  if (kind === "none") return MEANING[name];
  if (name === "recall" || name === "mass") return `${meaningIn(name, kind, heads)}; mean over the steps`;
  return OF_UNION[name] ?? MEANING[name];
}

/**
 * The numbers by what they are about.
 *
 * @type {{ scopes: Scope[], numbers: [name: string, label: string][] }[]}
 */
export const FIGURES = [
  { scopes: ["head", "steps"], numbers: [["recall", "recall"], ["mass", "mass"]] },
  { scopes: ["layer", "steps"], numbers: [["error", "output error"]] },
  { scopes: ["head", "last"], numbers: [["attended", "attended"]] },
  { scopes: ["layer", "last"], numbers: [["metadata", "metadata"], ["read", "read to choose"]] },
];

/** @typedef {"mass" | "recall" | "error"} MeasureName */
/** @typedef {{ name: MeasureName, label: string, title: string, place: 1 | 2 | 3 }} Measure */

/** @type {Measure[]} */
export const MEASURES = [
  { name: "mass", label: "attention mass", title: "attention mass, by budget", place: 1 },
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
