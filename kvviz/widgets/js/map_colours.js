// Colours of the maps. A meaning has its own range of lightness, so that it is told apart without colour vision and in
// greyscale; within a range more attention is farther from the ground.
import { HUES, LEVELS, NOTHING, pixels } from "./theme.js";

// A byte of the comparer's map is verdict * LEVELS + level, packed by kvviz/widgets/comparer_view.py.
export const AGREED = 0, WASTED = 1, KEPT = 2, MISSED = 3, MERGED_AWAY = 4;

/** @typedef {[faintest: number, strongest: number]} Range */
/** @typedef {{ kept: Range, wasted: Range, merged: Range, agreed: Range, missed: Range, clusters: Range }} Ranges */

// OKLCH lightness. `clusters` stands for attended tokens, agreed or wasted, where hues tell their clusters apart.
/** @type {{ light: Ranges, dark: Ranges }} */
const RANGES = {
  light: {
    kept: [0.925, 0.9],
    wasted: [0.81, 0.77],
    merged: [0.69, 0.65],
    agreed: [0.59, 0.46],
    missed: [0.36, 0.1],
    clusters: [0.78, 0.48],
  },
  dark: {
    kept: [0.32, 0.35],
    wasted: [0.44, 0.47],
    merged: [0.58, 0.615],
    agreed: [0.695, 0.78],
    missed: [0.89, 0.99],
    clusters: [0.48, 0.78],
  },
};
const CHROMA = 0.15; // of clusters

/**
 * RGBA of the 256 looks of kvviz/widgets/view.py: tokens in their cluster's hue, those without one, and missed ones.
 *
 * @param {HTMLElement} root
 */
export function mapColours(root) {
  const { kept, clusters, missed } = rangesOf(root);
  return looks((number, level) => {
    if (number < HUES) return oklch(within(clusters, level), CHROMA, (number * 360) / HUES);
    if (number === HUES) return oklch(within(kept, level));
    return number === HUES + 1 ? oklch(within(missed, level)) : "transparent";
  });
}

/**
 * RGBA of the 256 looks of kvviz/widgets/comparer_view.py, in the hue of the method's colour.
 *
 * @param {HTMLElement} root
 * @param {string} method
 */
export function verdictColours(root, method) {
  const { agreed, wasted, kept, missed, merged } = rangesOf(root);
  /** @type {Range[]} */
  const ranges = [];
  [ranges[AGREED], ranges[WASTED], ranges[KEPT], ranges[MISSED]] = [agreed, wasted, kept, missed];
  ranges[MERGED_AWAY] = merged;
  return looks((verdict, level) => {
    if (!ranges[verdict]) return "transparent";
    const lightness = within(ranges[verdict], level);
    return verdict === KEPT || verdict === MISSED ? oklch(lightness) : `oklch(from ${method} ${lightness} c h)`;
  });
}

/** @param {HTMLElement} root */
function rangesOf(root) {
  return RANGES[root.closest(".kvviz")?.getAttribute("data-theme") === "dark" ? "dark" : "light"];
}

/**
 * @param {Range} range
 * @param {number} level
 */
function within([faintest, strongest], level) {
  return faintest + (level / (LEVELS - 1)) * (strongest - faintest);
}

/**
 * @param {number} lightness
 * @param {number} [chroma]
 * @param {number} [hue]
 */
function oklch(lightness, chroma = 0, hue = 0) {
  return `oklch(${lightness} ${chroma} ${hue})`;
}

/** @param {(number: number, level: number) => string} colour */
function looks(colour) {
  return pixels(
    Array.from(
      { length: 256 },
      (_, look) => look === NOTHING ? "transparent" : colour(Math.floor(look / LEVELS), look % LEVELS),
    ),
  );
}
