import { ATTENDED, GENERATED, ORACLE, RECENT, SINK, format } from "./strip.js";
import { indexOf, roundedWeight } from "./slice.js";

// What every number on the page means; shown on hover.
export const MEANING = {
  step: "decode step, counted from 0 as in recording.indices(step, layer)",
  fed: "the token that this step feeds to the model",
  recall: "recall: share of the oracle's tokens that were attended; the oracle takes as many tokens as the method did, those with the largest exact weights",
  mass: "mass: share of the exact attention that falls on the attended tokens",
  attended: "attended: tokens that this head attends at this step, sinks, recent and generated ones included",
  read: "read: bytes of the keys and values that the whole layer attends at this step",
  moved: "moved: bytes of keys and values that the whole layer fetched from another tier at this step",
  prompt: "the prompt as the model reads it; point at a token for its cluster, score and attention",
  map: "one row a step, the first on top; one column a position, or several where there are more than columns (the strongest token is drawn); a click goes to the step and the token",
  recalled: "the clusters recalled at this step, best score first; the bar is the exact attention on the tokens taken",
  written: "the tokens fed up to this step (a question in grey), then what this step predicts",
  share: "share of the exact attention on the tokens attended here",
  score: "score: what the method ranked by; the best score comes first",
};

// White space made visible, for tooltips.
export function visible(text) {
  return text.replace(/ /g, "·").replace(/\n/g, "↵").replace(/\t/g, "→").replace(/\r/g, "␍");
}

export function bytes(count) {
  const units = ["B", "kB", "MB", "GB"];
  let power = 0;
  while (count >= 999.5 && power < 3) {
    count /= 1000;
    power++;
  }
  return `${power && count < 99.95 ? count.toFixed(1) : Math.round(count)} ${units[power]}`;
}

export function decimals(number) {
  if (Number.isNaN(number)) return "none";
  return number !== 0 && (Math.abs(number) < 0.001 || Math.abs(number) >= 1e5) ? number.toExponential(1) : Number(number.toPrecision(3)).toString();
}

export function wasRecalled(frame, index) {
  return index >= 0 && frame.groups[index] >= 0;
}

// [term, value] pairs about one token at a step.
export function aboutToken(page, slice, frame, step, position) {
  const rows = [["token", visible(page.tokens[position])], ["position", format(position)]];
  if (position > page.prompt_length + step) return [...rows, ["state", "not there yet at this step"]];
  const index = indexOf(frame, position);
  if (wasRecalled(frame, index)) rows.push([page.group_name, `#${frame.groups[index]}`], ["score", decimals(frame.scores[index])]);
  else rows.push([page.group_name, index < 0 ? "not known" : "none"]);
  rows.push(["attention", weightOf(slice, frame, index, step, position)], ["state", verdict(index < 0 ? 0 : frame.marks[index])]);
  return rows;
}

function weightOf(slice, frame, index, step, position) {
  if (index >= 0) return decimals(frame.weights[index]);
  const weight = roundedWeight(slice, step, position);
  if (weight === null) return "below every token of the oracle";
  return weight === 0 ? "below 3e-8" : `about ${decimals(Number(weight.toPrecision(2)))}`;
}

function verdict(mark) {
  if (!mark) return "not attended, nor by the oracle";
  if (!(mark & ATTENDED)) return "missed: the oracle would attend it";
  const oracle = mark & ORACLE ? "the oracle too" : "the oracle would not";
  const why = mark & SINK ? "attended as a sink" : mark & RECENT ? "attended as recent" : mark & GENERATED ? "attended as generated" : "attended";
  return `${why}; ${oracle}`;
}
