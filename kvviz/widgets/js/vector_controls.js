import { svgElement } from "./dom.js";
import { ink, rounded } from "./vector_boxes.js";
import { attributesOfFont, drawWords } from "./vector_text.js";

// What a browser draws itself: form controls, canvases and curves.

/** @import { Drawing } from "./vector.js" */

const LOOKS = [
  "stroke-width",
  "stroke-dasharray",
  "stroke-linejoin",
  "stroke-linecap",
  "vector-effect",
  "text-anchor",
  "dominant-baseline",
  "opacity",
]; // deno-fmt-ignore
const THUMB = 7, TRACK = 5; // pixels: the radius of a slider's thumb, the height of its track

/**
 * @param {Drawing} drawing
 * @param {SVGElement} into
 * @param {HTMLCanvasElement} canvas
 * @param {DOMRect} box
 * @param {CSSStyleDeclaration} style
 */
export function drawCanvas(drawing, into, canvas, box, style) {
  if (!canvas.width || !canvas.height) return;
  const place = rounded({ x: box.left - drawing.left, y: box.top - drawing.top, width: box.width, height: box.height });
  const image = svgElement("image", { ...place, preserveAspectRatio: "none", href: canvas.toDataURL("image/png") });
  if (style.imageRendering !== "auto") image.style.imageRendering = style.imageRendering;
  into.append(image);
}

/**
 * A copy of an SVG of the widget, with its looks as attributes.
 *
 * @param {Drawing} drawing
 * @param {SVGElement} into
 * @param {SVGSVGElement} svg
 * @param {DOMRect} box
 */
export function drawCurves(drawing, into, svg, box) {
  const copy = /** @type {SVGSVGElement} */ (svg.cloneNode(true));
  const copies = copy.querySelectorAll("*");
  svg.querySelectorAll("*").forEach((node, index) => {
    const style = getComputedStyle(node), drawn = copies[index];
    if (style.display === "none") return drawn.remove();
    for (const name of LOOKS) {
      const value = style.getPropertyValue(name);
      if (value && !["none", "auto", "normal"].includes(value)) drawn.setAttribute(name, value.replaceAll("px", ""));
    }
    for (const kind of /** @type {const} */ (["fill", "stroke"])) {
      const colour = style.getPropertyValue(kind);
      for (const [name, value] of Object.entries(colour === "none" ? { [kind]: "none" } : ink(drawing, kind, colour))) {
        drawn.setAttribute(name, String(value));
      }
    }
    if (node.tagName === "text" || node.tagName === "tspan") {
      for (const [name, value] of Object.entries(attributesOfFont(drawing, style))) {
        drawn.setAttribute(name, String(value));
      }
    }
    drawn.removeAttribute("class");
  });
  if (copy.getAttribute("preserveAspectRatio") === "none") stretch(copy, box);
  for (const name of ["class", "style", "role", "aria-label", "tabindex"]) copy.removeAttribute(name);
  const place = rounded({ x: box.left - drawing.left, y: box.top - drawing.top, width: box.width, height: box.height });
  for (const [name, value] of Object.entries(place)) copy.setAttribute(name, String(value));
  into.append(copy);
}

/**
 * Stretches the paths and boxes of an SVG to its size. Not every program keeps the width of strokes where a browser
 * stretches the whole ("non-scaling-stroke").
 *
 * @param {SVGSVGElement} svg
 * @param {DOMRect} box
 */
function stretch(svg, box) {
  const { width, height } = svg.viewBox.baseVal, scales = [box.width / width, box.height / height];
  for (const node of svg.querySelectorAll("*")) {
    node.removeAttribute("vector-effect");
    let at = 0;
    const path = node.getAttribute("d")?.replace(
      /-?[\d.]+/g,
      (number) => (Number(number) * scales[at++ % 2]).toFixed(2),
    );
    if (path) node.setAttribute("d", path);
    for (const [name, side] of Object.entries({ x: 0, width: 0, y: 1, height: 1 })) {
      if (node.hasAttribute(name)) node.setAttribute(name, (Number(node.getAttribute(name)) * scales[side]).toFixed(2));
    }
  }
  svg.removeAttribute("viewBox");
}

/**
 * @param {Drawing} drawing
 * @param {SVGElement} into
 * @param {HTMLSelectElement} select
 * @param {DOMRect} box
 * @param {CSSStyleDeclaration} style
 */
export function drawSelect(drawing, into, select, box, style) {
  const middle = box.top + box.height / 2, left = box.left + parseFloat(style.paddingLeft) + 1;
  drawWords(drawing, into, select.selectedOptions[0]?.text ?? "", { left, middle }, style);
  const [x, y] = [box.right - drawing.left - 15, middle - drawing.top - 2];
  const line = { fill: "none", "stroke-width": 1.5, ...ink(drawing, "stroke", style.color) };
  into.append(svgElement("path", { d: `M${x.toFixed(1)} ${y.toFixed(1)}l4 4l4 -4`, ...line }));
}

/**
 * @param {Drawing} drawing
 * @param {SVGElement} into
 * @param {HTMLInputElement} input
 * @param {DOMRect} box
 * @param {CSSStyleDeclaration} style
 */
export function drawInput(drawing, into, input, box, style) {
  const middle = box.top + box.height / 2, [x, y] = [box.left - drawing.left, middle - drawing.top];
  const muted = ink(drawing, "fill", style.getPropertyValue("--kv-line"));
  const accent = ink(drawing, "fill", input.disabled ? style.color : style.getPropertyValue("--kv-brand"));
  if (input.type === "range") {
    const low = Number(input.min || 0), high = Number(input.max || 100);
    const reached = THUMB + ((Number(input.value) - low) / Math.max(high - low, 1e-9)) * (box.width - 2 * THUMB);
    const track = { x, y: y - TRACK / 2, height: TRACK, rx: TRACK / 2 };
    into.append(
      svgElement("rect", { ...rounded({ ...track, width: box.width }), ...muted }),
      svgElement("rect", { ...rounded({ ...track, width: reached }), ...accent }),
      svgElement("circle", { ...rounded({ cx: x + reached, cy: y, r: THUMB }), ...accent }),
    );
  } else if (input.type === "checkbox" || input.type === "radio") {
    const size = { x: x + 0.5, y: y - box.height / 2 + 0.5, width: box.width - 1, height: box.height - 1 };
    const edge = ink(drawing, "stroke", style.color), round = input.type === "radio" ? box.width / 2 : 2;
    into.append(svgElement("rect", { ...rounded({ ...size, rx: round }), fill: "none", ...edge }));
    if (!input.checked) return;
    const inner = { x: x + 3, y: y - box.height / 2 + 3, width: box.width - 6, height: box.height - 6, rx: round };
    into.append(svgElement("rect", { ...rounded(inner), ...accent }));
  } else {
    const left = box.left + parseFloat(style.borderLeftWidth) + parseFloat(style.paddingLeft);
    drawWords(drawing, into, input.value || input.placeholder, { left, middle }, style);
  }
}
