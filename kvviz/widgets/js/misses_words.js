// The meaning of everything in the miss inspector, shown on hover, focus and tap.
export const MEANING = {
  evidence:
    "the prompt; tinted are the tokens without which full attention gives the answer a lower log-probability, the more the stronger; click one to follow it",
  heads:
    "one column per layer, one row per KV head: the log-probability that comes back if this head alone attends to the oracle's tokens, in one pass in which all other heads keep their choices; framed: the heads that bring the answer back together; hollow: restoring it makes the answer less likely",
  journey:
    "where this head lost the picked token: each stage of the method's choice, with its numbers at this step; the bar has one mark per step",
  answers:
    "what is written, and the log-probability of the answer: the sum over its tokens, in nats; 0 would be certain",
  logprob: "the log-probability of the answer: the sum over its tokens, in nats; 0 would be certain",
  score: "the method's score of the token, its rank among the tokens ranked, and the lowest score attended to",
  stage: "a stage of the method's choice, and what it did with the token",
  causes: "what each cause took from the answer's log-probability, in nats",
  verdict: "what became of the token in this head, at this step",
  changes: "other changes: pin or drop the picked token, or take all changes back",
  restore: "let the picked head attend to the oracle's tokens, as many as the method attends to, and decode again",
  pin: "let every head attend to the picked token, on top of the budget, and decode again",
  drop: "let no head attend to the picked token, and decode again",
  reset: "take all changes back",
  exact: "exact: the token's weight and rank in this head's exact attention, averaged over its query heads",
  here: "here: the weight that the method gives the token; a merged token has a part of its centroid's",
};

/** @type {Record<string, string>} */
export const OUTCOME = {
  "attended": "attended",
  "not wanted": "not wanted: this head's exact attention does not use it either",
  "not kept": "not kept: it was evicted, or merged into a centroid",
  "badly grouped": "badly grouped: alone it is among the best, its group is not",
  "badly scored": "badly scored: by exact scores it would have been taken",
  "trimmed": "trimmed: its group was chosen and cut before it",
  "crowded out": "crowded out: sinks, recent window and generated tokens left no room for it",
};

// Marks of the outcomes, which need no colour.
/** @type {Record<string, string>} */
export const MARK = {
  "attended": "●",
  "not wanted": "·",
  "not kept": "∅",
  "badly grouped": "G",
  "badly scored": "S",
  "trimmed": "T",
  "crowded out": "C",
};

/**
 * A log-probability, or a difference of two with its sign.
 *
 * @param {number} value
 */
export function nats(value, sign = true) {
  const digits = Math.abs(value) < 9.95 ? 2 : 1;
  const text = Math.abs(value).toFixed(digits);
  const minus = value < 0 && Number(text) !== 0;
  return `${minus ? "−" : sign && Number(text) !== 0 ? "+" : ""}${text}`;
}

/** @param {number} value */
export function total(value) {
  return nats(value, false);
}
