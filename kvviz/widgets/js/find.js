// Finding text in the prompt: a field, the matches outlined in the text, and their number.
import { element, hasModifier, targetOf } from "./dom.js";
import { explain } from "./explain.js";
import { button } from "./panel.js";

/** @import { Strip } from "./strip.js" */
/** @typedef {[first: number, last: number]} Match positions of the first and the last token */

const MEANING = "find text in the prompt (/); Enter: next match, Shift+Enter: previous match, Escape: clear";

/**
 * A search field for running text. "/" goes to it from anywhere in the widget, Enter to the next match, with Shift to
 * the previous one, Escape clears it. White space of any kind is the same, and so are capitals and small letters.
 *
 * @param {Element} host
 * @param {HTMLElement} root
 * @param {object} options
 * @param {string[]} options.tokens from position 0
 * @param {() => Strip[]} options.strips which show these tokens
 * @param {(found: number[], match: number) => void} [options.onFound] gets the tokens of all matches, and the first one
 *   of the present match, -1 for none
 */
export function createFind(host, root, { tokens, strips, onFound = () => {} }) {
  const box = host.appendChild(element("span", "kv-find"));
  const field = box.appendChild(element("input"));
  Object.assign(field, { type: "search", placeholder: "find", autocomplete: "off", spellcheck: false });
  field.setAttribute("aria-label", "find text in the prompt");
  explain(field, MEANING).setAttribute("aria-description", MEANING);
  const moves = box.appendChild(element("span", "kv-buttons"));
  button(moves, "‹", "previous match (Shift+Enter)", () => go(-1));
  button(moves, "›", "next match (Enter)", () => go(1));
  moves.hidden = true;
  const said = box.appendChild(element("span", "kv-found"));
  said.setAttribute("role", "status");
  /** @type {((query: string) => Match[]) | null} */
  let search = null;
  /** @type {Match[]} */
  let matches = [];
  /** @type {number[]} */
  let found = [];
  let now = -1;

  function find() {
    search ??= searcher(tokens);
    matches = search(field.value);
    const [top] = strips()[0].inSight();
    now = matches.findIndex(([, last]) => last >= top);
    if (now < 0) now = matches.length ? 0 : -1;
    found = matches.flatMap(range);
    for (const strip of strips()) strip.outline("found", found);
    show();
  }

  function show() {
    const match = matches[now];
    moves.hidden = matches.length < 2;
    for (const strip of strips()) {
      strip.outline("match", match ? range(match) : []);
      if (match) strip.focus(match[0], false);
    }
    onFound(found, match ? match[0] : -1);
    if (!field.value.trim()) said.textContent = "";
    else said.textContent = match ? `match ${now + 1} of ${matches.length}, position ${match[0]}` : "no match";
  }

  /** @param {number} by */
  function go(by) {
    if (matches.length === 0) return;
    now = (now + by + matches.length) % matches.length;
    show();
  }

  field.addEventListener("input", find);
  field.addEventListener("keydown", (event) => {
    event.stopPropagation(); // arrow keys move in the field
    if (event.key === "Enter") go(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape") {
      field.value = "";
      find();
    } else return;
    event.preventDefault();
  });
  root.addEventListener("keydown", (event) => {
    if (event.key !== "/" || hasModifier(event) || targetOf(event).matches("select, input:not([type=range])")) return;
    field.focus();
    field.select();
    event.preventDefault();
  });
}

/** @param {Match} match */
function range([first, last]) {
  return Array.from({ length: last - first + 1 }, (_, at) => first + at);
}

/** @param {string} text */
const folded = (text) => text.replace(/\s/g, " ").toLowerCase();

/**
 * A function that returns the matches of a query, in order; they do not overlap.
 *
 * @param {string[]} tokens
 * @returns {(query: string) => Match[]}
 */
export function searcher(tokens) {
  const parts = tokens.map(folded), text = parts.join("");
  /** @type {number[]} */
  const starts = [];
  parts.reduce((length, part) => (starts.push(length), length + part.length), 0);
  /** @param {number} place */
  const tokenAt = (place) => {
    let low = 0, high = starts.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (starts[middle] > place) high = middle;
      else low = middle + 1;
    }
    return low - 1; // of several tokens that start here, the last: the others are empty
  };
  return (query) => {
    const wanted = folded(query);
    /** @type {Match[]} */
    const matches = [];
    if (!wanted.trim()) return matches;
    for (let at = text.indexOf(wanted); at >= 0; at = text.indexOf(wanted, at + wanted.length)) {
      matches.push([tokenAt(at), tokenAt(at + wanted.length - 1)]);
    }
    return matches;
  };
}
