import { element, format } from "./dom.js";
import { explain, explainTogether } from "./explain.js";
import { createSettings } from "./menu.js";
import { button, createStepSlider } from "./panel.js";
import { createPlacePickers } from "./place_pickers.js";
import { createSaveMenu } from "./save.js";
import { explainNumber, SCOPE_OF, scopeIn, tagged, tagOf } from "./scope.js";
import { meaningIn, nameIn, unionOf } from "./union.js";
import { bytes, MEANING, quoted } from "./words.js";

/** @import { Go } from "./panel.js" */
/** @import { Format } from "./save.js" */
/** @import { PickHead } from "./head_panel.js" */
/** @import { StepperPage, StepperSlice } from "./stepper.js" */
/** @import { Union } from "./union.js" */

/**
 * Six controls, to which the text adds a search field: previous step, next step, play, step slider, settings, and menu.
 *
 * @param {HTMLElement} root
 * @param {StepperPage} page
 * @param {object} options
 * @param {Go} options.go
 * @param {() => void} options.toggle
 * @param {PickHead} options.pick
 * @param {(format: Format) => void} options.save
 */
export function createControls(root, page, { go, toggle, pick, save }) {
  const head = root.appendChild(element("div", "kv-head"));
  head.append(element("h2", "kv-title", page.description));
  const place = createPlacePickers(head, page, (layer, row) => pick(layer, row, "none"));

  const bar = root.appendChild(element("div", "kv-controls"));
  const slider = createStepSlider(bar, page.steps, go);
  const play = button(slider.buttons, "▶", "play (space)", toggle);
  const stats = explainTogether(bar.appendChild(element("span", "kv-stats")), "numbers of this step");
  const fed = stats.appendChild(explain(element("span", "kv-fed"), MEANING.fed));
  const ofHead = stats.appendChild(element("span", "kv-scoped"));
  ofHead.append(tagOf(ofHead, "head", "step"));
  const ofLayer = stats.appendChild(tagged(element("span", "kv-scoped"), "layer", "step"));
  const figures = {
    recall: figure(ofHead, "recall"),
    mass: figure(ofHead, "mass"),
    attended: figure(ofHead, "attended"),
    read: figure(ofLayer, "read"),
    moved: figure(ofLayer, "moved"),
  };

  const settings = createSettings(head, root);
  const menu = createSaveMenu(head, root, save);

  return {
    menu,
    settings,
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
      place(slice.layer, slice.head);
      const { kind, heads } = unionOf(slice);
      ofHead.firstElementChild?.replaceWith(tagOf(ofHead, scopeIn("head", kind), "step"));
      for (const { ofHeads } of Object.values(figures)) ofHeads(kind, heads);
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
  const label = item.appendChild(element("span", "kv-name", name));
  const number = item.appendChild(element("span", "kv-number"));
  let about = "";
  return {
    number,
    /**
     * @param {Union} union
     * @param {number} heads
     */
    ofHeads(union, heads) {
      label.textContent = nameIn(name, union);
      explainNumber(item, `${meaningIn(name, union, heads)}${about}`, scopeIn(SCOPE_OF[name], union), "step");
    },
    /** @param {number} count */
    inBytes(count) {
      number.textContent = bytes(count);
      about = `: ${format(count)} bytes`;
    },
  };
}
