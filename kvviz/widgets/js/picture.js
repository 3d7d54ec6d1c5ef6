import { contextOf, element } from "./dom.js";

// A picture of an element: its markup and style sheet inside an SVG, which is drawn onto a canvas. Nothing is fetched.
// deno-lint-ignore no-control-regex -- XML allows no control characters
const UNWRITABLE = /[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]/g;
const VARIABLES = [
  "--jp-layout-color0",
  "--jp-layout-color1",
  "--jp-layout-color2",
  "--jp-ui-font-color1",
  "--jp-ui-font-color2",
  "--jp-border-color1",
  "--jp-border-color2",
  "--jp-brand-color1",
  "--jp-ui-font-family",
  "--jp-content-font-family",
  "--jp-code-font-family",
];

/**
 * A PNG of an element, as a data URL.
 *
 * @param {HTMLElement} root
 * @param {string} css
 */
export async function pictureOf(root, css) {
  const { width, height } = root.getBoundingClientRect();
  const copy = /** @type {HTMLElement} */ (root.cloneNode(true));
  const style = getComputedStyle(root);
  for (const name of VARIABLES) copy.style.setProperty(name, style.getPropertyValue(name));
  copy.style.width = `${width}px`;
  copy.querySelectorAll(".kv-tip, .kv-sheet").forEach((node) => node.remove());
  const canvases = copy.querySelectorAll("canvas");
  root.querySelectorAll("canvas").forEach((canvas, index) => {
    const image = element("img");
    image.src = canvas.toDataURL();
    image.style.cssText = canvas.style.cssText;
    canvases[index].replaceWith(image);
  });
  const panels = /** @type {NodeListOf<HTMLElement>} */ (copy.querySelectorAll(".kv-panel"));
  root.querySelectorAll(".kv-panel").forEach((panel, index) => {
    panels[index].style.overflow = "hidden";
    panels[index].style.height = `${panel.clientHeight}px`;
    const inner = /** @type {HTMLElement | null} */ (panels[index].querySelector(".kv-lines, ol, .kv-matrix-inner"));
    if (panel.scrollTop && inner) inner.style.marginTop = `${-panel.scrollTop}px`;
  });
  copy.prepend(element("style", "", css));
  const markup = new XMLSerializer().serializeToString(copy).replace(UNWRITABLE, "\ufffd");
  const drawing = `<foreignObject width="100%" height="100%">${markup}</foreignObject>`;
  const svg = `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}">${drawing}</svg>`;
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode();
  const scale = 2;
  const canvas = element("canvas");
  canvas.width = Math.ceil(width * scale);
  canvas.height = Math.ceil(height * scale);
  const context = contextOf(canvas);
  context.scale(scale, scale);
  context.fillStyle = style.backgroundColor;
  context.fillRect(0, 0, width, height);
  context.drawImage(image, 0, 0, width, height);
  return canvas.toDataURL("image/png"); // throws in browsers that treat such a canvas as tainted
}

/**
 * @param {string} url
 * @param {string} name
 */
export function download(url, name) {
  const link = element("a");
  link.href = url;
  link.download = name;
  link.click();
}
