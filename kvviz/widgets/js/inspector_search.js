import { element, format } from "./dom.js";
import { MEANING } from "./inspector_words.js";
import { button } from "./panel.js";

/**
 * A field that finds text in the prompt: `onFound` gets the tokens of all occurrences, and the first one of the present.
 * Enter goes to the next occurrence, Shift+Enter to the one before, Escape clears the field.
 *
 * @param {HTMLElement} host
 * @param {string[]} tokens
 * @param {(tokens: number[], at: number) => void} onFound
 */
export function createSearch(host, tokens, onFound) {
  const row = host.appendChild(element("div", "kv-find"));
  const field = row.appendChild(element("input"));
  Object.assign(field, { type: "search", placeholder: "find text", title: MEANING.find });
  field.setAttribute("aria-label", "find text in the prompt");
  const buttons = row.appendChild(element("span", "kv-buttons"));
  button(buttons, "‹", "previous occurrence (Shift+Enter)", () => go(-1));
  button(buttons, "›", "next occurrence (Enter)", () => go(1));
  const said = row.appendChild(element("span", "kv-found"));
  said.setAttribute("role", "status");
  /** @type {number[][]} */
  let places = [];
  let at = 0;

  function find() {
    places = field.value ? occurrences(tokens, field.value) : [];
    at = 0;
    tell();
  }

  function tell() {
    buttons.hidden = places.length < 2;
    said.textContent = !field.value
      ? ""
      : places.length === 0
      ? "not in the prompt"
      : `${format(at + 1)} of ${format(places.length)}, at position ${format(places[at][0])}`;
    onFound([...new Set(places.flat())], places[at]?.[0] ?? -1);
  }

  /** @param {number} by */
  function go(by) {
    if (!places.length) return;
    at = (at + by + places.length) % places.length;
    tell();
  }

  field.addEventListener("input", find);
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") go(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape" && field.value) {
      field.value = "";
      find();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });
  buttons.hidden = true;
}

/**
 * The tokens of each occurrence of a text, in any case; an occurrence may begin and end within tokens.
 *
 * @param {string[]} tokens
 * @param {string} wanted
 */
export function occurrences(tokens, wanted) {
  /** @type {number[]} */
  const starts = [];
  let text = "";
  for (const token of tokens) {
    starts.push(text.length);
    text += token.toLowerCase();
  }
  const needle = wanted.toLowerCase();
  /** @type {number[][]} */
  const found = [];
  for (let from = text.indexOf(needle), token = 0; from >= 0; from = text.indexOf(needle, from + needle.length)) {
    while (token + 1 < starts.length && starts[token + 1] <= from) token++;
    const members = [];
    for (let next = token; next < starts.length && starts[next] < from + needle.length; next++) members.push(next);
    found.push(members);
  }
  return found;
}
