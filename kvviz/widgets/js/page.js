// A page without a kernel, written by kvviz/widgets/page.py: a widget's values and the kernel's answers as JSON, and
// bytes as gzip in base64 beside them.

/** @import { Model } from "./host.js" */
/** @typedef {Record<string, any>} Values */
/** @typedef {{ when: Values, then: Values }} Answer */

/**
 * A model that answers from the page: it takes over the `then` of each answer whose `when` its values match.
 *
 * @param {{ state: Values, answers: Answer[] }} held
 * @param {string} css
 * @returns {Promise<Model>}
 */
export async function pageModel({ state, answers }, css) {
  /** @type {Values} */
  const values = { ...(await withBytes(state)), _css: css };
  const events = new EventTarget();
  /** @type {Answer[]} */
  let asked = [];

  async function answer(again = false) {
    const found = answers.filter(({ when }) => matches(values, when));
    if (!again && found.length === asked.length && found.every((each, index) => each === asked[index])) return;
    asked = found;
    const changes = await withBytes(Object.assign({}, ...found.map(({ then }) => then)));
    if (asked !== found) return; // a later question has overtaken this one
    Object.assign(values, changes);
    for (const name of Object.keys(changes)) events.dispatchEvent(new Event(`change:${name}`));
  }

  await answer();
  return {
    get: (name) => values[name],
    set(name, value) {
      values[name] = value;
    },
    save_changes: () => void answer(),
    send({ place }) {
      Object.assign(values, place);
      answer(true);
    },
    on: (event, react) => events.addEventListener(event, react),
    off: (event, react) => events.removeEventListener(event, react),
  };
}

/**
 * @param {Values} values
 * @param {Values} when
 * @returns {boolean}
 */
function matches(values, when) {
  return Object.entries(when).every(([name, wanted]) =>
    wanted instanceof Object ? matches(values[name], wanted) : values[name] === wanted
  );
}

/**
 * The values, with bytes where they name a blob or several.
 *
 * @param {Values} values
 * @returns {Promise<Values>}
 */
async function withBytes(values) {
  /** @type {(value: any) => any} */
  const read = (value) =>
    Array.isArray(value) ? Promise.all(value.map(read)) : value?.blob === undefined ? value : readBlob(value.blob);
  const named = Object.entries(values).map(async ([name, value]) => [name, await read(value)]);
  return Object.fromEntries(await Promise.all(named));
}

/** @param {string} key */
async function readBlob(key) {
  const text = document.querySelector(`script[data-slice="${key}"]`)?.textContent;
  if (!text) throw new Error(`this page lacks the bytes ${key}`);
  // Browsers from before 2025 have no fromBase64.
  const bytes = Uint8Array.fromBase64?.(text) ?? Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
