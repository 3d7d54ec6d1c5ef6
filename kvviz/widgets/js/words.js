import { format } from "./dom.js";
import { SCOPES } from "./scope.js";
import { indexOf, roundedWeight } from "./slice.js";
import { ATTENDED, GENERATED, MERGED, ORACLE, RECENT, SINK } from "./strip.js";
import { HUES } from "./theme.js";

/** @import { Frame, Slice } from "./slice.js" */
/** @import { Rows } from "./tip.js" */
/** @typedef {{ tokens: string[], prompt_length: number, group_name: string }} Text */

// The meaning of every number on the page, shown on hover, focus and tap.
/** @type {Record<string, string>} */
export const MEANING = {
  step: "decode step, counted from 0 as in recording.indices(step, layer)",
  fed: "the token that this step feeds to the model",
  recall:
    "recall: share of the oracle's tokens that were attended to; the oracle selects as many tokens as the method attends to, those with the largest exact weights",
  mass:
    "mass: share of the exact attention that falls on the attended tokens; a merged token counts with the weight that its centroid gives it, up to its own",
  error: "error: relative error of the layer's attention output against exact attention, mean over its query heads",
  attended: "attended: tokens that this head attends to at this step, including sinks, recent and generated tokens",
  read: "read: bytes of the keys and values that the whole layer attends to at this step",
  moved: "moved: bytes of keys and values that the whole layer fetched from another tier at this step",
  prompt: "the prompt as the model reads it; point at a token to see its cluster, score and attention",
  map:
    "one row per step, the first at the top; one column per position, or per several positions of a long text (the strongest token is drawn); in colour: attended, in the colour of the text: missed, faint: sinks and recent tokens; click to go to the step and the token; drag over positions to zoom in; the bar above it has the visible part of the prompt, the prompt's end and the marked tokens",
  next: "the token that this step predicts",
  follow: "where the text moves when the step, layer or head changes; click a token to pick it",
  heads:
    "a number of each head; the area of a mark is its share of the largest; pick a head by a click or by the arrow keys",
  recalled:
    "the clusters recalled at this step, best score first: rank, number, score, bar and share of the exact attention on the attended tokens, how many these are, and their first words",
  merged:
    "merged: the oracle would attend to it; the method attends to its centroid instead, the mean of several tokens, which gives it at least half of its weight",
  written: "the tokens fed up to this step (a question in grey), then the token that this step predicts",
  hues: `there are ${HUES} hues, which repeat: the number tells two of one hue apart`,
  share: "share of the exact attention that falls on these tokens",
  score: "the method ranks by this number, the best first",
};

/**
 * The marks of a text, by name: their class, what they mean, and whether only merging methods have them.
 *
 * @type {Record<string, [classes: string, meaning: string, merging?: boolean]>}
 */
const MARKS = {
  agreed: ["kv-attended kv-agreed", "attended, and the oracle of the same size would attend to it too"],
  wasted: ["kv-attended kv-wasted", "selected by the method, although the oracle would not attend to it"],
  missed: ["kv-missed", "the oracle would attend to it; the method did not"],
  merged: ["kv-merged", MEANING.merged, true],
  "sink or recent": ["kv-attended kv-kept", "always attended, without being selected"],
};

/**
 * The legend's entries for the marks of a text.
 *
 * @param {boolean} merges
 * @returns {[classes: string, name: string, meaning: string][]}
 */
export function marksOf(merges) {
  return Object.entries(MARKS)
    .filter(([, [, , merging]]) => merges || !merging)
    .map(([name, [classes, meaning]]) => [classes, name, `${name === "merged" ? "" : `${name}: `}${meaning}`]);
}

/**
 * A text with white space, control characters and direction marks made visible, for tooltips.
 *
 * @param {string} text
 */
export function visible(text) {
  const spaces = text.replace(/ /g, "·").replace(/\n/g, "↵").replace(/\t/g, "→").replace(/\r/g, "␍");
  return named(spaces);
}

/**
 * A text with control characters and direction marks replaced by their code points, so that they have no effect.
 *
 * @param {string} text
 */
export function named(text) {
  // deno-lint-ignore no-control-regex -- these characters are to be made visible
  const hidden = /[\x00-\x1f\x7f-\x9f\xad\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
  return text.replace(
    hidden,
    (character) => `⟨U+${character.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`,
  );
}

/**
 * A token quoted in a sentence, whose writing direction it cannot change.
 *
 * @param {string} text
 */
export function quoted(text) {
  return `“\u2068${visible(text)}\u2069”`;
}

/** @param {number} count */
export function bytes(count) {
  const units = ["B", "kB", "MB", "GB"];
  let power = 0;
  while (count >= 999.5 && power < 3) {
    count /= 1000;
    power++;
  }
  return `${power && count < 99.95 ? count.toFixed(1) : Math.round(count)} ${units[power]}`;
}

/** @param {number} number */
export function decimals(number) {
  if (Number.isNaN(number)) return "none";
  return number !== 0 && (Math.abs(number) < 0.001 || Math.abs(number) >= 1e5)
    ? number.toExponential(1)
    : Number(number.toPrecision(3)).toString();
}

/**
 * @param {Frame} frame
 * @param {number} index
 */
export function wasRecalled(frame, index) {
  return index >= 0 && frame.groups[index] >= 0;
}

/**
 * The rows that describe one token at a step.
 *
 * @param {Text} page
 * @param {Slice} slice
 * @param {Frame} frame
 * @param {number} step
 * @param {number} position
 * @returns {Rows}
 */
export function aboutToken(page, slice, frame, step, position) {
  /** @type {Rows} */
  const rows = [["token", visible(page.tokens[position])], ["position", format(position)]];
  if (position > page.prompt_length + step) return [...rows, ["state", "not yet in the text at this step"]];
  const index = indexOf(frame, position);
  if (wasRecalled(frame, index)) {
    rows.push([page.group_name, `#${frame.groups[index]}`], ["score", decimals(frame.scores[index])]);
  } else rows.push([page.group_name, index < 0 ? "unknown" : "none"]);
  rows.push(["attention", weightOf(slice, frame, index, step, position)], [
    "state",
    verdict(index < 0 ? 0 : frame.marks[index]),
  ], ["numbers", `of ${SCOPES.head}, step ${format(step)}`]);
  return rows;
}

/**
 * @param {Slice} slice
 * @param {Frame} frame
 * @param {number} index
 * @param {number} step
 * @param {number} position
 */
function weightOf(slice, frame, index, step, position) {
  if (index >= 0) return decimals(frame.weights[index]);
  const weight = roundedWeight(slice, step, position);
  if (weight === null) return "less than any token of the oracle";
  return weight === 0 ? "below 3e-8" : `about ${decimals(Number(weight.toPrecision(2)))}`;
}

/** @param {number} mark */
function verdict(mark) {
  if (!mark) return "not attended; the oracle would not attend to it either";
  if (!(mark & ATTENDED)) return mark & MERGED ? MEANING.merged : "missed: the oracle would attend to it";
  const oracle = mark & ORACLE ? "the oracle would too" : "the oracle would not";
  const kind = mark & SINK
    ? "attended as a sink"
    : mark & RECENT
    ? "attended as a recent token"
    : mark & GENERATED
    ? "attended as a generated token"
    : "attended";
  return `${kind}; ${oracle}`;
}
