import { contextOf, element, svgElement } from "./dom.js";
import { ink, rounded } from "./vector_boxes.js";

// Text of a drawing: one <text> per line of a text node, as wide as the browser drew it, whichever fonts a viewer has.

/** @import { Box, Drawing } from "./vector.js" */
/** @typedef {{ text: string, left: number, right: number, top: number, bottom: number }} Line */

const GENERIC = /(^|,)\s*(serif|sans-serif|monospace)\s*$/;
const measuring = contextOf(element("canvas"));

/** @param {string} family */
export function withGeneric(family) {
  return GENERIC.test(family) ? family : `${family}, sans-serif`;
}

/**
 * How far the letters of a font reach above and below the baseline.
 *
 * @param {CSSStyleDeclaration} style
 */
export function metricsOf(style) {
  measuring.font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  const { fontBoundingBoxAscent: ascent, fontBoundingBoxDescent: descent } = measuring.measureText("x");
  return { ascent, descent, widthOf: (/** @type {string} */ text) => measuring.measureText(text).width };
}

/**
 * @param {Drawing} drawing
 * @param {CSSStyleDeclaration} style
 */
export function attributesOfFont(drawing, style) {
  const family = withGeneric(style.fontFamily);
  return {
    "font-size": parseFloat(style.fontSize),
    ...(style.fontWeight === "400" ? {} : { "font-weight": style.fontWeight }),
    ...(style.fontStyle === "normal" ? {} : { "font-style": style.fontStyle }),
    ...(family === drawing.family ? {} : { "font-family": family }),
  };
}

/**
 * @param {Drawing} drawing
 * @param {SVGElement} into
 * @param {Text} node
 * @param {CSSStyleDeclaration} style of its parent
 * @param {Box} clip
 */
export function drawText(drawing, into, node, style, clip) {
  if (!node.data.trim()) return;
  const kept = style.whiteSpaceCollapse ? style.whiteSpaceCollapse !== "collapse" : style.whiteSpace.startsWith("pre");
  const { ascent, descent, widthOf } = metricsOf(style);
  for (const line of linesOf(node)) {
    if (line.bottom < clip.top || line.top > clip.bottom || line.left > clip.right || line.right < clip.left) continue;
    let text = kept ? line.text.replace(/\s/g, " ") : line.text.replace(/\s+/g, " ");
    let width = line.right - line.left;
    if (style.textOverflow === "ellipsis" && line.right > clip.right + 0.5) {
      while (text && line.left + widthOf(`${text}…`) > clip.right) text = text.slice(0, -1).trimEnd();
      text += "…";
      width = widthOf(text);
    }
    const y = line.top - drawing.top + ((line.bottom - line.top) * ascent) / (ascent + descent);
    write(drawing, into, text, { x: line.left - drawing.left, y, width }, style);
  }
}

/**
 * Words of a control, from its left edge, around the middle of its height.
 *
 * @param {Drawing} drawing
 * @param {SVGElement} into
 * @param {string} text
 * @param {{ left: number, middle: number }} place
 * @param {CSSStyleDeclaration} style
 */
export function drawWords(drawing, into, text, { left, middle }, style) {
  const { ascent, descent, widthOf } = metricsOf(style);
  const y = middle - drawing.top + (ascent - descent) / 2;
  write(drawing, into, text, { x: left - drawing.left, y, width: widthOf(text) }, style);
}

/**
 * @param {Drawing} drawing
 * @param {SVGElement} into
 * @param {string} text
 * @param {{ x: number, y: number, width: number }} place
 * @param {CSSStyleDeclaration} style
 */
function write(drawing, into, text, { x, y, width }, style) {
  const looks = { ...attributesOfFont(drawing, style), ...ink(drawing, "fill", style.color) };
  const length = width > 0 ? { ...rounded({ textLength: width }), lengthAdjust: "spacingAndGlyphs" } : {};
  const node = into.appendChild(svgElement("text", { ...rounded({ x, y }), ...length, ...looks }, text));
  if (/ {2}/.test(text)) node.setAttribute("xml:space", "preserve");
}

/**
 * The lines of a text node, without white space at their ends.
 *
 * @param {Text} node
 * @returns {Line[]}
 */
function linesOf(node) {
  const range = document.createRange(), text = node.data;
  /** @param {number} from @param {number} until */
  const boxOf = (from, until) => {
    range.setStart(node, from);
    range.setEnd(node, until);
    return range.getBoundingClientRect();
  };
  const start = text.length - text.trimStart().length, end = text.trimEnd().length;
  range.setStart(node, start);
  range.setEnd(node, end);
  const boxes = [...range.getClientRects()].filter((box) => box.width);
  if (boxes.length <= 1) return boxes.map((box) => ({ text: text.slice(start, end), ...edges(box) }));
  /** @type {Line[]} */
  const lines = [];
  for (let at = start; at < end;) {
    const sign = String.fromCodePoint(text.codePointAt(at) ?? 0), box = boxOf(at, at + sign.length);
    const line = lines.at(-1);
    at += sign.length;
    if (line && (!box.width || Math.abs(box.top - line.top) < box.height / 2)) {
      line.text += sign;
      if (box.width && sign.trim()) {
        line.left = Math.min(line.left, box.left);
        line.right = Math.max(line.right, box.right);
      }
    } else if (sign.trim() && box.width) lines.push({ text: sign, ...edges(box) });
  }
  for (const line of lines) line.text = line.text.trimEnd();
  return lines;
}

/** @param {DOMRect} box */
function edges({ left, right, top, bottom }) {
  return { left, right, top, bottom };
}
