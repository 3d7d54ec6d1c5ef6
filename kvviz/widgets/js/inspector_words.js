import { format } from "./dom.js";
import { SCOPES } from "./scope.js";
import { quoted } from "./words.js";

// The meaning of every number of the inspector, shown on hover, focus and tap. All are of the head that is picked.
export const MEANING = {
  count: "C: the number of clusters; ClusterKV's default is one per 80 tokens of the prompt",
  metric:
    "metric: how k-means finds the nearest centroid of a key: cosine, Euclidean distance (l2) or inner product (ip)",
  seed: "seed: draws the keys from which k-means starts",
  layer: "layer: the captured layer that is shown",
  head: "KV head: the head of the layer that is shown",
  map:
    "every key, placed by its principal components; keys near each other point in similar directions; the star is the last query",
  text: "the prompt as the model reads it, tinted by cluster; dotted tokens are in no cluster",
  size: `size: number of tokens in the cluster. Of: ${SCOPES.head}`,
  spread:
    `spread: mean cosine of the cluster's keys to its centroid; 1 if all point in the same direction. Of: ${SCOPES.head}`,
  recalled:
    `recalled by: number of steps that attended to at least one token of the cluster. Of: ${SCOPES.head}, ${SCOPES.steps}`,
  central: "the token whose key has the largest cosine to the centroid",
  mostly: "the most frequent texts of the cluster's tokens",
  nearest: "the clusters whose centroids have the largest cosine to this cluster's centroid",
  steps: "one bar per step: the share of the cluster's tokens that the step attended to",
};

/**
 * The most frequent texts of some tokens, with their counts.
 *
 * @param {string[]} tokens
 * @param {number[]} members
 */
export function frequent(tokens, members, most = 6) {
  const counts = new Map();
  for (const position of members) counts.set(tokens[position], (counts.get(tokens[position]) ?? 0) + 1);
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
