import { element } from "./dom.js";
import { explainAll } from "./explain.js";

/** @typedef {[term: string, value: string][]} Rows */
/**
 * Where something is pointed at, in CSS pixels of the window. If a key did it, what is shown is `spoken` too.
 *
 * @typedef {{ clientX: number, clientY: number, spoken?: boolean }} Pointed
 */
/** @typedef {ReturnType<typeof createTip>} Tip */

/**
 * A tooltip inside the root, and a text for screen readers, who cannot point; their content is set as text.
 * A tip that a finger opened stays until something else is touched; Escape closes any tip. The tip also shows what the
 * nodes of `explain` mean.
 *
 * @param {HTMLElement} root
 */
export function createTip(root) {
  const tip = root.appendChild(element("div", "kv-tip"));
  tip.setAttribute("role", "tooltip");
  tip.hidden = true;
  const spoken = root.appendChild(element("p", "kv-spoken"));
  spoken.setAttribute("role", "status");
  let explains = false;
  document.addEventListener("pointerdown", elsewhere);
  document.addEventListener("keydown", escape, true);

  /** @param {PointerEvent} event */
  function elsewhere(event) {
    if (!root.isConnected) document.removeEventListener("pointerdown", elsewhere);
    else if (event.pointerType === "touch") tip.hidden = true;
  }

  /** @param {KeyboardEvent} event */
  function escape(event) {
    if (!root.isConnected) document.removeEventListener("keydown", escape, true);
    else if (event.key === "Escape" && !tip.hidden) {
      tip.hidden = true;
      if (!explains) event.stopPropagation(); // the next Escape is for the map or text below it
    }
  }

  /**
   * @param {Node[]} content
   * @param {Pointed} at
   */
  function place(content, at) {
    tip.replaceChildren(...content);
    tip.hidden = false;
    const box = root.getBoundingClientRect();
    const [x, y] = [at.clientX - box.left, at.clientY - box.top];
    tip.style.left = `${Math.max(4, Math.min(x + 14, box.width - tip.offsetWidth - 8))}px`;
    const [top, end] = [Math.max(0, -box.top), Math.min(box.height, innerHeight - box.top)]; // what the window shows
    const below = y + 18 + tip.offsetHeight < end;
    tip.style.top = `${below ? y + 18 : Math.max(top + 4, y - tip.offsetHeight - 10)}px`;
  }

  explainAll(root, (node, at, said = "") => {
    if (!node || !at) {
      if (explains) tip.hidden = true;
      return;
    }
    explains = true;
    if (said) spoken.textContent = said;
    place([element("span", "kv-meaning", node.dataset.meaning)], at);
  });

  return {
    /**
     * @param {Rows} rows
     * @param {Pointed} at
     */
    show(rows, at) {
      explains = false;
      if (at.spoken) spoken.textContent = rows.map(([term, value]) => `${term} ${value}`).join(", ");
      const cells = rows.flatMap(([term, value]) => [
        element("span", "kv-term", term),
        element("span", "kv-value", value),
      ]);
      place(cells, at);
    },
    hide() {
      tip.hidden = true;
    },
  };
}
