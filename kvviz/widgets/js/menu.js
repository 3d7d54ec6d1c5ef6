import { element, targetOf } from "./dom.js";
import { explain } from "./explain.js";

const MOVES = new Map([["ArrowDown", 1], ["ArrowUp", -1], ["Home", -Infinity], ["End", Infinity]]);

/**
 * A button that opens a sheet of rarely used controls; Escape or a press elsewhere in the widget closes it. ↑, ↓, Home and
 * End go to the buttons of the sheet.
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
  const sheet = menu.appendChild(element("div", "kv-sheet"));
  menu.addEventListener("keydown", (event) => {
    const by = MOVES.get(event.key);
    const buttons = /** @type {HTMLElement[]} */ ([...sheet.querySelectorAll("button:enabled")]);
    if (event.key === "Escape" && menu.open) close();
    else if (by && menu.open && buttons.length && targetOf(event).tagName !== "SELECT") {
      const at = buttons.findIndex((node) => node === document.activeElement);
      buttons[Math.max(0, Math.min(buttons.length - 1, at + by))].focus();
    } else return;
    event.preventDefault();
    event.stopPropagation(); // the widget's own keys change the step
  });

  /** Closes the sheet; if the focus was in it, the button gets it. */
  function close() {
    if (menu.contains(document.activeElement)) summary.focus();
    menu.open = false;
  }

  return { menu, sheet, close };
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
