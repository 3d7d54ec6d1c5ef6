/** @import { Cell } from "./matrix.js" */
/** @typedef {{ shapes: Record<string, number[]>, layer: number, head: number }} Unpacked */
/**
 * The tokens shown at a step. All arrays have the same length; `positions` ascend.
 *
 * @typedef {object} Frame
 * @property {Int32Array} positions
 * @property {Int32Array} groups
 * @property {Float32Array} scores
 * @property {Float32Array} weights
 * @property {Uint8Array} looks
 * @property {Uint8Array} marks
 */
/**
 * A map of steps × columns: the position that each cell draws, and its look.
 *
 * @typedef {{ map_positions: Int32Array, map_looks: Uint8Array<ArrayBuffer>, shapes: Record<string, number[]> }} Drawn
 */
/** @typedef {{ offsets: Int32Array, all_weights?: Uint8Array, cell_looks: Uint8Array }} Steps */
/** @typedef {Unpacked & Frame & Drawn & Steps} Slice */
/**
 * @typedef {object} Clusters
 * @property {Int32Array} group_ids
 * @property {Uint8Array} group_hues
 * @property {Int32Array} group_counts
 * @property {Float32Array} group_scores
 * @property {Float32Array} group_masses
 * @property {Int32Array} group_known
 */

/** @type {Record<string, any>} */
const TYPES = { U8: Uint8Array, I32: Int32Array, F32: Float32Array, F64: Float64Array };

/**
 * The arrays of safetensors bytes, by name. The caller's type says which arrays were packed.
 *
 * @template {Unpacked} Packed
 * @param {Uint8Array} bytes
 * @returns {Packed}
 */
export function unpack(bytes) {
  const buffer = bytes.slice().buffer; // a copy: typed arrays need aligned data, and a message's may not be
  const headerLength = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, headerLength)));
  /** @type {any} */
  const slice = { shapes: {} };
  for (const [name, entry] of Object.entries(header)) {
    const { dtype, shape, data_offsets: [from, to] } = entry;
    const type = TYPES[dtype];
    slice[name] = new type(buffer, 8 + headerLength + from, (to - from) / type.BYTES_PER_ELEMENT);
    slice.shapes[name] = shape;
  }
  [slice.layer, slice.head] = slice.place;
  return slice;
}

/**
 * The tokens shown at a step.
 *
 * @param {Slice} slice
 * @param {number} step
 * @returns {Frame}
 */
export function frameOf(slice, step) {
  const names = ["positions", "groups", "scores", "weights", "looks", "marks"];
  return cut(slice, names, slice.offsets[step], slice.offsets[step + 1]);
}

/**
 * The clusters recalled at a step, best score first.
 *
 * @param {Clusters & { group_offsets: Int32Array }} slice
 * @param {number} step
 * @returns {Clusters}
 */
export function clustersOf(slice, step) {
  const names = ["group_ids", "group_hues", "group_counts", "group_scores", "group_masses", "group_known"];
  return cut(slice, names, slice.group_offsets[step], slice.group_offsets[step + 1]);
}

/**
 * The index of a position in a frame, -1 if it is not shown.
 *
 * @param {Frame} frame
 * @param {number} position
 */
export function indexOf(frame, position) {
  let low = 0, high = frame.positions.length - 1;
  while (low <= high) {
    const middle = (low + high) >> 1;
    if (frame.positions[middle] === position) return middle;
    if (frame.positions[middle] < position) low = middle + 1;
    else high = middle - 1;
  }
  return -1;
}

/**
 * The position drawn in a cell of the map.
 *
 * @param {Drawn} map
 * @param {Cell} cell
 */
export function positionAt({ map_positions, shapes }, [row, column]) {
  return map_positions[row * shapes.map_positions[1] + column];
}

/**
 * The rounded weight of any token, null if the slice does not contain it.
 *
 * @param {Slice} slice
 * @param {number} step
 * @param {number} position
 */
export function roundedWeight(slice, step, position) {
  if (!slice.all_weights) return null;
  const byte = slice.all_weights[step * slice.shapes.all_weights[1] + position];
  return byte === 0 ? 0 : 2 ** ((byte - 255) / 10);
}

/**
 * @param {any} slice
 * @param {string[]} names
 * @param {number} from
 * @param {number} to
 * @returns {any}
 */
function cut(slice, names, from, to) {
  return Object.fromEntries(names.map((name) => [name, slice[name].subarray(from, to)]));
}
