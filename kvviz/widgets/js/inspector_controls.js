import { element, format } from "./strip.js";
import { INSPECTOR_MEANING } from "./inspector_words.js";
import { createSaveMenu, markSelected, picker } from "./panel.js";

// Six controls: C, metric, seed, layer, head and the menu. A page without a kernel has C and the menu.
export function createInspectorControls(root, page, { change, save }) {
  const head = root.appendChild(element("div", "kv-head"));
  const title = head.appendChild(element("h2", "kv-title"));
  const bar = root.appendChild(element("div", "kv-controls"));
  let counts = page.counts;

  const label = bar.appendChild(element("label", "kv-step"));
  label.append(element("span", "", "clusters"));
  label.title = INSPECTOR_MEANING.count;
  const slider = label.appendChild(element("input"));
  Object.assign(slider, { type: "range", min: 0, max: counts.length - 1, step: 1 });
  slider.setAttribute("aria-label", "number of clusters C");
  const count = label.appendChild(element("output"));
  slider.addEventListener("input", () => setCount(Number(slider.value)));

  const pickers = {};
  if (!page.fixed) {
    pickers.metric = choice("metric", "metric", page.metrics, (value) => value);
    const around = bar.appendChild(element("label", "kv-picker"));
    around.title = INSPECTOR_MEANING.seed;
    around.append(element("span", "", "seed"));
    const seed = around.appendChild(element("input", "kv-seed"));
    Object.assign(seed, { type: "number", min: 0, max: 2 ** 31 - 1, step: 1 });
    seed.setAttribute("aria-label", "seed");
    const sow = () => {
      if (seed.checkValidity() && seed.value !== "") change({ seed: Number(seed.value) });
    };
    seed.addEventListener("change", sow);
    seed.addEventListener("keydown", (event) => event.key === "Enter" && sow()); // JupyterLab takes the key's own meaning away
    pickers.seed = seed;
    pickers.layer = choice("layer", "layer", page.layers, Number);
    pickers.head = choice("head", "KV head", page.heads, Number);
  }

  function choice(name, text, values, read) {
    return picker(bar, text, values, INSPECTOR_MEANING[name], (value) => change({ [name]: read(value) }));
  }

  function setCount(index) {
    const wanted = Math.max(0, Math.min(counts.length - 1, index));
    showCount(wanted);
    change({ n_clusters: counts[wanted] });
  }

  function showCount(index) {
    slider.value = index;
    slider.setAttribute("value", index); // a picture is made from attributes
    slider.setAttribute("aria-valuetext", `${counts[index]} clusters`);
    const own = counts[index] === page.default;
    count.textContent = format(counts[index]);
    count.title = own ? `${INSPECTOR_MEANING.count} (this one)` : `${INSPECTOR_MEANING.count}, here ${page.default}`;
    count.style.minWidth = `${format(counts[counts.length - 1]).length}ch`;
  }

  const menu = createSaveMenu(head, root, save);

  return {
    menu,
    step: (by, absolute = false) => setCount(absolute ? by : Number(slider.value) + by),
    counts(values) {
      counts = values;
      slider.max = counts.length - 1;
    },
    // `waiting`: another number of clusters is on its way, so that the slider stays where the hand put it.
    paint(shown, token, waiting) {
      const { n_clusters: clusters, metric, seed, layer, head: row } = shown;
      title.textContent = `${page.model} · ${format(page.tokens.length)} tokens in ${format(clusters)} ${clusters === 1 ? "cluster" : "clusters"} · ${metric} · seed ${seed} · layer ${layer}, KV head ${row} · recalled by ${page.steps_by}`;
      if (!waiting) showCount(counts.indexOf(clusters));
      for (const [name, control] of Object.entries(pickers)) {
        if (control.type === "number" && control === document.activeElement) continue; // a number being typed stays
        control.value = shown[name];
        control.setAttribute("value", shown[name]);
        if (control.options) markSelected(control);
      }
      menu.line.textContent = `${page.call}layer=${layer}, head=${row}, n_clusters=${clusters}, metric="${metric}", seed=${seed}, token=${token}${page.call_end}`;
    },
  };
}
