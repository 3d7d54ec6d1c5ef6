import { element, format } from "./dom.js";
import { createSettings } from "./menu.js";
import { button, createSaveMenu, createStepSlider } from "./panel.js";
import { createPlacePickers } from "./place_pickers.js";
import { unionOf } from "./union.js";
import { bytes, MEANING, quoted } from "./words.js";

/** @import { Go } from "./panel.js" */
/** @import { PickHead } from "./head_panel.js" */
/** @import { StepperPage, StepperSlice } from "./stepper.js" */

/**
 * Six controls, to which the text adds a search field: previous step, next step, play, step slider, settings, and menu.
 *
 * @param {HTMLElement} root
 * @param {StepperPage} page
 * @param {object} options
 * @param {Go} options.go
 * @param {() => void} options.toggle
 * @param {PickHead} options.pick
 * @param {() => void} options.save
 */
export function createControls(root, page, { go, toggle, pick, save }) {
  const head = root.appendChild(element("div", "kv-head"));
  head.append(element("h2", "kv-title", page.description));
  const place = createPlacePickers(head, page, (layer, row) => pick(layer, row, "none"));

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

  const settings = createSettings(head, root);
  const menu = createSaveMenu(head, root, save);

  return {
    menu,
    settings,
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
      place(slice.layer, slice.head);
      const { kind, heads } = unionOf(slice);
      figures.recall.ofHeads(heads, kind !== "none");
      figures.mass.ofHeads(heads, kind !== "none");
      figures.attended.item.title = kind === "none"
        ? MEANING.attended
        : `attended: tokens that at least one of the ${heads} heads attends to at this step`;
      const union = kind === "none" ? "" : `, union="${kind}"`;
      menu.line.textContent = `${page.call}step=${step}, layer=${slice.layer}, head=${slice.head}${union})`;
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
  const label = item.appendChild(element("span", "kv-name", name));
  const number = item.appendChild(element("span", "kv-number"));
  return {
    item,
    number,
    /**
     * @param {number} heads
     * @param {boolean} union
     */
    ofHeads(heads, union) {
      label.textContent = union ? `mean ${name}` : name;
      item.title = union ? `mean over the ${heads} heads of ${MEANING[name]}` : MEANING[name];
    },
    /** @param {number} count */
    inBytes(count) {
      number.textContent = bytes(count);
      item.title = `${MEANING[name]}: ${format(count)} bytes`;
    },
  };
}
