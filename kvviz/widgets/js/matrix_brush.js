import { element } from "./dom.js";

const FIRST_MOVE = 5; // CSS pixels after which a press is a drag

/** @typedef {ReturnType<typeof createBrush>} Brush */

/**
 * Columns of a map chosen by dragging over them. A finger that moves up or down scrolls the page.
 *
 * @param {HTMLElement} canvas
 * @param {HTMLElement} inner
 * @param {object} options
 * @param {(event: PointerEvent) => number} options.columnAt
 * @param {() => number} options.columns
 * @param {(from: number, until: number) => void} options.choosing columns, while the pointer moves
 * @param {(from: number, until: number) => void} options.chosen
 * @param {() => void} options.cancelled
 */
export function createBrush(canvas, inner, { columnAt, columns, choosing, chosen, cancelled }) {
  const box = inner.appendChild(element("div", "kv-brush"));
  box.hidden = true;
  canvas.style.touchAction = "pan-y pinch-zoom";
  /** @type {{ x: number, column: number } | null} */
  let pressed = null;
  let dragged = false;

  /**
   * Frames the columns between two, both included.
   *
   * @param {number} one
   * @param {number} other
   */
  function show(one, other) {
    const from = Math.min(one, other), until = Math.max(one, other) + 1;
    box.hidden = false;
    box.style.left = `${(100 * from) / columns()}%`;
    box.style.width = `${(100 * (until - from)) / columns()}%`;
    choosing(from, until);
  }

  function hide() {
    box.hidden = true;
    pressed = null;
  }

  function cancel() {
    if (!box.hidden) cancelled();
    hide();
  }

  canvas.addEventListener("pointerdown", (event) => {
    dragged = false;
    if (event.isPrimary && event.button === 0) pressed = { x: event.clientX, column: columnAt(event) };
    else cancel(); // a second finger
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!pressed || !event.isPrimary) return;
    if (!dragged && Math.abs(event.clientX - pressed.x) < FIRST_MOVE) return;
    if (!dragged) canvas.setPointerCapture(event.pointerId);
    dragged = true;
    show(pressed.column, columnAt(event));
  });
  canvas.addEventListener("pointerup", (event) => {
    const start = pressed, end = columnAt(event);
    hide();
    if (start && dragged) chosen(Math.min(start.column, end), Math.max(start.column, end) + 1);
  });
  canvas.addEventListener("pointercancel", cancel); // the finger scrolls the page
  return {
    show,
    hide,
    get dragging() {
      return pressed !== null && dragged;
    },
    /** Whether the last press was a drag, whose click picks nothing. */
    get dragged() {
      return dragged;
    },
    get shown() {
      return !box.hidden;
    },
  };
}
