const SVG = "http://www.w3.org/2000/svg";

/**
 * A new element; its content is set as text, never as markup.
 *
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 */
export function element(tag, className = "", text = "") {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text) node.textContent = text;
  return node;
}

/**
 * @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, string | number>} attributes
 */
export function svgElement(tag, attributes, text = "") {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  if (text) node.textContent = text;
  return node;
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {CanvasRenderingContext2DSettings} [settings]
 */
export function contextOf(canvas, settings) {
  return /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d", settings));
}

/** @param {Event} event */
export function targetOf(event) {
  return /** @type {HTMLElement} */ (event.target);
}

/**
 * Whether a key is pressed with Ctrl, Meta or Alt, which makes it a shortcut of another program.
 *
 * @param {KeyboardEvent} event
 */
export function hasModifier(event) {
  return event.ctrlKey || event.metaKey || event.altKey;
}

const english = new Intl.NumberFormat("en-US"); // toLocaleString makes a new one each time, in 20 µs

/** @param {number} number */
export function format(number) {
  return english.format(number);
}
