// The union of several heads, packed by kvviz/widgets/unions.py, and what is said of it.
import { format } from "./dom.js";
import { explain } from "./explain.js";
import { createLegend } from "./panel.js";
import { scopeIn, SCOPES } from "./scope.js";
import { indexOf } from "./slice.js";
import { ATTENDED, GENERATED, MERGED, ORACLE, RECENT, SINK } from "./strip.js";
import { aboutToken, MEANING } from "./words.js";

/** @import { Marks } from "./panel.js" */
/** @import { Frame, Slice } from "./slice.js" */
/** @import { Rows } from "./tip.js" */
/** @import { Text } from "./words.js" */
/** @typedef {"none" | "layer" | "kv_head"} Union */
/**
 * The number of heads of each token shown, in the order of the slice's lists; `union`: the place in UNIONS, the heads.
 *
 * @typedef {object} HeadCounts
 * @property {Int32Array} union
 * @property {Uint8Array} attending
 * @property {Uint8Array} wanting
 * @property {Uint8Array} missing
 * @property {Uint8Array} wasting
 */
/** @typedef {Slice & Partial<HeadCounts>} AnySlice */

export const UNIONS = /** @type {Union[]} */ (["none", "layer", "kv_head"]);
const MEANS = ["recall", "mass"];
export const STRENGTH =
  "strength: the share of the heads that attended to the token, or missed it; a token is agreed if a head attends to it " +
  "and the oracle of a head would, missed if no head attends to it, wasted if a head chose it and no oracle would";

/**
 * The union that a slice shows, and how many heads it joins.
 *
 * @param {AnySlice} slice
 * @returns {{ kind: Union, heads: number }}
 */
export function unionOf({ union }) {
  return union ? { kind: UNIONS[union[0]], heads: union[1] } : { kind: "none", heads: 1 };
}

/**
 * The name of a number, or another `label` of it: recall and mass of a union are means over its heads.
 *
 * @param {string} name
 * @param {Union} union
 */
export function nameIn(name, union, label = name) {
  return union !== "none" && MEANS.includes(name) ? `mean ${label}` : label;
}

/**
 * What a number means for one head, or for a union of `heads`.
 *
 * @param {string} name
 * @param {Union} union
 * @param {number} heads
 */
export function meaningIn(name, union, heads) {
  if (union === "none" || heads === 1) return MEANING[name];
  if (MEANS.includes(name)) return `mean over the ${heads} heads of ${MEANING[name]}`;
  return name === "attended" ? `attended: tokens that at least one of the ${heads} heads attends to` : MEANING[name];
}

/**
 * The rows that describe one token at a step, for one head or a union.
 *
 * @param {Text} page
 * @param {AnySlice} slice
 * @param {Frame} frame
 * @param {number} step
 * @param {number} position
 * @param {number} row of the slice, if its first step is not step 0
 * @returns {Rows}
 */
export function about(page, slice, frame, step, position, row = step) {
  const rows = aboutToken(page, slice, frame, step, position), index = indexOf(frame, position);
  if (!slice.union || position > page.prompt_length + step) return rows;
  const counts = /** @type {HeadCounts} */ (slice), heads = unionOf(slice).heads;
  const at = slice.offsets[row] + index;
  /** @type {(name: "attending" | "wanting" | "missing" | "wasting") => string} */
  const of = (name) => `${index < 0 ? 0 : counts[name][at]} of ${heads} heads`;
  const mark = index < 0 ? 0 : frame.marks[index];
  return [
    ...rows.filter(([term]) => term === "token" || term === "position"),
    ["attended by", of("attending")],
    ["oracle of", of("wanting")],
    ...(index < 0 ? [] : /** @type {Rows} */ ([["missed by", of("missing")], ["wasted by", of("wasting")]])),
    ...rows.filter(([term]) => term === "attention").map((
      [, value],
    ) => /** @type {[string, string]} */ (["mean attention", value])),
    ["state", verdict(mark)],
    ["numbers", `of ${SCOPES[scopeIn("head", unionOf(slice).kind)]}, step ${format(step)}`],
  ];
}

/** @param {number} mark */
function verdict(mark) {
  if (!mark) return "no head attends to it; no oracle would";
  if (mark & ATTENDED && mark & ORACLE) return "agreed: a head attends to it, and the oracle of a head would";
  if (mark & ATTENDED) {
    const kind = mark & SINK ? "as a sink" : mark & RECENT ? "as a recent token" : "as a generated token";
    if (mark & (SINK | RECENT | GENERATED)) return `attended ${kind}; no oracle would`;
    return "wasted: a head chose it, and no oracle would";
  }
  if (mark & MERGED) return "merged: no head attends to it alone, but the centroids of those whose oracle would count";
  return "missed: no head attends to it; the oracle of a head would";
}

/**
 * A legend of the marks of a text, and what sets its last words for one head or a union of heads.
 *
 * @param {Marks} marks
 * @param {string} words
 * @param {string} meaning
 */
export function createHeadsLegend(marks, words, meaning) {
  const host = createLegend(marks, words, meaning);
  const last = /** @type {HTMLElement} */ (host.lastElementChild);
  return {
    host,
    /** @param {AnySlice} slice */
    say(slice) {
      const { kind, heads } = unionOf(slice);
      last.textContent = kind === "none" ? words : `union of ${heads} heads · strength: share of the heads`;
      explain(last, kind === "none" ? meaning : STRENGTH);
    },
  };
}

/**
 * Whether a slice shows a head, or a union that it belongs to.
 *
 * @param {AnySlice} slice
 * @param {number} layer
 * @param {number} head
 * @param {Union} union
 */
export function isShown(slice, layer, head, union) {
  const { kind } = unionOf(slice);
  return kind === union && slice.layer === layer && (kind === "layer" || slice.head === head);
}
