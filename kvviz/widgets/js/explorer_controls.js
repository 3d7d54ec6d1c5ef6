import { element, format } from "./strip.js";
import { bytes } from "./words.js";
import { EXPLORER_MEANING, EXPLORER_MEASURES, explorerNumber } from "./explorer_words.js";
import { createSaveMenu, markSelected, picker } from "./panel.js";

// Seven controls at most: the budget, two fields of the method, the measure, the layer, the head, and the menu.
export function createExplorerControls(root, page, { change, measured, save }) {
  const head = root.appendChild(element("div", "kv-head"));
  const title = head.appendChild(element("h2", "kv-title"));
  const grid = root.appendChild(element("div", "kv-explorer-grid"));
  const left = grid.appendChild(element("div", "kv-explorer-left"));
  const budget = explorerSlider(left, "budget", page.budgets, EXPLORER_MEANING.budget, (value) => change({ budget: value }));
  const sliders = page.sliders.map((slider) =>
    explorerSlider(left, slider.label, slider.values, `${slider.name}: ${slider.meaning}`, (value) => change({ settings: { [slider.name]: value } })),
  );
  const refusal = left.appendChild(element("p", "kv-explorer-refusal"));
  refusal.setAttribute("role", "status");
  const list = left.appendChild(element("div", "kv-explorer-numbers"));
  const figures = Object.fromEntries(["recall", "mass", "error", "attended", "metadata", "read"].map((name) => [name, explorerFigure(list, name)]));

  let measure = EXPLORER_MEASURES[page.kind === "merging" ? 2 : 0]; // centroids hold attention that no token's weight shows
  const shown = picker(head, "measure", EXPLORER_MEASURES.map(({ name, label }) => [name, label]), "what the curve shows", (name) => {
    measure = EXPLORER_MEASURES.find((each) => each.name === name);
    measured();
  });
  shown.value = measure.name;
  const layer = picker(head, "layer", page.layers, "layer: which of the captured layers is shown", (value) => change({ layer: Number(value) }));
  const row = picker(head, page.head_name, page.heads, `${page.head_name}: which of the layer's heads is shown`, (value) => change({ head: Number(value) }));

  const menu = createSaveMenu(head, root, save);

  function set(place) {
    budget.set(place.budget);
    page.sliders.forEach((slider, index) => sliders[index].set(place.settings[slider.name]));
    layer.value = place.layer;
    row.value = place.head;
    markSelected(shown, layer, row);
  }

  return {
    grid,
    menu,
    get measure() {
      return measure;
    },
    set,
    // Moves the slider whose input that is, the budget's for anything else, by so many stops.
    move(target, by) {
      ([budget, ...sliders].find((slider) => slider.input === target) ?? budget).move(by);
    },
    refuse(reason) {
      refusal.textContent = reason ? `Nothing to show here. ${reason}. Move a slider back.` : "";
      grid.toggleAttribute("data-stale", Boolean(reason));
    },
    paint(numbers) {
      set(numbers);
      const seed = page.seed === null ? "" : ` · seed ${page.seed}`;
      title.textContent = `${page.title} · budget ${format(numbers.budget)} · ${page.model} · ${format(page.prompt_length)} tokens${seed}`;
      for (const name of ["recall", "mass", "error"]) figures[name].textContent = explorerNumber(numbers[name]);
      const { missed, merged_tokens, ...parts } = numbers.parts;
      figures.attended.textContent = format(Object.values(parts).reduce((sum, count) => sum + count, 0));
      figures.metadata.textContent = bytes(numbers.metadata_bytes);
      figures.read.textContent = bytes(numbers.extra_bytes);
      menu.line.textContent = numbers.call;
    },
  };
}

// A range over a list of values; `move` goes so many stops on, `set` adds a stop where there is none.
function explorerSlider(host, name, stops, meaning, changed) {
  const values = [...stops];
  const label = host.appendChild(element("label", "kv-explorer-slider"));
  label.title = meaning;
  label.append(element("span", "", name));
  const count = label.appendChild(element("output"));
  const input = label.appendChild(element("input"));
  Object.assign(input, { type: "range", min: 0, step: 1 });
  input.setAttribute("aria-label", name);
  input.addEventListener("input", () => changed(values[Number(input.value)]));
  function move(by) {
    const value = values[Math.max(0, Math.min(values.length - 1, Number(input.value) + by))];
    if (value !== values[Number(input.value)]) changed(value);
  }
  function set(value) {
    if (!values.includes(value)) {
      values.push(value);
      values.sort((first, second) => first - second);
    }
    input.max = values.length - 1;
    input.value = values.indexOf(value);
    input.setAttribute("value", input.value); // a picture is made from attributes
    input.setAttribute("aria-valuetext", format(value));
    count.textContent = format(value);
  }
  return { input, set, move };
}

function explorerFigure(host, name) {
  const labels = { error: "output error", read: "read to choose" };
  const row = host.appendChild(element("div", "kv-explorer-number"));
  row.title = EXPLORER_MEANING[name];
  row.append(element("span", "kv-name", labels[name] ?? name));
  return row.appendChild(element("span", "kv-number"));
}
