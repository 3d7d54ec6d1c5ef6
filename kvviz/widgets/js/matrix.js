import { contextOf, element } from "./dom.js";

const TALLEST_ROW = 18, SHORTEST_ROW = 3; // CSS pixels

/** @typedef {[row: number, column: number]} Cell */
/** @typedef {Uint8Array<ArrayBuffer> | Uint8ClampedArray<ArrayBuffer>} Palette */

/**
 * A uint8 matrix painted with `palette()`, a table of 256 RGBA colours; one row is framed.
 * Nothing is measured or coloured before the host has a width, because a notebook attaches it after this call.
 *
 * @param {HTMLElement} host
 * @param {object} options
 * @param {string} options.label
 * @param {() => Palette} options.palette
 * @param {number} [options.height]
 * @param {(cell: Cell | null, event: MouseEvent) => void} [options.onHover]
 * @param {(row: number, column: number) => void} [options.onPick]
 */
export function createMatrix(host, { label, palette, height = 330, onHover = () => {}, onPick = () => {} }) {
  host.classList.add("kv-matrix");
  const inner = host.appendChild(element("div", "kv-matrix-inner"));
  const canvas = inner.appendChild(element("canvas"));
  const frame = inner.appendChild(element("div", "kv-row"));
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  const painted = element("canvas"), wide = element("canvas");
  // Reused for the next matrix: a new image takes 16 MB for 2048², and the browser pauses to collect the old ones.
  /** @type {ImageData | null} */
  let image = null;
  /** @type {Palette | null} */
  let colours = null;
  let values = new Uint8Array(), rows = 0, columns = 0, rowHeight = TALLEST_ROW, framed = -1;

  function draw() {
    const width = host.clientWidth;
    if (!rows || !width) return;
    colours ??= palette();
    const scale = window.devicePixelRatio || 1;
    rowHeight = Math.max(SHORTEST_ROW, Math.min(TALLEST_ROW, Math.floor(height / rows)));
    canvas.style.height = inner.style.height = `${rows * rowHeight}px`;
    // A tall matrix has one pixel per row, which the style sheet stretches: painting all pixels takes half of the time.
    size(canvas, Math.round(width * scale), rowHeight > SHORTEST_ROW ? Math.round(rows * rowHeight * scale) : rows);
    if (!image || image.width !== columns || image.height !== rows) image = new ImageData(columns, rows);
    fill(image, values, colours);
    putInto(painted, image);
    widen(wide, painted, canvas.width);
    const context = contextOf(canvas);
    context.imageSmoothingEnabled = false; // keeps rows distinct
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.drawImage(wide, 0, 0, canvas.width, canvas.height);
    place();
  }

  function place() {
    const top = framed * rowHeight;
    frame.hidden = framed < 0 || framed >= rows;
    frame.style.top = `${top}px`;
    frame.style.height = `${rowHeight}px`;
    if (top < host.scrollTop) host.scrollTop = top;
    if (top + rowHeight > host.scrollTop + host.clientHeight) host.scrollTop = top + rowHeight - host.clientHeight;
  }

  /**
   * @param {MouseEvent} event
   * @returns {Cell | null}
   */
  function cellAt(event) {
    const box = canvas.getBoundingClientRect();
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    return row >= 0 && row < rows && column >= 0 && column < columns ? [row, column] : null;
  }
  canvas.addEventListener("pointermove", (event) => onHover(cellAt(event), event));
  canvas.addEventListener("pointerleave", (event) => onHover(null, event));
  canvas.addEventListener("click", (event) => {
    const cell = cellAt(event);
    if (cell) onPick(...cell);
  });
  const resized = new ResizeObserver(draw);
  resized.observe(host);
  return {
    canvas,
    /**
     * @param {Uint8Array<ArrayBuffer>} newValues
     * @param {number[]} shape
     */
    paint(newValues, shape) {
      values = newValues;
      [rows, columns] = shape;
      draw();
    },
    recolour() {
      colours = null;
      draw();
    },
    /** @param {number} row */
    frame(row) {
      framed = row;
      place();
    },
    destroy: () => resized.disconnect(),
  };
}

/**
 * @param {ImageData} image
 * @param {Uint8Array} values
 * @param {Palette} colours
 */
function fill(image, values, colours) {
  const pixels = new Uint32Array(image.data.buffer), table = new Uint32Array(colours.buffer, colours.byteOffset, 256);
  for (let index = 0; index < pixels.length; index++) pixels[index] = table[values[index]];
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {ImageData} image
 */
function putInto(canvas, image) {
  size(canvas, image.width, image.height);
  contextOf(canvas).putImageData(image, 0, 0);
}

/**
 * Stretches the columns, smoothly if they become 1 or 2 pixels wide: whole pixels would make some twice as wide.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {HTMLCanvasElement} image
 * @param {number} width
 */
function widen(canvas, image, width) {
  size(canvas, width, image.height);
  const context = contextOf(canvas);
  context.clearRect(0, 0, width, image.height);
  context.imageSmoothingEnabled = width < 3 * image.width;
  context.drawImage(image, 0, 0, width, image.height);
}

/**
 * Sets the size of a canvas if it differs: setting it, even to the same value, replaces all pixels.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {number} width
 * @param {number} height
 */
function size(canvas, width, height) {
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
}
