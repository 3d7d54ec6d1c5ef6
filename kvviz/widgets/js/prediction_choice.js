import { element } from "./dom.js";

/** @import { Asked, Change } from "./prediction.js" */
/** @typedef {{ kind: "choice", text: string, measured: string, options: string[] }} ChoiceQuestion */

/**
 * Radio buttons; afterwards the option that was measured has a mark.
 *
 * @param {HTMLElement} host
 * @param {ChoiceQuestion} question
 * @param {Change} changed
 * @returns {Asked}
 */
export function createChoice(host, { text, measured, options }, changed) {
  const group = host.appendChild(element("div", "kv-options"));
  group.setAttribute("role", "radiogroup");
  group.setAttribute("aria-label", text);
  const name = `kv-choice-${Math.random().toString(36).slice(2)}`; // other widgets of the page have theirs
  const rows = options.map((option) => {
    const row = group.appendChild(element("label", "kv-option"));
    const button = row.appendChild(element("input"));
    Object.assign(button, { type: "radio", name });
    row.append(element("span", "", option));
    button.addEventListener("change", () => {
      said = option;
      paint();
      changed(option, option);
    });
    return { option, row, button };
  });
  /** @type {string | undefined} */
  let said;

  function paint() {
    for (const { option, button } of rows) {
      button.checked = option === said;
      button.toggleAttribute("checked", button.checked); // screenshots show attributes
    }
    host.toggleAttribute("data-open", said === undefined);
  }
  paint();
  return {
    set(value) {
      said = value;
      paint();
    },
    lock(locked) {
      for (const { button } of rows) button.disabled = locked;
    },
    reveal() {
      const right = rows.find(({ option }) => option === measured)?.row;
      right?.setAttribute("data-measured", "");
      right?.append(element("span", "kv-tag", "◆ measured"));
      return said === measured ? `You said ${said}, and that was measured.` : `You said ${said}, measured ${measured}.`;
    },
    hide() {
      for (const { row } of rows) {
        row.removeAttribute("data-measured");
        row.querySelector(".kv-tag")?.remove();
      }
    },
  };
}
