import { element, format } from "./dom.js";
import { explain } from "./explain.js";
import { countOf, MEANING, PROJECTIONS, VIEWS } from "./inspector_words.js";
import { createMenu } from "./menu.js";
import { createStepSlider, markSelected, picker } from "./panel.js";
import { layerOptions } from "./place_pickers.js";
import { createSaveMenu } from "./save.js";
import { quoted } from "./words.js";

/** @import { HeadNumbers } from "./head_panel.js" */
/** @import { About } from "./inspector_groups.js" */
/** @import { ProjectionName, ViewName } from "./inspector_words.js" */
/** @import { Go, Option } from "./panel.js" */
/** @import { Format } from "./save.js" */
/** @typedef {{ name: string, label: string, values: number[], meaning: string }} FieldSlider */
/**
 * @typedef {object} InspectorPage
 * @property {string} model
 * @property {string[]} tokens
 * @property {string[]} step_tokens
 * @property {number} steps
 * @property {number} ranked the number of first steps whose queries the trace holds
 * @property {number} first_step
 * @property {ViewName} first_view
 * @property {string} steps_by empty without a recording
 * @property {string} call
 * @property {string} call_end
 * @property {number[]} layers
 * @property {Record<string, string>} [windows]
 * @property {number[]} heads
 * @property {string[]} metrics
 * @property {ViewName[]} views
 * @property {ProjectionName[]} projections
 * @property {Record<ViewName, FieldSlider[]>} sliders
 * @property {number} default
 * @property {number[]} counts
 * @property {boolean} fixed
 * @property {string[]} notes
 * @property {HeadNumbers[]} head_maps
 * @property {number[]} span
 */
/**
 * @typedef {{ n_clusters: number, metric: string, seed: number, layer: number, head: number, view: ViewName, part: number,
 *   fields: Record<string, number>, projection: ProjectionName }} Settings
 */
/** @typedef {{ control: HTMLInputElement | HTMLSelectElement, shows: ViewName[], value: (shown: Settings) => unknown }} Field */

/** @type {ViewName[]} */
const ALL = ["clusters", "pages", "codes", "lists"];

/**
 * Six controls: previous step, next step, step slider, C (or another view's main field), settings, and menu. Settings
 * has the rest: groups, layer, head, map, metric, seed, and the other fields of the view's method. A page without a
 * kernel has those settings that it holds.
 *
 * @param {HTMLElement} root
 * @param {InspectorPage} page
 * @param {{ go: Go, change: (settings: Partial<Settings>) => void, save: (format: Format) => void }} options
 */
