import { format } from "./dom.js";
import { bytes, decimals, MEANING } from "./words.js";

/** @typedef {"recall" | "mass" | "attended" | "read" | "moved" | "error"} Name */
/** @typedef {{ meaning: string, write: (value: number) => string, more: boolean, share?: boolean }} ColumnNumber */

/**
 * The numbers of a column: what they mean, how to write them, and whether more is better.
 *
 * @type {Record<Name, ColumnNumber>}
 */
export const NUMBERS = {
  recall: { meaning: MEANING.recall, write: (value) => value.toFixed(2), more: true, share: true },
  mass: { meaning: MEANING.mass, write: (value) => value.toFixed(2), more: true, share: true },
  attended: { meaning: MEANING.attended, write: (value) => format(Math.round(value)), more: false },
  read: { meaning: MEANING.read, write: bytes, more: false },
  moved: { meaning: MEANING.moved, write: bytes, more: false },
  error: { meaning: MEANING.error, write: decimals, more: false },
};
export const NAMES = /** @type {Name[]} */ (Object.keys(NUMBERS));

export const ROWS = {
  curve:
    "this number over all steps: this method in colour, the others faint; the current step is framed; click to go to a step",
  map:
    "one row per step, the first at the top; one column per position, or per several positions of a long text (the marked token with the most attention is drawn); strong: agreed, pale: wasted, in the colour of the text: missed, faint: sinks and recent tokens; click to go to the step and the token; drag over positions to zoom in, in all columns",
  prompt: "the prompt as the model reads it; all prompts scroll together; point at a token to outline it in all",
  answer:
    "the tokens fed after the prompt (a question in grey, later tokens faint), then the token that the last step predicts; the token that this step feeds is framed",
};

/**
 * What the columns are sorted by: null for "given", else a number or its mean ("mean " and its name).
 *
 * @param {string} sort
 */
export function sortKey(sort) {
  const mean = sort.startsWith("mean "), name = NAMES.find((name) => name === (mean ? sort.slice(5) : sort));
  return name ? { name, mean } : null;
}

/** @param {string} sort */
export function sortMeaning(sort) {
  const key = sortKey(sort);
  if (!key) return "the order in which the recordings were given";
  return `${key.mean ? "mean over the steps, " : ""}${NUMBERS[key.name].more ? "largest" : "smallest"} first`;
}

/** @param {Float64Array} values */
export function meanOf(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
