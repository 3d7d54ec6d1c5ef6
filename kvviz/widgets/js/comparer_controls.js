import { sortMeaning } from "./comparer_words.js";
import { element } from "./dom.js";
import { explain } from "./explain.js";
import { createSettings } from "./menu.js";
import { createStepSlider, markSelected, picker } from "./panel.js";
import { createPlacePickers } from "./place_pickers.js";
import { createSaveMenu } from "./save.js";
import { unionOf } from "./union.js";

/** @import { ComparerPage, ComparerState } from "./comparer.js" */
/** @import { PickHead } from "./head_panel.js" */
/** @import { Go } from "./panel.js" */
/** @import { Format } from "./save.js" */
/** @import { AnySlice } from "./union.js" */

/**
 * Six controls, to which the texts add a search field: previous step, next step, step slider, order of the columns,
 * settings, and menu.
 *
 * @param {HTMLElement} root
 * @param {ComparerPage} page
 * @param {object} options
 * @param {Go} options.go
 * @param {PickHead} options.pick
 * @param {(sort: string) => void} options.sort
 * @param {(format: Format) => void} options.save
 */
export function createComparerControls(root, page, { go, pick, sort, save }) {
  const head = root.appendChild(element("div", "kv-head"));
  head.append(element("h2", "kv-title", page.description));
  const place = createPlacePickers(head, page, (layer, row) => pick(layer, row, "none"));
  const order = picker(head, "sort by", [], "order of the columns, the best first", () => sort(order.value));
  order.append(
    new Option("as given", "given"),
    group("at this step", page.sorts, false),
    group("mean over the steps", page.sorts, true),
  );

  const settings = createSettings(head, root);
  const menu = createSaveMenu(head, root, save);

  const bar = root.appendChild(element("div", "kv-controls"));
  const slider = createStepSlider(bar, page.steps, go);

  return {
    bar,
    menu,
    settings,
    /**
     * @param {ComparerState} state
     * @param {AnySlice} slice
     */
    paint(state, slice) {
      const { step } = state;
      slider.show(step);
      place(slice.layer, slice.head);
      order.value = state.sort;
      order.setAttribute("aria-description", sortMeaning(state.sort));
      if (order.parentElement) explain(order.parentElement, `order of the columns: ${sortMeaning(state.sort)}`);
      markSelected(order);
      const token = state.token < 0 ? "" : `, token=${state.token}`;
      const sorted = state.sort === "given" ? token : `${token}, sort="${state.sort}"`;
      const { kind } = unionOf(slice), more = kind === "none" ? sorted : `, union="${kind}"${sorted}`;
      menu.line.textContent =
        `kvviz.widgets.MethodComparer(recordings, step=${step}, layer=${slice.layer}, head=${slice.head}${more})`;
    },
  };
}

/**
 * @param {string} label
 * @param {string[]} sorts
 * @param {boolean} mean
 */
function group(label, sorts, mean) {
  const options = element("optgroup");
  options.label = label;
  for (const sort of sorts.filter((name) => name !== "given" && name.startsWith("mean ") === mean)) {
    options.append(new Option(sort, sort));
  }
  return options;
}
