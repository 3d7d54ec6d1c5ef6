import { contextOf, element } from "./dom.js";

// Files of a drawing: SVG as text, PNG drawn from it, and PDF by the browser's print dialog. Nothing is fetched.

/** @typedef {{ svg: SVGElement, width: number, height: number }} Drawn */

// deno-lint-ignore no-control-regex -- XML allows neither control characters nor halves of a surrogate pair
const UNWRITABLE = /[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]/gu;
const SCALE = 2; // pixels of a PNG per CSS pixel
const PRINTED_MS = 60_000; // after which a frame is removed whose browser did not say that it printed

/** @param {Drawn} drawn */
export function textOf({ svg }) {
  return new XMLSerializer().serializeToString(svg).replace(UNWRITABLE, "\ufffd");
}

/**
 * The drawing as the bytes of a PNG.
 *
 * @param {Drawn} drawn
 */
export async function pngOf(drawn) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(textOf(drawn))}`;
  await image.decode();
  const canvas = element("canvas");
  canvas.width = SCALE * drawn.width;
  canvas.height = SCALE * drawn.height;
  contextOf(canvas).drawImage(image, 0, 0, canvas.width, canvas.height);
  /** @type {Blob | null} */
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  if (!blob) throw new Error("the picture is too large for it");
  return blob;
}

/**
 * Opens the browser's print dialog for a page of exactly the drawing's size. Browsers write such a page as a vector PDF
 * with the fonts of every script embedded; jsPDF with svg2pdf.js would add 900 kB and leave out all but Latin letters.
 *
 * @param {Drawn} drawn
 * @param {string} name of the file that the dialog suggests
 */
export function print({ svg, width, height }, name) {
  const frame = element("iframe");
  frame.style.cssText = "position:fixed;width:0;height:0;border:0";
  frame.setAttribute("aria-hidden", "true");
  frame.tabIndex = -1;
  document.body.append(frame);
  const sheet = /** @type {Window} */ (frame.contentWindow), page = sheet.document, before = document.title;
  page.title = document.title = name; // browsers differ in which of them names the file
  const size = `@page { size: ${width / 96}in ${height / 96}in; margin: 0 }`;
  page.head.append(
    element("style", "", `${size} html, body { margin: 0 } svg { display: block; break-inside: avoid }`),
  );
  page.body.append(page.importNode(svg, true));
  const done = () => {
    clearTimeout(timer);
    frame.remove();
    if (document.title === name) document.title = before;
  };
  const timer = setTimeout(done, PRINTED_MS);
  sheet.addEventListener("afterprint", () => setTimeout(done));
  sheet.focus();
  sheet.print();
}

/**
 * @param {Blob} blob
 * @param {string} name
 */
export function download(blob, name) {
  const link = element("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
