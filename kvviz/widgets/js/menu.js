import { element, targetOf } from "./dom.js";
import { explain } from "./explain.js";

/**
 * A button that opens a sheet of rarely used controls; Escape or a press elsewhere in the widget closes it.
 *
 * @param {HTMLElement} head
 * @param {HTMLElement} root
 * @param {string} name
 * @param {string} meaning
 */
export function createMenu(head, root, name, meaning) {
  const menu = head.appendChild(element("details", "kv-menu"));
  const summary = menu.appendChild(explain(element("summary", "", name), meaning));
  root.addEventListener("pointerdown", (event) => {
    if (!menu.contains(targetOf(event))) menu.open = false;
  });
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    menu.open = false;
    summary.focus();
  });
  return { menu, sheet: menu.appendChild(element("div", "kv-sheet")) };
}

/**
 * The sheet of "Settings": what the map of heads shows, and what the text follows.
 *
 * @param {HTMLElement} head
 * @param {HTMLElement} root
 */
export function createSettings(head, root) {
  return createMenu(head, root, "Settings", "what the map of heads shows, and what the text follows").sheet;
}

/**
 * A labelled select in a sheet.
 *
 * @param {HTMLElement} sheet
 * @param {string} text
 * @param {string} label
 * @param {string} meaning
 */
export function setting(sheet, text, label, meaning) {
  const row = sheet.appendChild(explain(element("label", "kv-setting", text), meaning));
  const select = row.appendChild(element("select"));
  select.setAttribute("aria-label", label);
  select.setAttribute("aria-description", meaning);
  return select;
}
