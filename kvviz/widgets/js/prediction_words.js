import { format } from "./dom.js";

// Numbers of predictions and measurements, and how far they are apart, in words.

export const OPEN = "not answered yet";

/** @type {Record<string, string>} */
export const HINT = {
  value: "Move the slider, or press Enter where it is.",
  choice: "Pick one.",
  order: "The lowest first; at first they are in alphabetical order. Drag a name, or use its buttons.",
  curve:
    "Drag the points, or draw across them. Keys: ↑ and ↓ move a point (with Shift, further), ← and → go to the next.",
};

/**
 * A number with exactly so many decimals.
 *
 * @param {number} value
 * @param {number} digits
 */
export function fixed(value, digits) {
  const text = value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return /[1-9]/.test(text) ? text : text.replace("-", "");
}

/**
 * A measured number with at least two significant digits, and at least so many decimals.
 *
 * @param {number} value
 */
export function measuredText(value, digits = 0) {
  const needed = value ? 1 - Math.floor(Math.log10(Math.abs(value))) : 0;
  return value.toLocaleString("en-US", {
    minimumFractionDigits: Math.min(digits, 6),
    maximumFractionDigits: Math.max(digits, Math.min(needed, 8)),
  });
}

/**
 * A number of an axis.
 *
 * @param {number} value
 */
export function axisText(value) {
  return Number.isInteger(value) ? format(value) : String(Number(value.toPrecision(3)));
}

/**
 * How far a value that was said is from the measured one.
 *
 * @param {number} said
 * @param {number} measured
 * @param {number} digits
 * @param {boolean} log whether they are compared as a ratio
 */
export function distanceText(said, measured, digits, log) {
  if (log) {
    const ratio = said / measured, times = measuredText(Math.max(ratio, 1 / ratio));
    if (times === "1") return "just as measured";
    return ratio > 1 ? `${times} times what was measured` : `what was measured is ${times} times as much`;
  }
  const apart = measuredText(Math.abs(said - measured), digits);
  if (!/[1-9]/.test(apart)) return "just as measured";
  return `${apart} ${said > measured ? "more" : "less"} than was measured`;
}

/**
 * How many pairs of names are in the order of their numbers, in words; pairs with equal numbers do not count.
 *
 * @param {string[]} names as they were sorted
 * @param {[name: string, number: number][]} measured
 */
export function pairsText(names, measured) {
  const numbers = new Map(measured);
  let right = 0, all = 0;
  names.forEach((name, place) => {
    for (const after of names.slice(place + 1)) {
      const by = Number(numbers.get(after)) - Number(numbers.get(name));
      all += Number(by !== 0);
      right += Number(by > 0);
    }
  });
  return `You ordered ${right} of ${all} ${all === 1 ? "pair" : "pairs"} as measured.`;
}

/**
 * How far a drawn curve is from the measured one.
 *
 * @param {number[]} drawn
 * @param {number[]} measured
 * @param {string} name of the measured series
 */
export function curveText(drawn, measured, name) {
  const apart = drawn.map((value, index) => value - measured[index]);
  const mean = apart.reduce((sum, each) => sum + Math.abs(each), 0) / apart.length;
  const which = name === "measured" ? "the measured curve" : `the measured curve of ${name}`;
  const above = apart.filter((each) => each > 0).length, below = apart.filter((each) => each < 0).length;
  if (!above && !below) return `You drew ${which}.`;
  const side = above >= below ? `above it at ${above}` : `below it at ${below}`;
  return `On average you are ${measuredText(mean)} away from ${which}: ${side} of ${apart.length} points.`;
}
