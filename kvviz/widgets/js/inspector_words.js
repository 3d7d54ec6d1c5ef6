import { format } from "./dom.js";
import { quoted } from "./words.js";

// What every number of the inspector means; shown on hover.
export const MEANING = {
  count: "C: the number of clusters; ClusterKV takes one for every 80 tokens of the prompt",
  metric:
    "metric: how k-means finds the nearest centroid of a key: cosine, Euclidean distance (l2) or inner product (ip)",
  seed: "seed: draws the keys that are the first centroids",
  layer: "layer: which of the captured layers is shown",
  head: "KV head: which of the layer's key heads is shown",
  map:
    "every key at its place by principal components; keys near each other point the same way; the star is the last query",
  text: "the prompt as the model reads it, tinted by cluster; dotted tokens are in no cluster",
  size: "size: tokens in the cluster",
  spread: "spread: mean cosine of the cluster's keys to its centroid; 1 where all point the same way",
  recalled: "recalled: steps that attended at least one of the cluster's tokens",
  central: "the token whose key has the largest cosine to the centroid",
  mostly: "the texts that occur most often in the cluster",
  nearest: "the clusters whose centroids have the largest cosine to this one's",
  steps: "one bar a step: the share of the cluster's tokens that the step attended",
};

/**
 * The texts that occur most often among some tokens, with their counts.
 *
 * @param {string[]} tokens
 * @param {number[]} members
 */
export function frequent(tokens, members, most = 6) {
  const counts = new Map();
  for (const position of members) counts.set(tokens[position], (counts.get(tokens[position]) ?? 0) + 1);
  const ranked = [...counts].sort((one, other) => other[1] - one[1]).slice(0, most);
  return ranked.map(([text, count]) => `${quoted(text)}${count > 1 ? ` ×${format(count)}` : ""}`).join("  ");
}

/**
 * How many steps took any, of the tokens that each took.
 *
 * @param {number[]} taken
 */
export function steps(taken) {
  return taken.filter((tokens) => tokens > 0).length;
}
