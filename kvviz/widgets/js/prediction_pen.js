// A curve that is drawn with a pointer: its points are dragged, or a stroke sets all the points that it passes.

/** @import { Scales } from "./prediction_axes.js" */
/** @typedef {{ across: number, down: number, index: number }} Place of a pointer, with the nearest point */

export const REACH = 18; // pixels around a point in which it is dragged; elsewhere a stroke is drawn

/**
 * @param {SVGSVGElement} svg
 * @param {number[]} x
 * @param {object} options
 * @param {() => Scales | null} options.scales null if nothing can be drawn
 * @param {() => number[]} options.heights
 * @param {(index: number) => void} options.grab
 * @param {(index: number, value: number) => void} options.put
 * @param {(event: PointerEvent) => void} options.tell
 */
export function createPen(svg, x, { scales, heights, grab, put, tell }) {
  /**
   * @param {PointerEvent} event
   * @param {Scales} drawn
   * @returns {Place}
   */
  function placeOf(event, drawn) {
    const { left, top } = svg.getBoundingClientRect(), across = event.clientX - left, down = event.clientY - top;
    const apart = x.map((value) => Math.abs(drawn.x(value) - across));
    return { across, down, index: apart.indexOf(Math.min(...apart)) };
  }

  /**
   * Sets every point that a stroke passes, from one place of the pointer to the next.
   *
   * @param {Place} from
   * @param {Place} to
   * @param {Scales} drawn
   */
  function stroke(from, to, drawn) {
    const by = Math.sign(to.index - from.index) || 1;
    for (let index = from.index; index !== to.index; index += by) {
      const share = (drawn.x(x[index]) - from.across) / (to.across - from.across || 1);
      if (share > 0) put(index, drawn.value(from.down + (to.down - from.down) * Math.min(1, share)));
    }
    put(to.index, drawn.value(to.down));
  }

  let holds = false;

  svg.addEventListener("pointerdown", (event) => {
    const drawn = scales();
    if (!drawn || event.button) return;
    event.preventDefault();
    const start = placeOf(event, drawn), { index } = start;
    const near = Math.hypot(start.across - drawn.x(x[index]), start.down - drawn.y(heights()[index])) < REACH;
    holds = near;
    let last = start;
    const follow = (/** @type {PointerEvent} */ moved) => {
      const now = placeOf(moved, drawn);
      if (near) put(index, drawn.value(now.down));
      else stroke(last, now, drawn);
      last = now;
      tell(moved);
    };
    svg.setPointerCapture(event.pointerId);
    grab(index);
    if (!near) follow(event);
    svg.addEventListener("pointermove", follow);
    const end = () => {
      holds = false;
      svg.removeEventListener("pointermove", follow);
    };
    for (const name of ["pointerup", "pointercancel"]) svg.addEventListener(name, end, { once: true });
  });

  // A finger that holds a point must not scroll the page; browsers take `touch-action` of a whole drawing only.
  svg.addEventListener("touchstart", (event) => holds && event.preventDefault(), { passive: false });

  return {
    /**
     * @param {PointerEvent} event
     * @param {Scales} drawn
     */
    nearest: (event, drawn) => placeOf(event, drawn).index,
  };
}
