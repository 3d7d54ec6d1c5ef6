// What each number is about. kvviz/widgets/scopes.py has the same words, for snapshots.
import { element } from "./dom.js";
import { explain } from "./explain.js";

/** @import { Union } from "./union.js" */
/** @typedef {"head" | "heads" | "query_heads" | "layer" | "layers" | "step" | "steps" | "last" | "answer"} Scope */

/** @type {Record<Scope, string>} */
export const SCOPES = {
  head: "this head",
  heads: "all heads of the layer",
  query_heads: "this KV head",
  layer: "this layer",
  layers: "all layers",
  step: "this step",
  steps: "all steps",
  last: "last step",
  answer: "whole answer",
};

/**
 * Whether a number belongs to the picked head alone, to its whole layer, or to all layers.
 *
 * @type {Record<string, Scope>}
 */
export const SCOPE_OF = {
  recall: "head",
  mass: "head",
  attended: "head",
  read: "layer",
  moved: "layer",
  error: "layer",
  metadata: "layer",
  choose: "layer",
  logprob: "layers",
};

/** @type {Record<Union, Scope>} */
export const OF_UNION = { none: "head", layer: "heads", kv_head: "query_heads" };

/**
 * The scope of a number when a union of heads is shown: what is a head's belongs to all of them.
 *
 * @param {Scope} scope
 * @param {Union} union
 * @returns {Scope}
 */
export function scopeIn(scope, union) {
  return scope === "head" ? OF_UNION[union] : scope;
}

/** @param {Scope[]} scopes */
export function scopeText(...scopes) {
  return scopes.map((scope) => SCOPES[scope]).join(", ");
}

/**
 * Marks the numbers in a node with their scope: a small tag of words, which comes first or last in it.
 *
 * @template {HTMLElement} Node
 * @param {Node} node
 * @param {Scope[]} scopes
 */
export function tagged(node, ...scopes) {
  node.append(tagOf(node, ...scopes));
  return node;
}

/**
 * The tag alone, for a node in which it has a place of its own.
 *
 * @param {HTMLElement} node
 * @param {Scope[]} scopes
 */
export function tagOf(node, ...scopes) {
  node.dataset.scope = scopes.join(" ");
  return element("span", "kv-scope", scopeText(...scopes));
}

/**
 * Explains a number by its meaning and its scope.
 *
 * @template {HTMLElement} Node
 * @param {Node} node
 * @param {string} meaning
 * @param {Scope[]} scopes
 */
export function explainNumber(node, meaning, ...scopes) {
  return explain(node, `${meaning}. Of: ${scopeText(...scopes)}`);
}
