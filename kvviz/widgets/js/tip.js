import { element } from "./dom.js";

/** @typedef {[term: string, value: string][]} Rows */
/**
 * Where something is pointed at, in CSS pixels of the window. If a key did it, what is shown is `spoken` too.
 *
 * @typedef {{ clientX: number, clientY: number, spoken?: boolean }} Pointed
 */
/** @typedef {ReturnType<typeof createTip>} Tip */

/**
 * A tooltip inside the root, and a text for screen readers, who cannot point; their content is set as text.
 * A tip that a finger opened stays until something else is touched.
 *
 * @param {HTMLElement} root
 */
export function createTip(root) {
  const tip = root.appendChild(element("div", "kv-tip"));
  tip.setAttribute("role", "tooltip");
  tip.hidden = true;
  const spoken = root.appendChild(element("p", "kv-spoken"));
  spoken.setAttribute("role", "status");
  document.addEventListener("pointerdown", elsewhere);

  /** @param {PointerEvent} event */
  function elsewhere(event) {
    if (!root.isConnected) document.removeEventListener("pointerdown", elsewhere);
    else if (event.pointerType === "touch") tip.hidden = true;
  }

  return {
    /**
     * @param {Rows} rows
     * @param {Pointed} at
     */
    show(rows, at) {
      if (at.spoken) spoken.textContent = rows.map(([term, value]) => `${term} ${value}`).join(", ");
      tip.replaceChildren();
      for (const [term, value] of rows) {
        tip.append(element("span", "kv-term", term), element("span", "kv-value", value));
      }
      tip.hidden = false;
      const box = root.getBoundingClientRect();
      const [x, y] = [at.clientX - box.left, at.clientY - box.top];
      tip.style.left = `${Math.max(4, Math.min(x + 14, box.width - tip.offsetWidth - 8))}px`;
      const below = y + 18 + tip.offsetHeight < box.height;
      tip.style.top = `${below ? y + 18 : Math.max(4, y - tip.offsetHeight - 10)}px`;
    },
    hide() {
      tip.hidden = true;
    },
  };
}
