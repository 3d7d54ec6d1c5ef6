import { element, format, targetOf } from "./dom.js";
import { explain, explainTogether } from "./explain.js";
import { MEANING } from "./words.js";

// Parts of all widgets: pickers, buttons, titled sections, the step slider and legends.

/** @typedef {string | number | [value: string, text: string, disabled?: "disabled"]} Option */

/**
 * Keeps JupyterLab's shortcuts from taking the widget's keys. JupyterLab first asks the focused element, then its
 * parents, whether they have a shortcut, so the focused element itself has to suppress it.
 *
 * @param {HTMLElement} root
 */
export function keepKeys(root) {
  const suppress = (/** @type {HTMLElement} */ node) => {
    node.dataset.lmSuppressShortcuts = "true";
  };
  suppress(root);
  root.addEventListener("focusin", (event) => suppress(targetOf(event)));
}

/**
 * A labelled select of `options`, which are values or [value, text] pairs; `changed` gets the value as a string.
 *
 * @param {HTMLElement} host
 * @param {string} name
 * @param {Option[]} options
 * @param {string} meaning
 * @param {(value: string) => void} changed
 */
export function picker(host, name, options, meaning, changed) {
  const label = host.appendChild(element("label", "kv-picker"));
  label.append(element("span", "", name));
  explain(label, meaning);
  const select = label.appendChild(element("select"));
  select.setAttribute("aria-label", name);
  select.setAttribute("aria-description", meaning);
  for (const option of options) {
    const [value, text, disabled] = Array.isArray(option) ? option : [String(option), String(option)];
    select.appendChild(new Option(text, value)).disabled = disabled === "disabled";
  }
  select.addEventListener("change", () => changed(select.value));
  return select;
}

/**
 * @param {HTMLElement} host
 * @param {string} text
 * @param {string} meaning
 * @param {() => void} pressed
 */
export function button(host, text, meaning, pressed) {
  const node = host.appendChild(element("button", "", text));
  node.type = "button";
  explain(node, meaning).setAttribute("aria-label", meaning);
  node.addEventListener("click", () => pressed());
  return node;
}

/**
 * @param {HTMLElement} host
 * @param {string} title
 * @param {string} name
 * @param {string} meaning
 */
export function section(host, title, name, meaning) {
  const node = host.appendChild(element("section", name));
  explain(node.appendChild(element("h3", "", title)), meaning);
  return node;
}

/**
 * A titled section that contains a panel.
 *
 * @param {HTMLElement} host
 * @param {string} title
 * @param {string} name
 * @param {string} meaning
 */
export function titledPanel(host, title, name, meaning) {
  const node = section(host, title, name, meaning);
  return {
    heading: /** @type {HTMLElement} */ (node.children[0]),
    panel: node.appendChild(element("div", "kv-panel")),
  };
}

/** @typedef {(by: number, to?: number) => void} Go */

/**
 * The arguments of `go` for each key.
 *
 * @param {number} steps
 * @returns {Record<string, [by: number, to?: number] | undefined>}
 */
export function stepKeys(steps) {
  return { ArrowLeft: [-1], ArrowRight: [1], Home: [0, 0], End: [0, steps - 1] };
}

/**
 * Buttons for the previous and the next step, and a slider over all steps; `go(by, to)` changes the step.
 *
 * @param {HTMLElement} bar
 * @param {number} steps
 * @param {Go} go
 */
export function createStepSlider(bar, steps, go) {
  const last = steps - 1;
  const buttons = bar.appendChild(element("span", "kv-buttons"));
  const previous = button(buttons, "‹", "previous step (←)", () => go(-1));
  const next = button(buttons, "›", "next step (→)", () => go(1));
  const label = bar.appendChild(element("label", "kv-step"));
  label.append(element("span", "", "step"));
  explain(label, MEANING.step);
  const slider = label.appendChild(element("input"));
  Object.assign(slider, { type: "range", min: 0, max: last, step: 1 });
  slider.setAttribute("aria-label", "decode step");
  slider.setAttribute("aria-description", MEANING.step);
  slider.addEventListener("input", () => go(0, Number(slider.value)));
  const count = label.appendChild(element("output"));
  count.style.minWidth = `${2 * format(last).length + 3}ch`;
  return {
    buttons,
    /** @param {number} step */
    show(step, about = "") {
      previous.disabled = step === 0;
      next.disabled = step === last;
      slider.value = String(step);
      slider.setAttribute("value", slider.value); // screenshots show attributes
      slider.setAttribute("aria-valuetext", `step ${step} of ${last}${about}`);
      count.textContent = `${format(step)} / ${format(last)}`;
    },
  };
}

/** @typedef {[classes: string, name: string, meaning: string][]} Marks */

/**
 * A legend of the marks of a text, with a hint about their colours.
 *
 * @param {Marks} marks
 * @param {string} hint
 * @param {string} hintMeaning
 */
export function createLegend(marks, hint, hintMeaning) {
  const host = explainTogether(element("p", "kv-legend"), "legend of the marks");
  for (const [mark, text, meaning] of marks) {
    const entry = host.appendChild(element("span", "kv-entry"));
    const sample = entry.appendChild(element("span", mark, "text"));
    if (mark !== "kv-missed") sample.style.cssText = `--kv-h:250;--kv-a:0.6;${mark.includes("kept") ? "--kv-c:0" : ""}`;
    entry.append(element("span", "", text));
    explain(entry, meaning);
  }
  explain(host.appendChild(element("span", "kv-entry", hint)), hintMeaning);
  return host;
}

/**
 * Marks the selected options with an attribute, since screenshots show attributes.
 *
 * @param {HTMLSelectElement[]} selects
 */
export function markSelected(...selects) {
  for (const select of selects) {
    for (const option of select.options) option.toggleAttribute("selected", option.selected);
  }
}
