import { isTouch, onKeys } from "./cursor.js";
import { contextOf, element } from "./dom.js";
import { NOTHING } from "./theme.js";

const TALLEST_ROW = 18, SHORTEST_ROW = 3; // CSS pixels

/** @import { Pointed } from "./tip.js" */
/** @typedef {[row: number, column: number]} Cell */
/** @typedef {Uint8Array<ArrayBuffer> | Uint8ClampedArray<ArrayBuffer>} Palette */

/**
 * A uint8 matrix painted with `palette()`, a table of 256 RGBA colours; one row is framed.
 * Nothing is measured or coloured before the host has a width, because a notebook attaches it after this call.
 * With the focus, the keys ← and → go to the marked columns of a row, ↑ and ↓ to other rows; Enter picks the cell.
 *
 * @param {HTMLElement} host
 * @param {object} options
 * @param {string} options.label
 * @param {() => Palette} options.palette
 * @param {number} [options.height]
 * @param {(cell: Cell | null, at: Pointed) => void} [options.onHover]
 * @param {(row: number, column: number) => void} [options.onPick]
 */
export function createMatrix(host, { label, palette, height = 330, onHover = () => {}, onPick = () => {} }) {
  host.classList.add("kv-matrix");
  const inner = host.appendChild(element("div", "kv-matrix-inner"));
  const canvas = inner.appendChild(element("canvas"));
  const frame = inner.appendChild(element("div", "kv-row"));
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application"); // a picture that arrow keys walk through, and a text that says where
  canvas.setAttribute("aria-label", label);
  canvas.setAttribute("aria-description", "arrow keys go to the marked cells, Enter picks one");
  const painted = element("canvas"), wide = element("canvas");
  // Reused for the next matrix: a new image takes 16 MB for 2048², and the browser pauses to collect the old ones.
  /** @type {ImageData | null} */
  let image = null;
  /** @type {Palette | null} */
  let colours = null;
  let values = new Uint8Array(), rows = 0, columns = 0, rowHeight = TALLEST_ROW, framed = -1;
  const cross = inner.appendChild(element("div", "kv-cross"));
  cross.hidden = true;
  /** @type {Cell | null} */
  let cursor = null;

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
  /**
   * @param {number} down
   * @param {number} right
   */
  const move = (down, right) => () => {
    const [row, column] = cursor ?? [Math.max(framed, 0), right < 0 ? columns : -1];
    const next = Math.max(0, Math.min(rows - 1, row + down));
    let place = column + right;
    if (right) { while (place >= 0 && place < columns && values[next * columns + place] === NOTHING) place += right; }
    if (place < 0 || place >= columns) {
      if (right) return;
      place = 0;
    }
    go([next, place]);
  };

  /** @param {Cell | null} cell */
  function go(cell) {
    cursor = cell;
    cross.hidden = !cell;
    if (!cell) return;
    const [row, column] = cell, box = canvas.getBoundingClientRect();
    cross.style.cssText = `left:${(100 * (column + 0.5)) / columns}%;top:${(row + 0.5) * rowHeight}px`;
    const [x, y] = [((column + 0.5) / columns) * box.width, ((row + 0.5) / rows) * box.height];
    onHover(cell, { clientX: box.left + x, clientY: box.top + y, spoken: true });
  }
  onKeys(canvas, {
    ArrowUp: move(-1, 0),
    ArrowDown: move(1, 0),
    ArrowLeft: move(0, -1),
    ArrowRight: move(0, 1),
    Enter: () => cursor && onPick(...cursor),
  });
  canvas.addEventListener("blur", () => {
    if (cursor) onHover(null, { clientX: 0, clientY: 0 });
    go(null);
  });
  canvas.addEventListener("pointermove", (event) => onHover(cellAt(event), event));
  canvas.addEventListener("pointerleave", (event) => isTouch(event) || onHover(null, event));
  canvas.addEventListener("click", (event) => {
    const cell = cellAt(event);
    if (!cell) return;
    onPick(...cell);
    if (isTouch(/** @type {PointerEvent} */ (event))) onHover(cell, event); // picking may have hidden the tip
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
