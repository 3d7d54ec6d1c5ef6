import { element, format } from "./dom.js";
import { MEANING } from "./inspector_words.js";
import { markSelected, picker } from "./panel.js";
import { createSaveMenu } from "./save.js";

/** @import { InspectorPage, Settings } from "./inspector.js" */
/** @import { Format } from "./save.js" */

/**
 * Six controls: C, metric, seed, layer, head and menu. A page without a kernel has C and the menu only.
 *
 * @param {HTMLElement} root
 * @param {InspectorPage} page
 * @param {{ change: (settings: Partial<Settings>) => void, save: (format: Format) => void }} options
 */
export function createInspectorControls(root, page, { change, save }) {
  const head = root.appendChild(element("div", "kv-head"));
  const title = head.appendChild(element("h2", "kv-title"));
  const bar = root.appendChild(element("div", "kv-controls"));
  let counts = page.counts;

  const label = bar.appendChild(element("label", "kv-step"));
  label.append(element("span", "", "clusters"));
  label.title = MEANING.count;
  const slider = label.appendChild(element("input"));
  Object.assign(slider, { type: "range", min: 0, max: counts.length - 1, step: 1 });
  slider.setAttribute("aria-label", "number of clusters C");
  const count = label.appendChild(element("output"));
  slider.addEventListener("input", () => setCount(Number(slider.value)));

  /** @type {HTMLSelectElement[]} */
  const selects = [];
  /** @type {[control: HTMLInputElement | HTMLSelectElement, name: keyof Settings][]} */
  const pickers = [];
  if (!page.fixed) {
    choice("metric", "metric", page.metrics, (metric) => ({ metric }));
    const seedLabel = bar.appendChild(element("label", "kv-picker"));
    seedLabel.title = MEANING.seed;
    seedLabel.append(element("span", "", "seed"));
    const seed = seedLabel.appendChild(element("input", "kv-seed"));
    Object.assign(seed, { type: "number", min: 0, max: 2 ** 31 - 1, step: 1 });
    seed.setAttribute("aria-label", "seed");
    const setSeed = () => {
      if (seed.checkValidity() && seed.value !== "") change({ seed: Number(seed.value) });
    };
    seed.addEventListener("change", setSeed);
    // JupyterLab suppresses the key's effect.
    seed.addEventListener("keydown", (event) => event.key === "Enter" && setSeed());
    pickers.push([seed, "seed"]);
    choice("layer", "layer", page.layers, (layer) => ({ layer: Number(layer) }));
    choice("head", "KV head", page.heads, (head) => ({ head: Number(head) }));
  }

  /**
   * @param {"metric" | "layer" | "head"} name
   * @param {string} text
   * @param {(string | number)[]} values
   * @param {(value: string) => Partial<Settings>} read
   */
  function choice(name, text, values, read) {
    const select = picker(bar, text, values, MEANING[name], (value) => change(read(value)));
    selects.push(select);
    pickers.push([select, name]);
  }

  /** @param {number} index */
  function setCount(index) {
    const valid = Math.max(0, Math.min(counts.length - 1, index));
    showCount(valid);
    change({ n_clusters: counts[valid] });
  }

  /** @param {number} index */
  function showCount(index) {
    slider.value = String(index);
    slider.setAttribute("value", slider.value); // screenshots show attributes
    slider.setAttribute("aria-valuetext", `${counts[index]} clusters`);
    const isDefault = counts[index] === page.default;
    count.textContent = format(counts[index]);
    count.title = isDefault ? `${MEANING.count} (as here)` : `${MEANING.count}, here ${page.default}`;
    count.style.minWidth = `${format(counts[counts.length - 1]).length}ch`;
  }

  const menu = createSaveMenu(head, root, save);

  return {
    menu,
    /** @param {number} by */
    step: (by, absolute = false) => setCount(absolute ? by : Number(slider.value) + by),
    /** @param {number[]} values */
    counts(values) {
      counts = values;
      slider.max = String(counts.length - 1);
    },
    /**
     * `waiting`: another number of clusters is on its way, and the slider stays where the user put it.
     *
     * @param {Settings} shown
     * @param {number} token
     * @param {boolean} waiting
     */
    paint(shown, token, waiting) {
      const { n_clusters: clusters, metric, seed, layer, head: row } = shown;
      const size = `${format(page.tokens.length)} tokens in ${format(clusters)} ${
        clusters === 1 ? "cluster" : "clusters"
      }`;
      const place = `layer ${layer}, KV head ${row}`;
      const parts = [page.model, size, metric, `seed ${seed}`, place, `recalled by ${page.steps_by}`];
      title.textContent = parts.join(" · ");
      if (!waiting) showCount(counts.indexOf(clusters));
      for (const [control, name] of pickers) {
        if (control.type === "number" && control === document.activeElement) continue; // being typed
        control.value = String(shown[name]);
        control.setAttribute("value", control.value);
      }
      markSelected(...selects);
      const fields =
        `layer=${layer}, head=${row}, n_clusters=${clusters}, metric="${metric}", seed=${seed}, token=${token}`;
      menu.line.textContent = `${page.call}${fields}${page.call_end}`;
    },
  };
}
