import { element } from "./strip.js";
import { createSaveMenu, createStepSlider, markSelected, picker } from "./panel.js";
import { sortMeaning } from "./comparer_words.js";

// Seven controls: step back, step on, the step slider, the layer, the head, the order of the columns, and the menu.
export function createComparerControls(root, page, { go, pick, sort, save }) {
  const head = root.appendChild(element("div", "kv-head"));
  head.append(element("h2", "kv-title", page.description));
  const layer = picker(head, "layer", page.layers, "layer: which of the common layers is shown", () => pick(Number(layer.value), Number(row.value)));
  const row = picker(head, page.head_name, page.heads, `${page.head_name}: which of the layer's heads is shown`, () => pick(Number(layer.value), Number(row.value)));
  const order = picker(head, "sort by", [], "order of the columns, the best first", () => sort(order.value));
  order.append(new Option("as given", "given"), group("at this step", page.sorts, false), group("mean over the steps", page.sorts, true));

  const menu = createSaveMenu(head, root, save);

  const bar = root.appendChild(element("div", "kv-controls"));
  const showStep = createStepSlider(bar, page.steps, go);

  return {
    menu,
    paint(state, place) {
      const { step } = state;
      showStep(step);
      layer.value = place.layer;
      row.value = place.head;
      order.value = state.sort;
      order.title = sortMeaning(state.sort);
      markSelected(layer, row, order);
      const sorted = state.sort === "given" ? "" : `, sort="${state.sort}"`;
      const opened = state.token < 0 ? "" : `, token=${state.token}`;
      menu.line.textContent = `kvviz.widgets.MethodComparer(recordings, step=${step}, layer=${place.layer}, head=${place.head}${opened}${sorted})`;
    },
  };
}

function group(label, sorts, mean) {
  const made = element("optgroup");
  made.label = label;
  for (const sort of sorts.filter((name) => name !== "given" && name.startsWith("mean ") === mean)) made.append(new Option(sort, sort));
  return made;
}
