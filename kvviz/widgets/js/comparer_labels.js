import { NAMES, NUMBERS, ROWS } from "./comparer_words.js";
import { element } from "./dom.js";
import { explain, explainTogether } from "./explain.js";
import { explainNumber, SCOPE_OF, scopeIn, tagged, tagOf } from "./scope.js";
import { meaningIn, nameIn, unionOf } from "./union.js";

/** @import { Name } from "./comparer_words.js" */
/** @import { AnySlice } from "./union.js" */
/** @typedef {{ label: string, slice: AnySlice & Record<Name, Float64Array> }} Numbered */

/**
 * The names of the rows, which stay in sight while the columns scroll sideways.
 *
 * @param {HTMLElement} host
 */
export function createLabels(host) {
  const list = explainTogether(host.appendChild(element("div", "kv-labels")), "rows of numbers, panels and texts");
  list.append(element("span"));
  const numbers = NAMES.map((name) => {
    const row = list.appendChild(element("span"));
    const text = row.appendChild(element("span", "", name));
    return { name, text, row: tagged(row, SCOPE_OF[name]) };
  });
  const curve = list.appendChild(explain(element("span"), ROWS.curve));
  const name = curve.appendChild(element("span")), range = curve.appendChild(element("span", "kv-mean"));
  const prompt = explain(element("span", "", "prompt"), ROWS.prompt);
  list.append(
    explain(element("span", "", "steps ↓ × positions →"), ROWS.map),
    prompt,
    explain(element("span", "", "answer"), ROWS.answer),
  );
  return {
    prompt,
    /**
     * @param {string} number
     * @param {string} rangeText
     */
    curve(number, rangeText) {
      name.textContent = `${number} over the steps`;
      range.textContent = rangeText;
    },
    /**
     * What the rows are about, and what a screen reader says of each: the number of every column.
     *
     * @param {Numbered[]} columns
     * @param {number} step
     */
    paint(columns, step) {
      const { kind, heads } = unionOf(columns[0].slice);
      for (const { name, text, row } of numbers) {
        const scope = scopeIn(SCOPE_OF[name], kind);
        text.textContent = nameIn(name, kind);
        row.lastElementChild?.replaceWith(tagOf(row, scope));
        explainNumber(row, meaningIn(name, kind, heads), scope);
        const values = columns.map(({ label, slice }) => `${label} ${NUMBERS[name].write(slice[name][step])}`);
        row.dataset.said = `${text.textContent}, ${values.join(", ")}`;
      }
    },
  };
}
