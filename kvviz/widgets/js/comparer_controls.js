import { sortMeaning } from "./comparer_words.js";
import { element } from "./dom.js";
import { createStepSlider, markSelected, picker } from "./panel.js";
import { createSaveMenu } from "./save.js";

/** @import { ComparerPage, ComparerState } from "./comparer.js" */
/** @import { Go } from "./panel.js" */
/** @import { Format } from "./save.js" */

/**
 * Seven controls: previous step, next step, step slider, layer, head, order of the columns, and menu.
 *
 * @param {HTMLElement} root
 * @param {ComparerPage} page
 * @param {object} options
 * @param {Go} options.go
 * @param {(layer: number, head: number) => void} options.pick
 * @param {(sort: string) => void} options.sort
 * @param {(format: Format) => void} options.save
 */
export function createComparerControls(root, page, { go, pick, sort, save }) {
  const head = root.appendChild(element("div", "kv-head"));
  head.append(element("h2", "kv-title", page.description));
  const layer = picker(
    head,
    "layer",
    page.layers,
    "layer: the shared layer that is shown",
    () => pick(Number(layer.value), Number(row.value)),
  );
  const row = picker(
    head,
    page.head_name,
    page.heads,
    `${page.head_name}: the head of the layer that is shown`,
    () => pick(Number(layer.value), Number(row.value)),
  );
  const order = picker(head, "sort by", [], "order of the columns, the best first", () => sort(order.value));
  order.append(
    new Option("as given", "given"),
    group("at this step", page.sorts, false),
    group("mean over the steps", page.sorts, true),
  );

  const menu = createSaveMenu(head, root, save);

  const bar = root.appendChild(element("div", "kv-controls"));
  const slider = createStepSlider(bar, page.steps, go);

  return {
    menu,
    /**
     * @param {ComparerState} state
     * @param {{ layer: number, head: number }} place
     */
    paint(state, place) {
      const { step } = state;
      slider.show(step);
      layer.value = String(place.layer);
      row.value = String(place.head);
      order.value = state.sort;
      order.title = sortMeaning(state.sort);
      markSelected(layer, row, order);
      const token = state.token < 0 ? "" : `, token=${state.token}`;
      const more = state.sort === "given" ? token : `${token}, sort="${state.sort}"`;
      menu.line.textContent =
        `kvviz.widgets.MethodComparer(recordings, step=${step}, layer=${place.layer}, head=${place.head}${more})`;
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
