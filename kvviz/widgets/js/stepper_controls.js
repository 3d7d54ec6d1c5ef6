import { element, format } from "./dom.js";
import { explain, explainTogether } from "./explain.js";
import { button, createSaveMenu, createStepSlider, markSelected, picker } from "./panel.js";
import { explainNumber, SCOPE_OF, tagged } from "./scope.js";
import { bytes, MEANING, quoted } from "./words.js";

/** @import { Go } from "./panel.js" */
/** @import { StepperPage, StepperSlice } from "./stepper.js" */

/**
 * Seven controls: previous step, next step, play, step slider, layer, head, and menu.
 *
 * @param {HTMLElement} root
 * @param {StepperPage} page
 * @param {object} options
 * @param {Go} options.go
 * @param {() => void} options.toggle
 * @param {(layer: number, head: number) => void} options.pick
 * @param {() => void} options.save
 */
export function createControls(root, page, { go, toggle, pick, save }) {
  const head = root.appendChild(element("div", "kv-head"));
  head.append(element("h2", "kv-title", page.description));
  const layer = picker(
    head,
    "layer",
    page.layers,
    page.layers_meaning,
    () => pick(Number(layer.value), Number(row.value)),
  );
  const row = picker(
    head,
    page.head_name,
    page.heads,
    `${page.head_name}: the head of the layer that is shown`,
    () => pick(Number(layer.value), Number(row.value)),
  );

  const bar = root.appendChild(element("div", "kv-controls"));
  const slider = createStepSlider(bar, page.steps, go);
  const play = button(slider.buttons, "▶", "play (space)", toggle);
  const stats = explainTogether(bar.appendChild(element("span", "kv-stats")), "numbers of this step");
  const fed = stats.appendChild(explain(element("span", "kv-fed"), MEANING.fed));
  const ofHead = stats.appendChild(tagged(element("span", "kv-scoped"), "head", "step"));
  const ofLayer = stats.appendChild(tagged(element("span", "kv-scoped"), "layer", "step"));
  const figures = {
    recall: figure(ofHead, "recall"),
    mass: figure(ofHead, "mass"),
    attended: figure(ofHead, "attended"),
    read: figure(ofLayer, "read"),
    moved: figure(ofLayer, "moved"),
  };

  const menu = createSaveMenu(head, root, save);

  return {
    menu,
    /** @param {boolean} running */
    playing(running) {
      play.textContent = running ? "❚❚" : "▶";
      const meaning = running ? "pause (space)" : "play (space)";
      explain(play, meaning).setAttribute("aria-label", meaning);
      play.setAttribute("aria-pressed", String(running));
    },
    /**
     * @param {number} step
     * @param {StepperSlice} slice
     * @param {number} attended
     */
    paint(step, slice, attended) {
      const token = quoted(page.tokens[page.prompt_length + step]);
      slider.show(step, `, fed ${token}, recall ${slice.recall[step].toFixed(2)}`);
      fed.textContent = `fed ${token}`;
      figures.recall.number.textContent = slice.recall[step].toFixed(2);
      figures.mass.number.textContent = slice.mass[step].toFixed(2);
      figures.attended.number.textContent = format(attended);
      figures.read.inBytes(slice.read_bytes[step]);
      figures.moved.inBytes(slice.moved_bytes[step]);
      layer.value = String(slice.layer);
      row.value = String(slice.head);
      markSelected(layer, row);
      menu.line.textContent = `${page.call}step=${step}, layer=${slice.layer}, head=${slice.head})`;
    },
  };
}

/**
 * @param {HTMLElement} host
 * @param {"recall" | "mass" | "attended" | "read" | "moved"} name
 */
function figure(host, name) {
  const item = host.appendChild(element("span", "kv-figure"));
  explainNumber(item, MEANING[name], SCOPE_OF[name], "step");
  item.append(element("span", "kv-name", name));
  const number = item.appendChild(element("span", "kv-number"));
  return {
    number,
    /** @param {number} count */
    inBytes(count) {
      number.textContent = bytes(count);
      explainNumber(item, `${MEANING[name]}: ${format(count)} bytes`, SCOPE_OF[name], "step");
    },
  };
}
