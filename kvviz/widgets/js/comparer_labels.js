import { NAMES, NUMBERS, ROWS } from "./comparer_words.js";
import { element } from "./dom.js";
import { explain, explainTogether } from "./explain.js";
import { explainNumber, SCOPE_OF, tagged } from "./scope.js";

/** @import { Name } from "./comparer_words.js" */
/** @typedef {{ label: string, slice: Record<Name, Float64Array> }} Numbered */

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
    row.append(element("span", "", name));
    return { name, row: explainNumber(tagged(row, SCOPE_OF[name]), NUMBERS[name].meaning, SCOPE_OF[name]) };
  });
  const curve = list.appendChild(explain(element("span"), ROWS.curve));
  const name = curve.appendChild(element("span")), range = curve.appendChild(element("span", "kv-mean"));
  list.append(
    explain(element("span", "", "steps ↓ × positions →"), ROWS.map),
    explain(element("span", "", "prompt"), ROWS.prompt),
    explain(element("span", "", "answer"), ROWS.answer),
  );
  return {
    /**
     * @param {string} number
     * @param {string} rangeText
     */
    curve(number, rangeText) {
      name.textContent = `${number} over the steps`;
      range.textContent = rangeText;
    },
    /**
     * What a screen reader says of each row: the number of every column.
     *
     * @param {Numbered[]} columns
     * @param {number} step
     */
    paint(columns, step) {
      for (const { name, row } of numbers) {
        const values = columns.map(({ label, slice }) => `${label} ${NUMBERS[name].write(slice[name][step])}`);
        row.dataset.said = `${name}, ${values.join(", ")}`;
      }
    },
  };
}
