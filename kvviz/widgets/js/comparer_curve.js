import { svgElement } from "./dom.js";

/** @import { Pointed } from "./tip.js" */

const WIDE = 100, TALL = 40, INSET = 2; // units of the drawing

/**
 * One number over the steps for every method, with one method in front; the current step is framed.
 *
 * @param {HTMLElement} host
 * @param {object} options
 * @param {string} options.label
 * @param {(step: number) => void} options.onPick
 * @param {(step: number | null, at: Pointed) => void} options.onHover
 */
export function createCurve(host, { label, onPick, onHover }) {
  const box = { viewBox: `0 0 ${WIDE} ${TALL}`, preserveAspectRatio: "none" };
  const svg = host.appendChild(svgElement("svg", { ...box, role: "img", "aria-label": label }));
  const fixed = { "vector-effect": "non-scaling-stroke" };
  const others = svg.appendChild(svgElement("path", { class: "kv-others", ...fixed }));
  const curve = svg.appendChild(svgElement("path", { class: "kv-own", ...fixed }));
  const frame = svg.appendChild(svgElement("rect", { class: "kv-now", y: 0.5, height: TALL - 1, ...fixed }));
  let steps = 1;

  const x = (/** @type {number} */ step) => ((step + 0.5) * WIDE) / steps;
  const stepAt = (/** @type {MouseEvent} */ event) => {
    const box = svg.getBoundingClientRect();
    return Math.max(0, Math.min(steps - 1, Math.floor(((event.clientX - box.left) / box.width) * steps)));
  };
  svg.addEventListener("click", (event) => onPick(stepAt(event)));
  svg.addEventListener("pointermove", (event) => onHover(stepAt(event), event));
  svg.addEventListener("pointerleave", (event) => onHover(null, event));

  return {
    /**
     * `all`: the values per step of every method; `front`: the index of this one; `top`: the value at the upper edge.
     *
     * @param {Float64Array[]} all
     * @param {number} front
     * @param {number} top
     */
    paint(all, front, top) {
      steps = all[front].length;
      const path = (/** @type {Float64Array} */ values) => {
        const points = Array.from(
          values,
          (value, step) => `${x(step).toFixed(2)} ${(TALL - INSET - (value / top) * (TALL - 2 * INSET)).toFixed(2)}`,
        );
        if (points.length === 1) points.push(`${WIDE} ${points[0].split(" ")[1]}`); // a point has no length
        return `M${points.join("L")}`;
      };
      others.setAttribute("d", all.filter((_, index) => index !== front).map(path).join(""));
      curve.setAttribute("d", path(all[front]));
      frame.setAttribute("width", String(WIDE / steps));
    },
    /** @param {number} step */
    frame(step) {
      frame.setAttribute("x", String((step * WIDE) / steps));
    },
  };
}
