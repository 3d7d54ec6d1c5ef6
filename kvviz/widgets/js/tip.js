import { element } from "./dom.js";

/** @typedef {[term: string, value: string][]} Rows */
/** @typedef {ReturnType<typeof createTip>} Tip */

/**
 * A tooltip inside the root; its content is set as text.
 *
 * @param {HTMLElement} root
 */
export function createTip(root) {
  const tip = root.appendChild(element("div", "kv-tip"));
  tip.setAttribute("role", "tooltip");
  tip.hidden = true;
  return {
    /**
     * @param {Rows} rows
     * @param {MouseEvent} event
     */
    show(rows, event) {
      tip.replaceChildren();
      for (const [term, value] of rows) {
        tip.append(element("span", "kv-term", term), element("span", "kv-value", value));
      }
      tip.hidden = false;
      const box = root.getBoundingClientRect();
      const [x, y] = [event.clientX - box.left, event.clientY - box.top];
      tip.style.left = `${Math.max(4, Math.min(x + 14, box.width - tip.offsetWidth - 8))}px`;
      const below = y + 18 + tip.offsetHeight < box.height;
      tip.style.top = `${below ? y + 18 : Math.max(4, y - tip.offsetHeight - 10)}px`;
    },
    hide() {
      tip.hidden = true;
    },
  };
}
