// Where keys and centroids lie on the map.

/** @typedef {(x: number, y: number) => [x: number, y: number]} ToPixel */

const MARGIN = 18, CELL = 14; // CSS pixels: around the dots, and the squares of the index

/**
 * Takes keys' coordinates to pixels, one unit as long both ways.
 *
 * @param {Float32Array} points
 * @param {Float32Array} star
 * @param {number} width
 * @param {number} height
 * @returns {ToPixel}
 */
export function projector(points, star, width, height) {
  let [left, right, low, high] = [star[0], star[0], star[1], star[1]];
  for (let at = 0; at < points.length; at += 2) {
    left = Math.min(left, points[at]);
    right = Math.max(right, points[at]);
    low = Math.min(low, points[at + 1]);
    high = Math.max(high, points[at + 1]);
  }
  const unit = Math.min(
    (width - 2 * MARGIN) / Math.max(right - left, 1e-9),
    (height - 2 * MARGIN) / Math.max(high - low, 1e-9),
  );
  const [x0, y0] = [(width - unit * (right - left)) / 2, (height - unit * (high - low)) / 2];
  return (x, y) => [x0 + unit * (x - left), y0 + unit * (high - y)];
}

/**
 * Answers which place lies nearest to a pixel: only the squares around it are looked at.
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
      let best = -1, least = reach * reach;
      for (const dy of [-CELL, 0, CELL]) {
        for (const dx of [-CELL, 0, CELL]) {
          for (const token of squares.get(square(x + dx, y + dy)) ?? []) {
            const apart = (places[2 * token] - x) ** 2 + (places[2 * token + 1] - y) ** 2;
            if (apart < least) [best, least] = [token, apart];
          }
        }
      }
      return best;
    },
  };
}
