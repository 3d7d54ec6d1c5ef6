import { element, format, targetOf } from "./dom.js";
import { download, pictureOf } from "./picture.js";
import { MEANING } from "./words.js";

// What the panels of all widgets have in common: pickers, buttons, titled sections, and the menu behind "Save".

/**
 * JupyterLab's own shortcuts leave the keys to us. It asks each element from the focused one up, whether it has a
 * shortcut first, so that the focused one has to say so itself.
 *
 * @param {HTMLElement} root
 */
export function keepKeys(root) {
  const keep = (/** @type {HTMLElement} */ kept) => {
    kept.dataset.lmSuppressShortcuts = "true";
  };
  keep(root);
  root.addEventListener("focusin", (event) => keep(targetOf(event)));
}

/**
 * A labelled choice of `options`, values or [value, text] pairs; `changed` is told the value, a string.
 *
 * @param {HTMLElement} host
 * @param {string} name
 * @param {(string | number | [value: string, text: string])[]} options
 * @param {string} meaning
 * @param {(value: string) => void} changed
 */
export function picker(host, name, options, meaning, changed) {
  const label = host.appendChild(element("label", "kv-picker"));
  label.append(element("span", "", name));
  label.title = meaning;
  const select = label.appendChild(element("select"));
  select.setAttribute("aria-label", name);
  for (const option of options) {
    const [value, text] = Array.isArray(option) ? option : [String(option), String(option)];
    select.append(new Option(text, value));
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
  const made = host.appendChild(element("button", "", text));
  made.type = "button";
  made.title = meaning;
  made.setAttribute("aria-label", meaning);
  made.addEventListener("click", () => pressed());
  return made;
}

/**
 * @param {HTMLElement} host
 * @param {string} title
 * @param {string} name
 * @param {string} meaning
 */
export function section(host, title, name, meaning) {
  const made = host.appendChild(element("section", name));
  made.appendChild(element("h3", "", title)).title = meaning;
  return made;
}

/**
 * A titled section with a panel in it.
 *
 * @param {HTMLElement} host
 * @param {string} title
 * @param {string} name
 * @param {string} meaning
 */
export function titledPanel(host, title, name, meaning) {
  const made = section(host, title, name, meaning);
  return { heading: made.children[0], panel: made.appendChild(element("div", "kv-panel")) };
}

/** @typedef {(by: number, to?: number) => void} Go */

/**
 * What the keys pass to `go`.
 *
 * @param {number} steps
 * @returns {Record<string, [by: number, to?: number] | undefined>}
 */
export function stepKeys(steps) {
  return { ArrowLeft: [-1], ArrowRight: [1], Home: [0, 0], End: [0, steps - 1] };
}

/**
 * Buttons one step back and on, and a slider over all steps; `go(by, to)` moves.
 *
 * @param {HTMLElement} bar
 * @param {number} steps
 * @param {Go} go
 */
export function createStepSlider(bar, steps, go) {
  const last = steps - 1;
  const buttons = bar.appendChild(element("span", "kv-buttons"));
  const back = button(buttons, "‹", "one step back (←)", () => go(-1));
  const on = button(buttons, "›", "one step on (→)", () => go(1));
  const label = bar.appendChild(element("label", "kv-step"));
  label.append(element("span", "", "step"));
  label.title = MEANING.step;
  const slider = label.appendChild(element("input"));
  Object.assign(slider, { type: "range", min: 0, max: last, step: 1 });
  slider.setAttribute("aria-label", "decode step");
  slider.addEventListener("input", () => go(0, Number(slider.value)));
  const count = label.appendChild(element("output"));
  count.style.minWidth = `${2 * format(last).length + 3}ch`;
  return {
    buttons,
    /** @param {number} step */
    show(step, about = "") {
      back.disabled = step === 0;
      on.disabled = step === last;
      slider.value = String(step);
      slider.setAttribute("value", slider.value); // a picture is made from attributes
      slider.setAttribute("aria-valuetext", `step ${step} of ${last}${about}`);
      count.textContent = `${format(step)} / ${format(last)}`;
    },
  };
}

/** @typedef {[classes: string, name: string, meaning?: string][]} Marks */

/**
 * What the marks of a text mean, and a hint on their colours.
 *
 * @param {Marks} marks
 * @param {string} hint
 * @param {string} hintMeaning
 */
export function createLegend(marks, hint, hintMeaning) {
  const host = element("p", "kv-legend");
  for (const [mark, text, meaning = ""] of marks) {
    const entry = host.appendChild(element("span", "kv-entry"));
    const sample = entry.appendChild(element("span", mark, "text"));
    if (mark !== "kv-missed") sample.style.cssText = `--kv-h:250;--kv-a:0.6;${mark.includes("kept") ? "--kv-c:0" : ""}`;
    entry.append(element("span", "", text));
    entry.title = meaning;
  }
  host.appendChild(element("span", "kv-entry", hint)).title = hintMeaning;
  return host;
}

/**
 * A picture is made from attributes, so that each select has to say there what it shows.
 *
 * @param {HTMLSelectElement[]} selects
 */
export function markSelected(...selects) {
  for (const select of selects) {
    for (const option of select.options) option.toggleAttribute("selected", option.selected);
  }
}

/** @typedef {ReturnType<typeof createSaveMenu>} SaveMenu */

/**
 * The menu: a picture of the panel, and the Python line that shows it. `save` is told to make the picture.
 *
 * @param {HTMLElement} head
 * @param {HTMLElement} root
 * @param {() => void} save
 */
export function createSaveMenu(head, root, save) {
  const menu = head.appendChild(element("details", "kv-menu"));
  menu.appendChild(element("summary", "", "Save")).title = "a picture of this panel, or the Python line that shows it";
  root.addEventListener("pointerdown", (event) => {
    if (!menu.contains(targetOf(event))) menu.open = false;
  });
  menu.addEventListener("keydown", (event) => {
    if (event.key === "Escape") menu.open = false;
  });
  const sheet = menu.appendChild(element("div", "kv-sheet"));
  button(sheet, "Screenshot (PNG)", "saves this panel as a picture", save);
  button(sheet, "Copy the call that made this", "copies the Python line that opens this view", copy);
  const line = sheet.appendChild(element("code"));
  const said = sheet.appendChild(element("p", "kv-said"));
  said.setAttribute("role", "status");

  async function copy() {
    try {
      await navigator.clipboard.writeText(line.textContent);
      said.textContent = "Copied.";
    } catch {
      getSelection()?.selectAllChildren(line);
      said.textContent = "This page may not use the clipboard: the line is selected, copy it with Ctrl+C.";
    }
  }

  return { menu, line, said };
}

/**
 * Saves the panel `root` as `name`; `spare`, a canvas, where the browser does not draw the panel.
 *
 * @param {SaveMenu} menu
 * @param {HTMLElement} root
 * @param {string} css
 * @param {string} name
 * @param {HTMLCanvasElement | null} spare
 */
export async function savePicture({ menu, said }, root, css, name, spare, picture = () => pictureOf(root, css)) {
  menu.open = false;
  try {
    download(await picture(), name);
  } catch (error) {
    menu.open = true;
    const instead = spare ? "saved the map alone" : "take a screenshot of the page";
    said.textContent = `This browser does not draw the whole panel (${
      /** @type {Error} */ (error).message
    }): ${instead}.`;
    if (spare) download(spare.toDataURL("image/png"), name);
  }
}
