import { isTouch, onKeys } from "./cursor.js";
import { contextOf, element } from "./dom.js";
import { createBrush } from "./matrix_brush.js";
import { NOTHING } from "./theme.js";

const STRIDES = 32; // of Shift with ← or → over the whole map
const TALLEST_ROW = 18, SHORTEST_ROW = 3; // CSS pixels

/** @import { Zoom } from "./map_zoom.js" */
/** @import { Pointed } from "./tip.js" */
/** @typedef {[row: number, column: number]} Cell */
/** @typedef {Uint8Array<ArrayBuffer> | Uint8ClampedArray<ArrayBuffer>} Palette */

/**
 * A uint8 matrix painted with `palette()`, a table of 256 RGBA colours; one row is framed.
 * Nothing is measured or coloured before the host has a width, because a notebook attaches it after this call.
 * With the focus, the keys ← and → go to the marked columns of a row, ↑ and ↓ to other rows; Enter picks the cell.
 * With a zoom, a drag chooses columns, or Shift with ← and → and then Enter; + and − zoom, 0 and Escape show all.
 *
 * @param {HTMLElement} host
 * @param {object} options
 * @param {string} options.label
 * @param {() => Palette} options.palette
 * @param {number} [options.height]
 * @param {(cell: Cell | null, at: Pointed) => void} [options.onHover]
 * @param {(row: number, column: number) => void} [options.onPick]
 * @param {Zoom | null} [options.zoom]
 */
export function createMatrix(
  host,
  { label, palette, height = 330, onHover = () => {}, onPick = () => {}, zoom = null },
) {
  host.classList.add("kv-matrix");
  const inner = host.appendChild(element("div", "kv-matrix-inner"));
  const canvas = inner.appendChild(element("canvas"));
  const frame = inner.appendChild(element("div", "kv-row"));
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application"); // a picture that arrow keys walk through, and a text that says where
  canvas.setAttribute("aria-label", label);
  const keys = "arrow keys go to the marked cells, Enter picks one";
  const zooms = `plus and minus zoom, Shift with ← or → chooses ${zoom?.noun} and Enter zooms to them, 0 shows all`;
  canvas.setAttribute("aria-description", zoom ? `${keys}; ${zooms}` : keys);
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
  let anchor = -1; // the column from which Shift with ← or → chooses
  const brush = zoom && createBrush(canvas, inner, {
    columnAt(event) {
      const box = canvas.getBoundingClientRect();
      return Math.max(0, Math.min(columns - 1, Math.floor(((event.clientX - box.left) / box.width) * columns)));
    },
    columns: () => columns,
    choosing: (from, until) => zoom.choosing([zoom.firstOf(from), zoom.firstOf(until)]),
    chosen,
    cancelled: () => zoom.choosing(null),
  });

  /**
   * @param {number} from
   * @param {number} until
   */
  function chosen(from, until) {
    anchor = -1;
    onHover(null, { clientX: 0, clientY: 0 });
    if (!zoom?.show(zoom.firstOf(from), zoom.firstOf(until))) zoom?.choosing(null);
  }

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
  const move = (down, right) => (/** @type {KeyboardEvent} */ { shiftKey }) => {
    if (shiftKey && right && zoom) return choose(right);
    forget();
    const [row, column] = cursor ?? [Math.max(framed, 0), right < 0 ? columns : -1];
    const next = Math.max(0, Math.min(rows - 1, row + down));
    let place = column + right;
    if (right) { while (place >= 0 && place < columns && values[next * columns + place] === NOTHING) place += right; }
    if (place < 0 || place >= columns) {
      if (right && zoom && cursor) return at(column, () => zoom.shift(right));
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

  /**
   * Lets the zoom change; the cursor stays at its position.
   *
   * @param {number} column
   * @param {(position: number) => void} change
   */
  function at(column, change) {
    if (!zoom) return;
    const position = zoom.firstOf(column);
    change(position);
    if (cursor) go([cursor[0], zoom.columnOf(position)]);
  }

  /** @param {number} direction */
  function choose(direction) {
    const [row, column] = cursor ?? [Math.max(framed, 0), 0], stride = Math.max(1, Math.round(columns / STRIDES));
    if (anchor < 0) anchor = column;
    go([row, Math.max(0, Math.min(columns - 1, column + direction * stride))]);
    onHover(null, { clientX: 0, clientY: 0 });
    brush?.show(anchor, cursor?.[1] ?? anchor);
  }

  /** Ends choosing without a choice; says whether there was one. */
  function forget() {
    const choosing = Boolean(brush?.shown);
    anchor = -1;
    brush?.hide();
    if (choosing) zoom?.choosing(null);
    return choosing;
  }

  /** @param {number} factor */
  const zoomBy = (factor) => () => {
    forget();
    at(cursor?.[1] ?? Math.floor(columns / 2), (position) => zoom?.by(factor, position));
  };
  const reset = () => at(cursor?.[1] ?? 0, () => zoom?.reset());
  onKeys(canvas, {
    ArrowUp: move(-1, 0),
    ArrowDown: move(1, 0),
    ArrowLeft: move(0, -1),
    ArrowRight: move(0, 1),
    Enter() {
      if (anchor >= 0 && cursor) {
        const ends = [anchor, cursor[1]];
        brush?.hide();
        at(cursor[1], () => chosen(Math.min(...ends), Math.max(...ends) + 1));
      } else if (cursor) onPick(...cursor);
    },
    ...(zoom && {
      "+": zoomBy(0.5),
      "=": zoomBy(0.5), // the same key without Shift
      "-": zoomBy(2),
      "0": reset,
      Escape: () => forget() || reset(),
    }),
  });
  canvas.addEventListener("blur", () => {
    forget();
    if (cursor) onHover(null, { clientX: 0, clientY: 0 });
    go(null);
  });
  canvas.addEventListener("pointermove", (event) => onHover(brush?.dragging ? null : cellAt(event), event));
  canvas.addEventListener("pointerleave", (event) => isTouch(event) || onHover(null, event));
  canvas.addEventListener("click", (event) => {
    const cell = cellAt(event);
    if (!cell || brush?.dragged) return;
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
