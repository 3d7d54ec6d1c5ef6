import { format } from "./dom.js";
import { bytes, decimals, MEANING } from "./words.js";

/** @typedef {"recall" | "mass" | "attended" | "read" | "moved" | "error"} Name */
/** @typedef {{ meaning: string, write: (value: number) => string, more: boolean, share?: boolean }} ColumnNumber */

/**
 * The numbers of a column: what they mean, how they are written, and whether more is better.
 *
 * @type {Record<Name, ColumnNumber>}
 */
export const NUMBERS = {
  recall: { meaning: MEANING.recall, write: (value) => value.toFixed(2), more: true, share: true },
  mass: { meaning: MEANING.mass, write: (value) => value.toFixed(2), more: true, share: true },
  attended: { meaning: MEANING.attended, write: (value) => format(Math.round(value)), more: false },
  read: { meaning: MEANING.read, write: bytes, more: false },
  moved: { meaning: MEANING.moved, write: bytes, more: false },
  error: {
    meaning: "error: relative error of the layer's attention output against exact attention, mean over its query heads",
    write: decimals,
    more: false,
  },
};
export const NAMES = /** @type {Name[]} */ (Object.keys(NUMBERS));

export const ROWS = {
  curve:
    "the number over all steps: this method coloured, the others faint; the current step is framed; a click goes to a step",
  map:
    "one row a step, the first on top; one column a position, or several where there are more than columns (the marked token with the most attention is drawn); a click goes to the step and the token",
  prompt: "the prompt as the model reads it; scrolling one scrolls all, pointing at a token outlines it in all",
  answer:
    "the tokens fed after the prompt (a question in grey, what later steps feed faint), then what the last step predicts; the token that this step feeds is framed",
};

/**
 * What sorts: "given", a number, or "mean " and a number.
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
