// The range of positions that the maps of steps × positions show.
import { element, format } from "./dom.js";
import { button } from "./panel.js";
import { ATTENDED } from "./strip.js";

/** @import { Drawn, Slice } from "./slice.js" */
/** @typedef {[from: number, until: number]} Range */
/** @typedef {ReturnType<typeof createZoom>} Zoom */

export const MAP_COLUMNS = 384; // as kvviz/widgets/view.py has them: with fewer positions, a column is one token
const SHORTEST = 8; // positions

/**
 * A range of `length` positions, which one or more maps show in at most `most` columns; `changed` draws them again.
 *
 * @param {number} length
 * @param {() => void} changed
 * @param {{ most?: number, noun?: string }} [options] `noun`: what positions are called
 */
export function createZoom(length, changed, { most = MAP_COLUMNS, noun = "positions" } = {}) {
  /** @type {Range} */
  let range = [0, length];
  /** @type {((range: Range, choosing: boolean) => void)[]} */
  const listeners = [];

  /**
   * @param {number} from
   * @param {number} until
   */
  function show(from, until) {
    const size = Math.min(length, Math.max(Math.min(SHORTEST, length), Math.round(until - from)));
    const start = Math.max(0, Math.min(length - size, Math.round(from)));
    if (start === range[0] && start + size === range[1]) return false;
    range = [start, start + size];
    changed();
    for (const react of listeners) react(range, false);
    return true;
  }

  return {
    noun,
    get length() {
      return length;
    },
    get range() {
      return range;
    },
    get zoomed() {
      return range[1] - range[0] < length;
    },
    show,
    /**
     * Shows all of another number of positions, without drawing them.
     *
     * @param {number} other
     */
    resize(other) {
      if (other === length) return;
      length = other;
      range = [0, length];
      for (const react of listeners) react(range, false);
    },
    reset: () => show(0, length),
    /**
     * Makes the range larger or smaller by a factor; a position stays where it is on the map.
     *
     * @param {number} factor
     * @param {number} position
     */
    by(factor, position) {
      const [from, until] = range, size = Math.max(SHORTEST, (until - from) * factor);
      return show(
        position - ((position - from) * size) / (until - from),
        position + ((until - position) * size) / (until - from),
      );
    },
    /**
     * Moves the range by half of its size; says whether it moved.
     *
     * @param {number} direction
     */
    shift(direction) {
      const by = (direction * (range[1] - range[0])) / 2;
      return show(range[0] + by, range[1] + by);
    },
    /**
     * The first position of a column; the end of the range for the column behind the last one.
     *
     * @param {number} column
     */
    firstOf(column) {
      const size = range[1] - range[0], columns = Math.min(most, size);
      return column >= columns ? range[1] : range[0] + Math.floor(column * (size / columns));
    },
    /** @param {number} position */
    columnOf(position) {
      const inside = Math.max(0, Math.min(range[1] - 1, position) - range[0]);
      return most < Infinity ? columnIndex(range)[inside] : inside;
    },
    /**
     * Tells which positions are being chosen, before the maps show them; null: none any more.
     *
     * @param {Range | null} positions
     */
    choosing(positions) {
      for (const react of listeners) react(positions ?? range, positions !== null);
    },
    /** @param {(range: Range, choosing: boolean) => void} react */
    told: (react) => listeners.push(react),
  };
}

/**
 * The range in words, which are spoken when they change, and a button that shows all positions again.
 *
 * @param {Zoom} zoom
 */
export function createRange(zoom) {
  const bar = element("div", "kv-range");
  bar.append(element("span", "", "map:"));
  const words = bar.appendChild(element("span"));
  words.setAttribute("role", "status");
  const reset = button(bar, "show all", `show all ${zoom.noun} (0)`, () => zoom.reset());
  /**
   * @param {Range} range
   * @param {boolean} choosing
   */
  function paint([from, until], choosing) {
    reset.hidden = !zoom.zoomed;
    const positions = `${zoom.noun} ${format(from)} to ${format(until - 1)}`;
    words.textContent = choosing
      ? `choosing ${positions}`
      : zoom.zoomed
      ? `${positions} of ${format(zoom.length)}`
      : `all ${format(zoom.length)} ${zoom.noun}`;
  }
  zoom.told(paint);
  paint(zoom.range, false);
  return bar;
}

/**
 * The map of a slice in the range of a zoom: that of the slice for all positions, else drawn from its tokens, as
 * kvviz/widgets/view.py does. In a column, the token with the largest weight is drawn, attended ones first if
 * `attendedFirst`.
 *
 * @param {Slice} slice
 * @param {Zoom} zoom
 * @param {boolean} attendedFirst
 * @returns {Drawn}
 */
export function mapOf(slice, zoom, attendedFirst) {
  return zoom.zoomed ? pooled(slice, zoom.range, attendedFirst) : slice;
}

/**
 * @param {Slice} slice
 * @param {Range} range
 * @param {boolean} attendedFirst
 * @returns {Drawn}
 */
export function pooled(slice, range, attendedFirst) {
  const [from, until] = range, steps = slice.offsets.length - 1, columns = columnsOf(range), index = columnIndex(range);
  const map_looks = new Uint8Array(steps * columns).fill(255), map_positions = new Int32Array(steps * columns);
  const ranks = new Float32Array(steps * columns);
  for (let place = from; place < until; place++) {
    const column = index[place - from];
    if (place === from || index[place - from - 1] !== column) map_positions[column] = place;
  }
  for (let step = 1; step < steps; step++) map_positions.copyWithin(step * columns, 0, columns);
  for (let step = 0; step < steps; step++) {
    for (let token = slice.offsets[step]; token < slice.offsets[step + 1]; token++) {
      const position = slice.positions[token];
      if (position < from || position >= until) continue;
      const cell = step * columns + index[position - from];
      const first = attendedFirst && slice.marks[token] & ATTENDED ? 1 : 0;
      const rank = Math.fround(Math.fround(slice.weights[token] + 1) + first);
      if (rank <= ranks[cell]) continue;
      ranks[cell] = rank;
      map_positions[cell] = position;
      map_looks[cell] = slice.cell_looks[token];
    }
  }
  const shape = [steps, columns];
  return { map_looks, map_positions, shapes: { map_looks: shape, map_positions: shape } };
}

/** @param {Range} range */
function columnsOf([from, until]) {
  return Math.min(MAP_COLUMNS, until - from);
}

/**
 * The column of each position of a range.
 *
 * @param {Range} range
 */
function columnIndex(range) {
  const size = range[1] - range[0], columns = columnsOf(range), wide = size / columns;
  const index = new Uint16Array(size);
  for (let column = 0; column < columns; column++) {
    index.fill(column, Math.floor(column * wide), column === columns - 1 ? size : Math.floor((column + 1) * wide));
  }
  return index;
}
