// The places of keys and centroids on the map.

/** @typedef {(x: number, y: number) => [x: number, y: number]} ToPixel */

const MARGIN = 18, CELL = 14; // CSS pixels: the margin around the dots, the side of the index's squares

/**
 * A function from the coordinates of keys to pixels, with the same scale on both axes.
 *
 * @param {Float32Array} points NaN for those that are not shown
 * @param {Float32Array} stars
 * @param {number} width
 * @param {number} height
 * @returns {ToPixel}
 */
export function projector(points, stars, width, height) {
  let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const places of [points, stars]) {
    for (let i = 0; i < places.length; i += 2) {
      if (Number.isNaN(places[i])) continue;
      left = Math.min(left, places[i]);
      right = Math.max(right, places[i]);
      low = Math.min(low, places[i + 1]);
      high = Math.max(high, places[i + 1]);
    }
  }
  const unit = Math.min(
    (width - 2 * MARGIN) / Math.max(right - left, 1e-9),
    (height - 2 * MARGIN) / Math.max(high - low, 1e-9),
  );
  const [x0, y0] = [(width - unit * (right - left)) / 2, (height - unit * (high - low)) / 2];
  return (x, y) => [x0 + unit * (x - left), y0 + unit * (high - y)];
}

/**
 * An index that finds the place nearest to a pixel; it searches only the squares around the pixel.
 *
 * @param {Float32Array} places
 * @param {number} width
 */
export function indexOfPlaces(places, width) {
  /** @type {Map<number, number[]>} */
  const squares = new Map();
  const columns = Math.ceil(width / CELL) + 2;
  /** @type {(x: number, y: number) => number} */
  const square = (x, y) => (Math.floor(y / CELL) + 1) * columns + Math.floor(x / CELL) + 1;
  for (let token = 0; 2 * token < places.length; token++) {
    const key = square(places[2 * token], places[2 * token + 1]);
    const tokens = squares.get(key);
    if (tokens) tokens.push(token);
    else squares.set(key, [token]);
  }
  return {
    /**
     * @param {number} x
     * @param {number} y
     * @param {number} reach
     */
    nearest(x, y, reach) {
      let nearest = -1, least = reach * reach;
      for (const dy of [-CELL, 0, CELL]) {
        for (const dx of [-CELL, 0, CELL]) {
          for (const token of squares.get(square(x + dx, y + dy)) ?? []) {
            const distance = (places[2 * token] - x) ** 2 + (places[2 * token + 1] - y) ** 2;
            if (distance < least) [nearest, least] = [token, distance];
          }
        }
      }
      return nearest;
    },
  };
}
