import { format } from "./dom.js";
import { quoted } from "./words.js";

/** @import { About, Rank } from "./inspector_groups.js" */
/** @typedef {"clusters" | "pages" | "codes" | "lists"} ViewName */
/** @typedef {"pca" | "query" | "tsne"} ProjectionName */

// The meaning of every number of the inspector, shown on hover, focus and tap. All are of the head that is picked.
export const MEANING = {
  count: "C: the number of clusters; ClusterKV's default is one per 80 tokens of the prompt",
  metric:
    "metric: how k-means finds the nearest centroid of a key: cosine, Euclidean distance (l2) or inner product (ip)",
  seed: "seed: draws the keys from which k-means starts, and the layout of t-SNE",
  layer: "layer: the captured layer that is shown",
  head: "KV head: the head of the layer that is shown",
  view: "groups: how the keys are grouped, by the method that does so",
  part: "part: PQCache cuts each key into parts and codes each part by its nearest centroid; this is the part shown",
  projection: "map: how the keys are placed in two dimensions",
  map:
    "the keys in two dimensions; what this map keeps and where it misleads is said below it; + and − zoom, 0 shows all, or Ctrl and the wheel; drag to move. The wheel alone scrolls the page.",
  text:
    "the prompt as the model reads it, tinted by group; dotted tokens are in no group; text that is found is outlined on the map too",
  ranking:
    "one bar per group, best score first, counted from the lowest one: a softmax depends on differences only; the budget also pays for sinks, recent and generated tokens; a bar is picked by a click, or by ←, → and Enter",
  size: "size: number of tokens in the group",
  spread: "spread: mean cosine of the group's keys to its centroid; 1 if all point in the same direction",
  recalled: "recalled by: number of steps that attended to at least one token of the group",
  central: "most central: the token whose key has the largest cosine to the centroid",
  mostly: "the most frequent texts of the group's tokens",
  nearest: "the groups whose centroids have the largest cosine to this group's centroid",
  steps: "one bar per step: the share of the group's tokens that the step attended to; the step shown is framed",
  rank: "rank: place among the groups by score at this step",
};

/**
 * @typedef {object} ViewWords
 * @property {string} name in the picker
 * @property {string} one
 * @property {string} many
 * @property {string} ring
 * @property {string} score
 * @property {string} none what a token is that is in no group
 */
/** @type {Record<ViewName, ViewWords>} */
export const VIEWS = {
  clusters: {
    name: "clusters (ClusterKV)",
    one: "cluster",
    many: "clusters",
    ring: "centroid: the mean of a cluster's keys",
    score: "q·centroid",
    none: "a sink or recent token: always attended, in no cluster",
  },
  pages: {
    name: "pages (Quest)",
    one: "page",
    many: "pages",
    ring: "the mean of a page's keys",
    score: "upper bound of q·k in the page",
    none: "after the last full page: always attended, in no page",
  },
  codes: {
    name: "codes (PQCache)",
    one: "code",
    many: "codes",
    ring: "centroid: stands for this part of all keys with its code",
    score: "q·centroid in this part",
    none: "a sink: always attended, without codes",
  },
  lists: {
    name: "lists (CTkvr)",
    one: "list",
    many: "lists",
    ring: "query centroid: a query of the prompt, which lists the keys that it attends to most",
    score: "cosine of the query with the query centroid",
    none: "in no list: found only as a sink or recent token",
  },
};

export const TSNE = 2; // its place among the projections, in kvviz/widgets/inspector_places.py
/** @type {Record<ProjectionName, { name: string, about: string }>} */
export const PROJECTIONS = {
  pca: {
    name: "PCA",
    about:
      "PCA keeps the two directions in which the keys differ most. What the other directions hold is not on the map: dots that are near here can be far apart, and near the star does not mean a high score.",
  },
  query: {
    name: "along the query",
    about:
      "From left to right q·k grows, for the mean query of the step: this order is exact. From top to bottom is the direction in which the keys differ most otherwise. Groups that overlap here can differ in all other directions.",
  },
  tsne: {
    name: "t-SNE",
    about:
      "t-SNE keeps neighbours: keys that are near here have similar directions. Distances between groups, their sizes and the axes mean nothing. A ring is at the token nearest to its centroid, and the star only among its nearest keys.",
  },
};

/**
 * The number of groups, with the noun.
 *
 * @param {number} count
 * @param {ViewName} view
 */
export function countOf(count, view) {
  return `${format(count)} ${count === 1 ? VIEWS[view].one : VIEWS[view].many}`;
}

/**
 * What a step recalls of the ranked groups, and where the budget ends.
 *
 * @param {Rank[]} ranks
 * @param {number | undefined} cut undefined if the trace lacks the step's query
 * @param {About} about
 * @param {number} groups the number of groups that are not empty
 */
export function rankingWords(ranks, cut, about, groups) {
  const { view, budget, parts, probes, title } = about, { one, many } = VIEWS[view];
  if (groups === 0) return `The prompt is too short for ${many}.`;
  if (cut === undefined) return "The trace holds no query of this step: capture the prompt with the generated text.";
  const filled = ranks.filter(({ kind }) => kind !== "none").length, total = countOf(ranks.length, view);
  const tokens = `${format(budget)} tokens`;
  if (view === "codes") {
    return `${title} ranks single tokens by the sum of their codes' scores over ${parts} ${
      parts === 1 ? "part" : "parts"
    }, so that codes have no cut: ${format(filled)} of ${total} have tokens that are attended to.`;
  }
  if (cut >= groups) return `The budget of ${tokens} covers all tokens: all ${many} are recalled, without a cut.`;
  const unranked = groups - ranks.length;
  if (view === "lists" && ranks.length === 0) {
    return "All lists of the prompt were replaced by the queries of earlier steps.";
  }
  if (view === "lists") {
    const gone = unranked ? ` ${format(unranked)} were replaced by the queries of earlier steps.` : "";
    return `The step probes the ${format(probes)} nearest lists, ${
      format(cut)
    } of them of the prompt (left of the line); ` +
      `of their tokens, ranked again by exact attention, it attends to as many as the budget of ${tokens} allows.${gone}`;
  }
  const trimmed = ranks.find(({ kind }) => kind === "part");
  const last = trimmed
    ? `, ${one} #${trimmed.group} trimmed to ${format(trimmed.recalled)} of ${format(trimmed.size)} tokens`
    : "";
  const window = unranked
    ? ` ${countOf(unranked, view)} with sinks or recent tokens ${unranked === 1 ? "is" : "are"} not ranked.`
    : "";
  return `${
    format(filled - (trimmed ? 1 : 0))
  } of ${total} recalled whole${last}: the line is where the budget of ${tokens} ends.${window}`;
}

/**
 * The most frequent texts of some tokens, with their counts.
 *
 * @param {string[]} tokens
 * @param {ArrayLike<number>} members
 */
export function frequent(tokens, members, most = 6) {
  const counts = new Map();
  const positions = Array.from(members).sort((a, b) => a - b); // of equal counts, the first in the text comes first
  for (const position of positions) counts.set(tokens[position], (counts.get(tokens[position]) ?? 0) + 1);
  const ranked = [...counts].sort(([, a], [, b]) => b - a).slice(0, most);
  return ranked.map(([text, count]) => `${quoted(text)}${count > 1 ? ` ×${format(count)}` : ""}`).join("  ");
}

/**
 * The number of steps that attended to any of the tokens, from the number of tokens per step.
 *
 * @param {number[]} taken
 */
export function steps(taken) {
  return taken.filter((tokens) => tokens > 0).length;
}
