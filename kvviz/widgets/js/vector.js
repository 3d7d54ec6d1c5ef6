// A drawing of an element as SVG: boxes, text and curves as vectors, canvases as pictures. It is what the browser laid
// out, read from the document. Kept libraries draw HTML through <foreignObject>, which only browsers show; dom-to-svg,
// unchanged since 2022, has 98 kB and draws neither hatches, dots, form controls nor oklch().
import { svgElement } from "./dom.js";
import { colourReader, paintBox, underline } from "./vector_boxes.js";
import { drawCanvas, drawCurves, drawInput, drawSelect } from "./vector_controls.js";
import { drawText, drawWords, metricsOf, withGeneric } from "./vector_text.js";

/** @typedef {{ left: number, top: number, right: number, bottom: number }} Box */
/**
 * Where the drawing goes: its origin on the page, its definitions, and outlines, which are above all boxes.
 *
 * @typedef {object} Drawing
 * @property {number} left
 * @property {number} top
 * @property {SVGElement} defs
 * @property {SVGElement} outlines
 * @property {Map<string, string>} patterns
 * @property {string} family
 * @property {(colour: string) => { colour: string, alpha: number }} read
 */

const TYPED = new Set(["number", "text", "search"]);
const LEFT_OUT = ".kv-tip, .kv-sheet, .kv-menu, .kv-cross";

/**
 * The root as SVG, with its width and height in CSS pixels. It is complete when this returns.
 *
 * @param {HTMLElement} root
 * @param {string} [about] what made it, as the description
 */
export function vectorOf(root, about = "") {
  const box = root.getBoundingClientRect(), style = getComputedStyle(root);
  const width = Math.ceil(box.width), height = Math.ceil(box.height);
  const svg = svgElement("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
  const family = withGeneric(style.fontFamily);
  svg.setAttribute("font-family", family);
  svg.style.fontVariantNumeric = style.fontVariantNumeric;
  svg.append(
    svgElement("title", {}, root.querySelector("h2")?.textContent ?? ""),
    svgElement("desc", {}, about),
  );
  const defs = svg.appendChild(svgElement("defs", {}));
  /** @type {Drawing} */
  const drawing = {
    left: box.left,
    top: box.top,
    defs,
    outlines: svgElement("g", {}),
    patterns: new Map(),
    family,
    read: colourReader(),
  };
  svg.append(svgElement("rect", { width, height, fill: drawing.read(style.backgroundColor).colour }));
  drawChildren(drawing, svg, root, box);
  svg.append(drawing.outlines);
  return { svg, width, height };
}

/**
 * @param {Drawing} drawing
 * @param {SVGElement} into
 * @param {Element} parent
 * @param {Box} clip what is seen of the parent
 */
function drawChildren(drawing, into, parent, clip) {
  const style = getComputedStyle(parent);
  for (const node of parent.childNodes) {
    if (node instanceof Text) drawText(drawing, into, node, style, clip);
    else if (node instanceof Element) drawElement(drawing, into, node, clip);
  }
}

/**
 * @param {Drawing} drawing
 * @param {SVGElement} into
 * @param {Element} node
 * @param {Box} clip
 */
function drawElement(drawing, into, node, clip) {
  if (node.matches(LEFT_OUT)) return;
  const style = getComputedStyle(node);
  if (style.display === "none" || style.visibility !== "visible" || style.clipPath !== "none") return;
  const boxes = [...node.getClientRects()].filter((box) => meets(box, clip));
  if (!boxes.length) return;
  const group = style.opacity === "1" ? into : into.appendChild(svgElement("g", { opacity: style.opacity }));
  const drawn = node instanceof HTMLInputElement && style.appearance !== "none" && !TYPED.has(node.type);
  for (const box of boxes) {
    if (!drawn) paintBox(drawing, group, box, style); // sliders and boxes to tick are drawn whole
    if (style.textDecorationLine === "underline") underline(drawing, group, box, style, metricsOf(style).ascent);
  }
  drawBefore(drawing, group, node, boxes[0]);
  if (node instanceof HTMLCanvasElement) drawCanvas(drawing, group, node, boxes[0], style);
  else if (node instanceof SVGSVGElement) drawCurves(drawing, group, node, boxes[0]);
  else if (node instanceof HTMLSelectElement) drawSelect(drawing, group, node, boxes[0], style);
  else if (node instanceof HTMLInputElement) drawInput(drawing, group, node, boxes[0], style);
  else if (style.overflowX === "visible" || !(node instanceof HTMLElement)) drawChildren(drawing, group, node, clip);
  else drawClipped(drawing, group, node, boxes[0], clip);
}

/**
 * The children of an element that hides what goes beyond its box.
 *
 * @param {Drawing} drawing
 * @param {SVGElement} into
 * @param {HTMLElement} node
 * @param {DOMRect} box
 * @param {Box} clip
 */
function drawClipped(drawing, into, node, box, clip) {
  const left = box.left + node.clientLeft, top = box.top + node.clientTop;
  const inside = {
    left: Math.max(left, clip.left),
    top: Math.max(top, clip.top),
    right: Math.min(left + node.clientWidth, clip.right),
    bottom: Math.min(top + node.clientHeight, clip.bottom),
  };
  const cut = node.scrollWidth > node.clientWidth || node.scrollHeight > node.clientHeight;
  if (!cut) return drawChildren(drawing, into, node, inside);
  const id = `cut-${drawing.defs.childElementCount}`;
  const path = drawing.defs.appendChild(svgElement("clipPath", { id }));
  path.append(svgElement("rect", {
    x: inside.left - drawing.left,
    y: inside.top - drawing.top,
    width: Math.max(0, inside.right - inside.left),
    height: Math.max(0, inside.bottom - inside.top),
  }));
  const group = into.appendChild(svgElement("g", { "clip-path": `url(#${id})` })), outlines = svgElement("g", {});
  drawChildren({ ...drawing, outlines }, group, node, inside);
  if (outlines.hasChildNodes()) group.append(outlines);
}

/**
 * What a style sheet puts before the content: a box at its place, or words at the upper left.
 *
 * @param {Drawing} drawing
 * @param {SVGElement} into
 * @param {Element} node
 * @param {DOMRect} box
 */
function drawBefore(drawing, into, node, box) {
  const style = getComputedStyle(node, "::before");
  const words = /^"(.*)"$/.exec(style.content)?.[1];
  if (words === undefined || style.display === "none") return;
  if (style.position === "absolute") {
    const [left, top, width, height] = [style.left, style.top, style.width, style.height].map(parseFloat);
    paintBox(drawing, into, new DOMRect(box.left + left, box.top + top, width, height), style);
  } else if (words) {
    const { padding, line } = { padding: getComputedStyle(node), line: parseFloat(style.lineHeight) };
    const x = box.left + parseFloat(padding.paddingLeft), y = box.top + parseFloat(padding.paddingTop);
    drawWords(drawing, into, words, { left: x, middle: y + line / 2 }, style);
  }
}

/**
 * Whether a box is at least partly inside another; one without a width may hold what goes beyond it.
 *
 * @param {DOMRect} box
 * @param {Box} clip
 */
export function meets(box, clip) {
  return box.right >= clip.left && box.left <= clip.right && box.bottom >= clip.top && box.top <= clip.bottom;
}
