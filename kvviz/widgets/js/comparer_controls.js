import { element, format } from "./strip.js";
import { MEANING } from "./words.js";
import { button, createSaveMenu, markSelected, picker } from "./panel.js";
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
  const buttons = bar.appendChild(element("span", "kv-buttons"));
  const back = button(buttons, "‹", "one step back (←)", () => go(-1));
  const on = button(buttons, "›", "one step on (→)", () => go(1));
  const label = bar.appendChild(element("label", "kv-step"));
  label.append(element("span", "", "step"));
  label.title = MEANING.step;
  const slider = label.appendChild(element("input"));
  Object.assign(slider, { type: "range", min: 0, max: page.steps - 1, step: 1 });
  slider.setAttribute("aria-label", "decode step");
  slider.addEventListener("input", () => go(0, Number(slider.value)));
  const count = label.appendChild(element("output"));

  return {
    menu,
    paint(state, place) {
      const { step } = state, last = page.steps - 1;
      back.disabled = step === 0;
      on.disabled = step === last;
      slider.value = step;
      slider.setAttribute("value", step); // a picture is made from attributes
      slider.setAttribute("aria-valuetext", `step ${step} of ${last}`);
      count.textContent = `${format(step)} / ${format(last)}`;
      count.style.minWidth = `${2 * format(last).length + 3}ch`;
      layer.value = place.layer;
      row.value = place.head;
      order.value = state.sort;
      order.title = sortMeaning(state.sort);
      markSelected(layer, row, order);
      const sorted = state.sort === "given" ? "" : `, sort="${state.sort}"`;
      menu.line.textContent = `kvviz.widgets.MethodComparer(recordings, step=${step}, layer=${place.layer}, head=${place.head}${sorted})`;
    },
  };
}

function group(label, sorts, mean) {
  const made = element("optgroup");
  made.label = label;
  for (const sort of sorts.filter((name) => name !== "given" && name.startsWith("mean ") === mean)) made.append(new Option(sort, sort));
  return made;
}
