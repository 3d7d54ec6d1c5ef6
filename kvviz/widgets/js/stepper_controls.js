import { element, format } from "./dom.js";
import { button, createStepSlider, markSelected, picker } from "./panel.js";
import { createSaveMenu } from "./save.js";
import { bytes, MEANING, quoted } from "./words.js";

/** @import { Go } from "./panel.js" */
/** @import { Format } from "./save.js" */
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
 * @param {(format: Format) => void} options.save
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
  const fed = bar.appendChild(element("span", "kv-fed"));
  fed.title = MEANING.fed;
  const stats = bar.appendChild(element("span", "kv-stats"));
  const figures = {
    recall: figure(stats, "recall"),
    mass: figure(stats, "mass"),
    attended: figure(stats, "attended"),
    read: figure(stats, "read"),
    moved: figure(stats, "moved"),
  };

  const menu = createSaveMenu(head, root, save);

  return {
    menu,
    /** @param {boolean} running */
    playing(running) {
      play.textContent = running ? "❚❚" : "▶";
      play.title = running ? "pause (space)" : "play (space)";
      play.setAttribute("aria-label", play.title);
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
  item.title = MEANING[name];
  item.append(element("span", "kv-name", name));
  const number = item.appendChild(element("span", "kv-number"));
  return {
    number,
    /** @param {number} count */
    inBytes(count) {
      number.textContent = bytes(count);
      item.title = `${MEANING[name]}: ${format(count)} bytes`;
    },
  };
}