export function createInspectorControls(root, page, { go, change, save }) {
  const head = root.appendChild(element("div", "kv-head"));
  const title = head.appendChild(element("h2", "kv-title"));
  const bar = root.appendChild(element("div", "kv-controls"));
  const stepper = createStepSlider(bar, page.steps, go);
  let counts = page.counts;

  const label = bar.appendChild(element("label", "kv-step kv-count"));
  label.append(element("span", "", "clusters"));
  const slider = label.appendChild(element("input"));
  Object.assign(slider, { type: "range", min: 0, max: counts.length - 1, step: 1 });
  slider.setAttribute("aria-label", "number of clusters C");
  slider.setAttribute("aria-description", MEANING.count);
  const count = label.appendChild(element("output"));
  slider.addEventListener("input", () => setCount(Number(slider.value)));

  const settings = createMenu(head, root, "Settings", "groups, layer, head, map, metric and seed"),
    { sheet } = settings;
  settings.menu.classList.add("kv-settings");

  /** @type {Field[]} */
  const fields = [];
  /** @type {HTMLSelectElement | undefined} */
  let partPicker;
  if (page.views.length > 1) {
    choose(sheet, "groups", page.views.map((view) => [view, VIEWS[view].name]), MEANING.view, ALL, ({ view }) => view, (
      view,
    ) => ({ view: /** @type {ViewName} */ (view), part: 0 }));
  }
  if (!page.fixed) {
    choose(
      sheet,
      "layer",
      layerOptions(page),
      MEANING.layer,
      ALL,
      ({ layer }) => layer,
      (layer) => ({ layer: Number(layer) }),
    );
    choose(sheet, "KV head", page.heads, MEANING.head, ALL, (shown) => shown.head, (row) => ({ head: Number(row) }));
  }
  if (page.projections.length > 1) {
    const names = page.projections.map((name) => /** @type {[string, string]} */ ([name, PROJECTIONS[name].name]));
    choose(sheet, "map", names, MEANING.projection, ALL, ({ projection }) => projection, (projection) => ({
      projection: /** @type {ProjectionName} */ (projection),
    }));
  }
  if (!page.fixed) {
    choose(
      sheet,
      "metric",
      page.metrics,
      MEANING.metric,
      ["clusters"],
      ({ metric }) => metric,
      (metric) => ({ metric }),
    );
    addSeed();
    for (const view of page.views) addFields(view);
  }
  if (page.views.includes("codes")) {
    partPicker = choose(
      bar,
      "part",
      [],
      MEANING.part,
      ["codes"],
      ({ part }) => part,
      (part) => ({ part: Number(part) }),
    );
  }

  /**
   * @param {HTMLElement} host
   * @param {string} name
   * @param {Option[]} values
   * @param {string} meaning
   * @param {ViewName[]} shows the views that have it
   * @param {(shown: Settings) => unknown} value
   * @param {(value: string) => Partial<Settings>} read
   */
  function choose(host, name, values, meaning, shows, value, read) {
    const select = picker(host, name, values, meaning, (chosen) => change(read(chosen)));
    fields.push({ control: select, shows, value });
    return select;
  }

  function addSeed() {
    const seedLabel = sheet.appendChild(element("label", "kv-picker"));
    explain(seedLabel, MEANING.seed);
    seedLabel.append(element("span", "", "seed"));
    const seed = seedLabel.appendChild(element("input", "kv-seed"));
    Object.assign(seed, { type: "number", min: 0, max: 2 ** 31 - 1, step: 1 });
    seed.setAttribute("aria-label", "seed");
    seed.setAttribute("aria-description", MEANING.seed);
    const setSeed = () => {
      if (seed.checkValidity() && seed.value !== "") change({ seed: Number(seed.value) });
    };
    seed.addEventListener("change", setSeed);
    // JupyterLab suppresses the key's effect.
    seed.addEventListener("keydown", (event) => event.key === "Enter" && setSeed());
    fields.push({ control: seed, shows: ALL, value: (shown) => shown.seed });
  }

  /**
   * A view's fields: the first beside the step, the others in the settings. Codes have their part beside the step.
   *
   * @param {ViewName} view
   */
  function addFields(view) {
    page.sliders[view].forEach(({ name, label: text, values, meaning }, index) => {
      const host = index === 0 && view !== "codes" ? bar : sheet;
      choose(host, text, values, `${name}: ${meaning}`, [view], ({ fields: shown }) => shown[name], (value) => ({
        fields: { [name]: Number(value) },
      }));
    });
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
    explain(label, isDefault ? `${MEANING.count} (as here)` : `${MEANING.count}, here ${page.default}`);
    count.style.minWidth = `${format(counts[counts.length - 1]).length}ch`;
  }

  const menu = createSaveMenu(head, root, save);

  return {
    menu,
    /** Whether the keys of a focused control change C. */
    ownsKeys: (/** @type {HTMLElement} */ target) => target === slider,
    /** @param {number} by */
    count: (by, absolute = false) => setCount(absolute ? by : Number(slider.value) + by),
    /** @param {number[]} values */
    counts(values) {
      counts = values;
      slider.max = String(counts.length - 1);
    },
    /**
     * @param {number} step
     * @param {string} about
     */
    step(step, about) {
      stepper.show(step, `, fed ${quoted(page.step_tokens[step] ?? "")}${about}`);
    },
    /**
     * `waiting`: another number of clusters is on its way, and the slider stays where the user put it.
     *
     * @param {Settings} shown
     * @param {About} about
     * @param {number} groups
     * @param {{ token: number, step: number }} picked
     * @param {boolean} waiting
     */
    paint(shown, about, groups, { token, step }, waiting) {
      const { n_clusters: clusters, metric, seed, layer, head: row, view, part, projection } = shown;
      const of = view === "codes" ? ` of part ${part} (0 to ${about.parts - 1})` : "";
      const size = `${format(page.tokens.length)} tokens in ${countOf(groups, view)}${of}`;
      const kmeans = view === "clusters" ? [metric, `seed ${seed}`] : view === "codes" ? [`seed ${seed}`] : [];
      const by = page.steps_by || `${about.method} · budget ${format(about.budget)}`;
      const parts = [page.model, size, ...kmeans, `layer ${layer}, KV head ${row}`, `recalled by ${by}`];
      title.textContent = parts.join(" · ");
      label.hidden = view !== "clusters";
      if (!waiting) showCount(counts.indexOf(clusters));
      if (partPicker && partPicker.options.length !== about.parts) {
        partPicker.replaceChildren(...Array.from({ length: about.parts }, (_, at) => new Option(String(at))));
      }
      for (const { control, shows, value } of fields) {
        const holder = control.closest("label");
        if (holder) holder.hidden = !shows.includes(view);
        if (!shows.includes(view) || (control.type === "number" && control === document.activeElement)) continue;
        control.value = String(value(shown));
        control.setAttribute("value", control.value);
      }
      markSelected(...fields.map(({ control }) => control).filter((control) => control instanceof HTMLSelectElement));
      const more = [
        step === page.first_step ? "" : `, step=${step}`,
        view === page.first_view ? "" : `, view="${view}"`,
        view === "codes" && part ? `, part=${part}` : "",
        view === "clusters" ? "" : `, fields=${JSON.stringify(shown.fields).replace(/([:,])/g, "$1 ")}`,
        projection === "pca" ? "" : `, projection="${projection}"`,
      ].join("");
      const line =
        `layer=${layer}, head=${row}, n_clusters=${clusters}, metric="${metric}", seed=${seed}, token=${token}`;
      menu.line.textContent = `${page.call}${line}${more}${page.call_end}`;
    },
  };
}
