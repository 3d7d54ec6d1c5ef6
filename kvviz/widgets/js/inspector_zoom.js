// Zoom and position of a map: by the wheel with Ctrl, by keys, by buttons, and by dragging.
import { button } from "./panel.js";

const MOST = 40, FACTOR = 1.5, STILL = 4; // CSS pixels that a click may move

/** @typedef {ReturnType<typeof createZoom>} Zoom */

/**
 * The wheel alone scrolls the page, as everywhere; with Ctrl (or Cmd, or a pinch of a touchpad) it zooms at the pointer.
 *
 * @param {HTMLElement} host
 * @param {() => void} changed
 */
export function createZoom(host, changed) {
  let scale = 1, left = 0, top = 0;
  /** @type {{ x: number, y: number, left: number, top: number, id: number } | null} */
  let drag = null;
  let dragged = false;
  const buttons = host.appendChild(document.createElement("div"));
  buttons.className = "kv-buttons kv-zoom";
  button(buttons, "+", "zoom in (+, or Ctrl and the wheel)", () => by(FACTOR));
  const out = button(buttons, "−", "zoom out (−)", () => by(1 / FACTOR));
  const all = button(buttons, "⤢", "show all keys (0)", reset);

  function update() {
    const width = host.clientWidth, height = host.clientHeight;
    left = Math.min(0, Math.max(width * (1 - scale), left));
    top = Math.min(0, Math.max(height * (1 - scale), top));
    out.disabled = all.disabled = scale === 1;
    host.style.touchAction = scale > 1 ? "none" : ""; // a finger moves the map, and otherwise the page
    host.dataset.zoom = scale.toFixed(2);
    changed();
  }

  /**
   * @param {number} factor
   * @param {number} [x]
   * @param {number} [y]
   */
  function by(factor, x = host.clientWidth / 2, y = host.clientHeight / 2) {
    const next = Math.min(MOST, Math.max(1, scale * factor)), grown = next / scale;
    [left, top, scale] = [x - grown * (x - left), y - grown * (y - top), next];
    update();
  }

  function reset() {
    [scale, left, top] = [1, 0, 0];
    update();
  }

  host.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const box = host.getBoundingClientRect();
    by(Math.exp(-event.deltaY / 300), event.clientX - box.left, event.clientY - box.top);
  }, { passive: false });
  host.addEventListener("pointerdown", (event) => {
    dragged = false;
    const onButton = event.target instanceof Node && buttons.contains(event.target);
    if (event.button !== 0 || scale === 1 || onButton) return;
    drag = { x: event.clientX, y: event.clientY, left, top, id: event.pointerId };
  });
  host.addEventListener("pointermove", (event) => {
    if (!drag || event.pointerId !== drag.id) return;
    const [right, down] = [event.clientX - drag.x, event.clientY - drag.y];
    if (!dragged && Math.hypot(right, down) < STILL) return;
    if (!dragged) host.setPointerCapture(drag.id);
    dragged = true;
    [left, top] = [drag.left + right, drag.top + down];
    update();
  });
  for (const end of ["pointerup", "pointercancel"]) host.addEventListener(end, () => (drag = null));

  return {
    buttons,
    by,
    reset,
    update,
    /** Whether the pointer moved the map since it was pressed: its click picks nothing. */
    moved: () => dragged,
    /**
     * From the place on the whole map to that on the zoomed one, in pixels.
     *
     * @type {(place: [x: number, y: number]) => [x: number, y: number]}
     */
    at: ([x, y]) => [left + scale * x, top + scale * y],
    /**
     * Moves the map so that a place of the zoomed map is in sight.
     *
     * @param {[x: number, y: number]} place
     */
    reveal([x, y]) {
      const width = host.clientWidth, height = host.clientHeight;
      if (x >= 0 && y >= 0 && x <= width && y <= height) return;
      [left, top] = [left + width / 2 - x, top + height / 2 - y];
      update();
    },
    /** @param {string} key */
    press(key) {
      if (key === "+" || key === "=") by(FACTOR);
      else if (key === "-") by(1 / FACTOR);
      else if (key === "0") reset();
      else return false;
      return true;
    },
  };
}
