// The groups of keys as they come from the kernel or the page: clusters, pages, codes or lists.
import { TSNE } from "./inspector_words.js";

/** @import { Unpacked } from "./slice.js" */
/** @typedef {Unpacked & MapArrays} Places */
/** @typedef {Unpacked & ClusterArrays & { told: About }} Clustering */
/**
 * @typedef {object} MapArrays
 * @property {Int32Array} map projection, part and step, -1 if the map does not depend on them
 * @property {Float32Array} points NaN for a key that is not on the map
 * @property {Float32Array} stars of each step whose query is known, or of the last token
 * @property {Float32Array} origin
 * @property {Float32Array} axes
 * @property {Uint8Array} titles
 */
/**
 * @typedef {object} ClusterArrays
 * @property {Int32Array} settings
 * @property {Uint8Array} about JSON
 * @property {Int32Array} labels
 * @property {Float32Array} centroids
 * @property {Uint8Array} hues of each cluster
 * @property {Int32Array} sizes
 * @property {Float32Array} spread
 * @property {Int32Array} central
 * @property {Int32Array} nearest
 * @property {Float32Array} nearest_cosine
 * @property {Int32Array} order tokens by cluster, the nearest to the centroid first
 * @property {Int32Array} offsets
 * @property {Int32Array} taken
 * @property {Float32Array} scores NaN if the step does not rank the cluster
 * @property {Int32Array} recalled
 * @property {Int32Array} cut -1 if there is none
 */
/**
 * The method of a view, and what it is set to.
 *
 * @typedef {object} About
 * @property {import("./inspector_words.js").ViewName} view
 * @property {number} part
 * @property {Record<string, number>} fields
 * @property {string} method
 * @property {string} title
 * @property {number} budget
 * @property {number} parts
 * @property {number} probes
 */
/** @typedef {{ group: number, score: number, recalled: number, size: number, kind: "whole" | "part" | "none" }} Rank */

/**
 * @param {{ about: Uint8Array }} clusters
 * @returns {About}
 */
export function aboutOf(clusters) {
  return JSON.parse(new TextDecoder().decode(clusters.about));
}

/**
 * The tokens of a group, the nearest to its centroid first.
 *
 * @param {Clustering} clusters
 * @param {number} group
 */
export function membersOf(clusters, group) {
  return group < 0 ? new Int32Array() : clusters.order.subarray(clusters.offsets[group], clusters.offsets[group + 1]);
}

/**
 * The picked group: the named one if it contains the token, else the token's first one; -1 for none.
 *
 * @param {Clustering} clusters
 * @param {number} group
 * @param {number} token
 */
export function pickedOf(clusters, group, token) {
  if (token < 0) return -1;
  return group < clusters.sizes.length && membersOf(clusters, group).includes(token) ? group : clusters.labels[token];
}

/**
 * The number of a cluster's tokens that each step attended to.
 *
 * @param {Clustering} clusters
 * @param {number} cluster
 */
export function takenOf(clusters, cluster) {
  const [count, width] = clusters.shapes.taken;
  return Array.from({ length: count }, (_, step) => clusters.taken[step * width + cluster]);
}

/** @param {Places} places */
export const projectionOf = (places) => places.map[0];

/**
 * The place of the query at a step; null if the trace does not have it.
 *
 * @param {Places} places
 * @param {number} step
 * @param {boolean} known whether the trace has the queries of steps, and not only that of its last token
 * @returns {[x: number, y: number] | null}
 */
export function starOf(places, step, known) {
  const at = known ? step : 0;
  return 2 * at < places.stars.length ? [places.stars[2 * at], places.stars[2 * at + 1]] : null;
}

/**
 * The places of the groups' centroids, by the axes of the map. t-SNE has no axes: there a ring is at the token on the
 * map that is nearest to the centroid.
 *
 * @param {Places} places
 * @param {Clustering} clusters
 */
export function ringsOf(places, clusters) {
  const { points, origin, axes } = places, count = clusters.sizes.length, rings = new Float32Array(2 * count);
  const width = clusters.shapes.centroids[1], linear = projectionOf(places) !== TSNE;
  for (let group = 0; group < count; group++) {
    if (linear) {
      let [x, y] = origin;
      for (let channel = 0; channel < width; channel++) {
        const value = clusters.centroids[group * width + channel];
        x += value * axes[2 * channel];
        y += value * axes[2 * channel + 1];
      }
      rings.set([x, y], 2 * group);
    } else {
      const token = membersOf(clusters, group).find((member) => !Number.isNaN(points[2 * member]));
      rings.set(token === undefined ? [NaN, NaN] : [points[2 * token], points[2 * token + 1]], 2 * group);
    }
  }
  return rings;
}

/**
 * The groups that a step ranks, best score first; empty if the trace lacks the step's query.
 *
 * @param {Clustering} clusters
 * @param {number} step
 * @returns {Rank[]}
 */
export function ranksOf(clusters, step) {
  const [count, width] = clusters.shapes.scores;
  if (step >= count) return [];
  const at = (/** @type {number} */ group) => step * width + group;
  const ranked = [...clusters.sizes.keys()].filter(
    (group) => clusters.sizes[group] > 0 && !Number.isNaN(clusters.scores[at(group)]),
  );
  ranked.sort((a, b) =>
    clusters.scores[at(b)] - clusters.scores[at(a)] || clusters.recalled[at(b)] - clusters.recalled[at(a)] || a - b
  );
  const cut = clusters.cut[step], trims = clusters.told.view === "clusters";
  return ranked.map((group, rank) => {
    const recalled = clusters.recalled[at(group)], size = clusters.sizes[group], part = recalled < size;
    const before = cut < 0 ? recalled > 0 : rank < cut;
    const kind = !before ? "none" : part && (trims || cut < 0) ? "part" : "whole";
    return { group, score: clusters.scores[at(group)], recalled, size, kind };
  });
}
