// The model of a page without a kernel, written by kvviz/widgets/page.py. The page holds a widget's values and the
// kernel's answers as JSON, and bytes as gzip in base64.

/** @import { Model } from "./host.js" */
/** @typedef {Record<string, any>} Values */
/** @typedef {{ when: Values, then: Values }} Answer */

/** @type {Values[]} The values of this page's widgets, in their order. */
const shown = [];

/** @typedef {Model & { told: (react: () => void) => void, take: (changes: Values) => void }} PageModel */

/**
 * A model that answers from the page: if its values match the `when` of an answer, it takes over the answer's `then`.
 *
 * @param {{ state: Values, answers: Answer[] }} page
 * @returns {Promise<PageModel>}
 */
export async function pageModel({ state, answers }) {
  /** @type {Values} */
  const values = {};
  shown.push(values);
  Object.assign(values, await withBytes(state));
  const events = new EventTarget();
  /** @type {Answer[]} */
  let current = [];

  async function answer(again = false) {
    const matching = answers.filter(({ when }) => matches(values, when));
    const same = matching.length === current.length && matching.every((each, index) => each === current[index]);
    if (same && !again) return;
    current = matching;
    const changes = await withBytes(Object.assign({}, ...matching.map(({ then }) => then)));
    if (current !== matching) return; // a later request has overtaken this one
    Object.assign(values, changes);
    for (const name of Object.keys(changes)) events.dispatchEvent(new Event(`change:${name}`));
  }

  await answer();
  return {
    page: savedPage,
    get: (name) => values[name],
    set(name, value) {
      values[name] = value;
    },
    save_changes() {
      answer();
      events.dispatchEvent(new Event("told"));
    },
    send({ place }) {
      Object.assign(values, place);
      answer(true);
    },
    /** Call `react` after each change by the widget itself. */
    told: (react) => events.addEventListener("told", react),
    /** Take over values, as if a kernel had sent them. */
    take(changes) {
      Object.assign(values, changes);
      for (const name of Object.keys(changes)) events.dispatchEvent(new Event(`change:${name}`));
    },
    on: (event, react) => events.addEventListener(event, react),
    off: (event, react) => events.removeEventListener(event, react),
  };
}

/** This page as it was before its widgets were drawn, but opening at what they show now. */
function savedPage() {
  const page = /** @type {HTMLElement} */ (document.documentElement.cloneNode(true));
  page.querySelector("#kvviz-root")?.replaceChildren();
  for (const node of [page, ...page.querySelectorAll("body")]) {
    for (const { name } of [...node.attributes]) if (name !== "lang") node.removeAttribute(name); // an outer page's theme
  }
  const data = /** @type {HTMLElement} */ (page.querySelector("#kvviz-page")), content = JSON.parse(data.textContent);
  content.widgets.forEach((/** @type {{ state: Values }} */ { state }, /** @type {number} */ index) => {
    for (const name of Object.keys(state)) if (!hasBytes(shown[index][name])) state[name] = shown[index][name];
  });
  data.textContent = JSON.stringify(content).replace(/[<>&]/g, (sign) => `\\u00${sign.charCodeAt(0).toString(16)}`);
  page.querySelectorAll("body > iframe").forEach((frame) => frame.remove()); // one that is printed
  return `<!doctype html>\n${page.outerHTML}`;
}

/**
 * @param {any} value
 * @returns {boolean}
 */
function hasBytes(value) {
  return Array.isArray(value) ? value.some(hasBytes) : value instanceof Uint8Array;
}

/**
 * @param {Values} values
 * @param {Values} when
 * @returns {boolean}
 */
function matches(values, when) {
  return Object.entries(when).every(([name, value]) =>
    value instanceof Object ? matches(values[name], value) : values[name] === value
  );
}

/**
 * The values, with the bytes of the blobs that they name.
 *
 * @param {Values} values
 * @returns {Promise<Values>}
 */
async function withBytes(values) {
  /** @type {(value: any) => any} */
  const read = (value) =>
    Array.isArray(value) ? Promise.all(value.map(read)) : value?.blob === undefined ? value : readBlob(value.blob);
  const entries = Object.entries(values).map(async ([name, value]) => [name, await read(value)]);
  return Object.fromEntries(await Promise.all(entries));
}

/** @param {string} key */
async function readBlob(key) {
  const text = document.querySelector(`script[data-slice="${key}"]`)?.textContent;
  if (!text) throw new Error(`this page does not contain the bytes of ${key}`);
  // Browsers older than 2025 have no fromBase64.
  const bytes = Uint8Array.fromBase64?.(text) ?? Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
