// Reads the safetensors bytes of one layer and head, and answers questions about a step.
const TYPES = { U8: Uint8Array, I32: Int32Array, F32: Float32Array, F64: Float64Array };

export function unpack(bytes) {
  const own = bytes.slice().buffer; // typed arrays need their data aligned; a message's bytes start anywhere
  const headerLength = Number(new DataView(own).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(own, 8, headerLength)));
  const slice = { shapes: {} };
  for (const [name, { dtype, shape, data_offsets: [from, to] }] of Object.entries(header)) {
    const type = TYPES[dtype];
    slice[name] = new type(own, 8 + headerLength + from, (to - from) / type.BYTES_PER_ELEMENT);
    slice.shapes[name] = shape;
  }
  [slice.layer, slice.head] = slice.place;
  return slice;
}

// The tokens shown at a step: positions, groups, scores, weights, looks, marks.
export function frameOf(slice, step) {
  const names = ["positions", "groups", "scores", "weights", "looks", "marks"];
  return cut(slice, names, slice.offsets[step], slice.offsets[step + 1]);
}

// The clusters recalled at a step, best score first.
export function clustersOf(slice, step) {
  const names = ["group_ids", "group_hues", "group_counts", "group_scores", "group_masses", "group_known"];
  return cut(slice, names, slice.group_offsets[step], slice.group_offsets[step + 1]);
}

// Index of a position among a frame's ascending positions, -1 where it is not shown.
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

// The rounded weight of any token, null where the slice does not hold it.
export function roundedWeight(slice, step, position) {
  if (!slice.all_weights) return null;
  const byte = slice.all_weights[step * slice.shapes.all_weights[1] + position];
  return byte === 0 ? 0 : 2 ** ((byte - 255) / 10);
}

function cut(slice, names, from, to) {
  return Object.fromEntries(names.map((name) => [name, slice[name].subarray(from, to)]));
}
