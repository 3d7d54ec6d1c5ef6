import { element, format } from "./dom.js";
import { explain, explainTogether } from "./explain.js";
import { FIGURES, MEANING, meaningOf, MEASURES, shortNumber } from "./explorer_words.js";
import { createSettings } from "./menu.js";
import { markSelected, picker } from "./panel.js";
import { createPlacePickers } from "./place_pickers.js";
import { createSaveMenu } from "./save.js";
import { explainNumber, scopeIn, tagOf } from "./scope.js";
import { nameIn } from "./union.js";
import { bytes } from "./words.js";

/** @import { ExplorerNumbers, ExplorerPage, Place } from "./explorer.js" */
/** @import { Format } from "./save.js" */
/** @import { Scope } from "./scope.js" */
/** @import { Union } from "./union.js" */

/**
 * At most six controls, to which the text adds a search field: budget, two fields of the method, measure, settings, and
 * menu. Drop-downs for layer and head come on top if there is no map of the heads.
 *
 * @param {HTMLElement} root
 * @param {ExplorerPage} page
 * @param {object} options
 * @param {(changes: Partial<Place>) => void} options.change
 * @param {() => void} options.measured
 * @param {(format: Format) => void} options.save
 */
export function createExplorerControls(root, page, { change, measured, save }) {
  const head = root.appendChild(element("div", "kv-head"));
  const title = head.appendChild(element("h2", "kv-title"));
  const grid = root.appendChild(element("div", "kv-explorer-grid"));
  const left = grid.appendChild(element("div", "kv-explorer-left"));
  const budget = createSlider(left, "budget", page.budgets, MEANING.budget, (value) => change({ budget: value }));
  const sliders = page.sliders.map((slider) =>
    createSlider(
      left,
      slider.label,
      slider.values,
      `${slider.name}: ${slider.meaning}`,
      (value) => change({ settings: { [slider.name]: value } }),
    )
  );
  const refusal = left.appendChild(element("p", "kv-explorer-refusal"));
  refusal.setAttribute("role", "status");
  const list = explainTogether(left.appendChild(element("div", "kv-explorer-numbers")), "numbers of this budget");
  /** @type {Record<string, HTMLElement>} */
  const figures = {};
  const groups = FIGURES.map(({ scopes, numbers }) => figureGroup(list, scopes, numbers, figures));

  let measure = MEASURES[0];
  /** @type {[string, string][]} */
  const measures = MEASURES.map(({ name, label }) => [name, label]);
  const measurePicker = picker(head, "measure", measures, "measure: the number that the curve shows", () => {
    measure = MEASURES[measurePicker.selectedIndex];
    measured();
  });
  measurePicker.value = measure.name;
  const pickers = createPlacePickers(head, page, (layer, row) => change({ layer, head: row, union: "none" }));
  const settings = createSettings(head, root);
  const menu = createSaveMenu(head, root, save);

  /** @param {Place} place */
  function set(place) {
    budget.set(place.budget);
    page.sliders.forEach((slider, index) => sliders[index].set(place.settings[slider.name]));
    pickers(place.layer, place.head);
    markSelected(measurePicker);
  }

  return {
    grid,
    menu,
    settings,
    get measure() {
      return measure;
    },
    set,
    /**
     * Moves the slider whose input is `target`, or else the budget's, by some stops.
     *
     * @param {HTMLElement} target
     * @param {number} by
     */
    move(target, by) {
      ([budget, ...sliders].find((slider) => slider.input === target) ?? budget).move(by);
    },
    /** @param {string} reason */
    refuse(reason) {
      refusal.textContent = reason ? `Nothing to show here. ${reason}. Move a slider back.` : "";
      grid.toggleAttribute("data-stale", Boolean(reason));
    },
    /**
     * @param {ExplorerNumbers} numbers
     * @param {{ kind: Union, heads: number }} union
     */
    paint(numbers, union) {
      set(numbers);
      for (const ofHeads of groups) ofHeads(union);
      const seed = page.seed === null ? "" : ` · seed ${page.seed}`;
      title.textContent = `${page.title} · budget ${format(numbers.budget)} · ${page.model} · ${
        format(page.prompt_length)
      } tokens${seed}`;
      for (const { name } of MEASURES) figures[name].textContent = shortNumber(numbers[name]);
      const { sinks, recent, agreed, wasted, merged, generated } = numbers.parts;
      figures.attended.textContent = format(sinks + recent + agreed + wasted + merged + generated);
      figures.metadata.textContent = bytes(numbers.metadata_bytes);
      figures.read.textContent = bytes(numbers.extra_bytes);
      menu.line.textContent = numbers.call;
    },
  };
}

/**
 * A slider over a list of values; `move` moves it by some stops, `set` adds a stop if the value has none.
 *
 * @param {HTMLElement} host
 * @param {string} name
 * @param {number[]} stops
 * @param {string} meaning
 * @param {(value: number) => void} changed
 */
function createSlider(host, name, stops, meaning, changed) {
  const values = [...stops];
  const label = host.appendChild(element("label", "kv-explorer-slider"));
  explain(label, meaning);
  label.append(element("span", "", name));
  const count = label.appendChild(element("output"));
  const input = label.appendChild(element("input"));
  Object.assign(input, { type: "range", min: 0, step: 1 });
  input.setAttribute("aria-label", name);
  input.setAttribute("aria-description", meaning);
  input.addEventListener("input", () => changed(values[Number(input.value)]));
  /** @param {number} by */
  function move(by) {
    const value = values[Math.max(0, Math.min(values.length - 1, Number(input.value) + by))];
    if (value !== values[Number(input.value)]) changed(value);
  }
  /** @param {number} value */
  function set(value) {
    if (!values.includes(value)) {
      values.push(value);
      values.sort((first, second) => first - second);
    }
    input.max = String(values.length - 1);
    input.value = String(values.indexOf(value));
    input.setAttribute("value", input.value); // screenshots show attributes
    input.setAttribute("aria-valuetext", format(value));
    count.textContent = format(value);
  }
  return { input, set, move };
}

/**
 * Adds numbers of the same scopes to a list and to `figures`. Returns what says of which heads they are.
 *
 * @param {HTMLElement} list
 * @param {Scope[]} scopes
 * @param {[name: string, label: string][]} numbers
 * @param {Record<string, HTMLElement>} figures
 */
function figureGroup(list, scopes, numbers, figures) {
  const group = list.appendChild(element("div", "kv-explorer-scope"));
  let tag = group.appendChild(tagOf(group, ...scopes));
  const rows = numbers.map(([name, label]) => {
    const row = group.appendChild(element("div", "kv-explorer-number"));
    const term = row.appendChild(element("span", "kv-name"));
    figures[name] = row.appendChild(element("span", "kv-number"));
    return { name, label, row, term };
  });
  return (/** @type {{ kind: Union, heads: number }} */ union) => {
    const now = scopes.map((scope) => scopeIn(scope, union.kind));
    tag.replaceWith(tag = tagOf(group, ...now));
    for (const { name, label, row, term } of rows) {
      term.textContent = nameIn(name, union.kind, label);
      explainNumber(row, meaningOf(name, union), ...now);
    }
  };
}
