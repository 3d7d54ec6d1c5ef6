import { element, format } from "./strip.js";
import { download, pictureOf } from "./picture.js";
import { MEANING } from "./words.js";

// What the panels of all widgets have in common: pickers, buttons, titled sections, and the menu behind "Save".

// JupyterLab's own shortcuts leave the keys to us. It asks each element from the focused one up, whether it has a
// shortcut first, so that the focused one has to say so itself.
export function keepKeys(root) {
  const keep = (kept) => {
    kept.dataset.lmSuppressShortcuts = "true";
  };
  keep(root);
  root.addEventListener("focusin", (event) => keep(event.target));
}

// A labelled choice of `options`, values or [value, text] pairs; `changed` is told the value, a string.
export function picker(host, name, options, meaning, changed) {
  const label = host.appendChild(element("label", "kv-picker"));
  label.append(element("span", "", name));
  label.title = meaning;
  const select = label.appendChild(element("select"));
  select.setAttribute("aria-label", name);
  for (const option of options) {
    const [value, text] = Array.isArray(option) ? option : [option, option];
    select.append(new Option(text, value));
  }
  select.addEventListener("change", () => changed(select.value));
  return select;
}

export function button(host, text, meaning, pressed) {
  const made = host.appendChild(element("button", "", text));
  made.type = "button";
  made.title = meaning;
  made.setAttribute("aria-label", meaning);
  made.addEventListener("click", pressed);
  return made;
}

export function section(host, title, name, meaning) {
  const made = host.appendChild(element("section", name));
  made.appendChild(element("h3", "", title)).title = meaning;
  return made;
}

// Buttons one step back and on, what `others` adds beside them, and a slider over all steps; `go(by, to)` moves.
export function createStepSlider(bar, steps, go, others = () => {}) {
  const last = steps - 1;
  const buttons = bar.appendChild(element("span", "kv-buttons"));
  const back = button(buttons, "‹", "one step back (←)", () => go(-1));
  const on = button(buttons, "›", "one step on (→)", () => go(1));
  others(buttons);
  const label = bar.appendChild(element("label", "kv-step"));
  label.append(element("span", "", "step"));
  label.title = MEANING.step;
  const slider = label.appendChild(element("input"));
  Object.assign(slider, { type: "range", min: 0, max: last, step: 1 });
  slider.setAttribute("aria-label", "decode step");
  slider.addEventListener("input", () => go(0, Number(slider.value)));
  const count = label.appendChild(element("output"));
  count.style.minWidth = `${2 * format(last).length + 3}ch`;
  return (step, about = "") => {
    back.disabled = step === 0;
    on.disabled = step === last;
    slider.value = step;
    slider.setAttribute("value", step); // a picture is made from attributes
    slider.setAttribute("aria-valuetext", `step ${step} of ${last}${about}`);
    count.textContent = `${format(step)} / ${format(last)}`;
  };
}

// What the marks of a text mean, [classes, name, meaning] each, and a hint on their colours.
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

// A picture is made from attributes, so that each select has to say there what it shows.
export function markSelected(...selects) {
  for (const select of selects) for (const option of select.options) option.toggleAttribute("selected", option.selected);
}

// The menu: a picture of the panel, and the Python line that shows it. `save` is told to make the picture.
export function createSaveMenu(head, root, save) {
  const menu = head.appendChild(element("details", "kv-menu"));
  menu.append(element("summary", "", "Save"));
  menu.firstChild.title = "a picture of this panel, or the Python line that shows it";
  root.addEventListener("pointerdown", (event) => {
    if (!menu.contains(event.target)) menu.open = false;
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
      getSelection().selectAllChildren(line);
      said.textContent = "This page may not use the clipboard: the line is selected, copy it with Ctrl+C.";
    }
  }

  return { menu, line, said };
}

// Saves the panel `root` as `name`; `spare`, a canvas, where the browser does not draw the panel.
export async function savePicture({ menu, said }, root, css, name, spare, picture = () => pictureOf(root, css)) {
  menu.open = false;
  try {
    download(await picture(), name);
  } catch (error) {
    menu.open = true;
    const instead = spare ? "saved the map alone" : "take a screenshot of the page";
    said.textContent = `This browser does not draw the whole panel (${error.message}): ${instead}.`;
    if (spare) download(spare.toDataURL("image/png"), name);
  }
}
