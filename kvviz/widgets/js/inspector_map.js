import { contextOf, element, hasModifier, targetOf } from "./dom.js";
import { membersOf, ringsOf } from "./inspector_groups.js";
import { circle, clear, disc, drawStar } from "./inspector_marks.js";
import { indexOfPlaces, projector } from "./inspector_places.js";
import { createZoom } from "./inspector_zoom.js";
import { mapColours } from "./map_colours.js";
import { HUES, LEVELS } from "./theme.js";

/** @import { Clustering, Places } from "./inspector_groups.js" */
/** @import { Context } from "./inspector_marks.js" */
/** @import { ToPixel } from "./inspector_places.js" */
/** @import { Palette } from "./matrix.js" */

/**
 * What is under the pointer: a centroid (`token` is -1), or a token (`cluster` is -1 if it is in none).
 *
 * @typedef {{ cluster: number, token: number }} Key
 */

const LOOK_LEVEL = 3; // of the maps' levels of attention: neither faint nor dark
const REACH = 9; // CSS pixels: the largest distance from the pointer to a dot that it points at
const NONE = -1;
/** @type {Record<string, [right: number, down: number] | undefined>} */
const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/**
 * A map of keys: dots for tokens, rings for centroids, a star for the query. It has two canvases, so that a move of the
 * pointer repaints the few marks on top, not the thousands of dots. Keys and buttons zoom it, as does the wheel with Ctrl.
 *
 * @param {HTMLElement} host
 * @param {HTMLElement} root
 * @param {object} options
 * @param {(key: Key | null, event: MouseEvent) => void} options.onHover
 * @param {(key: Key) => void} options.onPick
 * @param {(cluster: number) => void} options.onCursor
 */
export function createKeyMap(host, root, { onHover, onPick, onCursor }) {
  host.classList.add("kv-keymap");
  host.tabIndex = 0;
  host.setAttribute("role", "application");
  host.setAttribute(
    "aria-label",
    "map of the keys: arrow keys move between centroids, Enter picks one, Escape clears it, + and − zoom, 0 shows all",
  );
  const [below, above] = [0, 1].map(() => host.appendChild(element("canvas")));
  /** @type {Clustering} */
  let clusters;
  /** @type {ToPixel | null} */
  let toPixel = null;
  /** @type {ReturnType<typeof indexOfPlaces>} */
  let index;
  /** @type {Palette} */
  let colours;
  /** @type {Float32Array} */
  let points = new Float32Array();
  /** @type {Float32Array} */
  let stars = points;
  /** @type {[x: number, y: number] | null} */
  let star = null;
  /** @type {number[]} */
  let found = [];
  let foundAt = NONE;
  let places = points, rings = points;
  let coloured = false, ink = "", muted = "", ground = "", hovered = NONE, picked = NONE, cursor = NONE;

  const zoom = createZoom(host, () => {
    if (layOut()) drawBelow();
  });

  function fit() {
    const width = host.clientWidth, height = host.clientHeight, scale = window.devicePixelRatio || 1;
    if (!width || !points.length || !clusters) return false;
    for (const canvas of [below, above]) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      canvas.style.cssText = `position:absolute;left:0;top:0;width:${width}px;height:${height}px`;
      contextOf(canvas).setTransform(scale, 0, 0, scale, 0, 0);
    }
    return layOut();
  }

  function layOut() {
    const width = host.clientWidth, height = host.clientHeight;
    if (!width || !points.length || !clusters) return false;
    const whole = projector(points, stars, width, height);
    toPixel = (x, y) => zoom.at(whole(x, y));
    places = new Float32Array(points.length);
    for (let i = 0; i < points.length; i += 2) places.set(toPixel(points[i], points[i + 1]), i);
    index = indexOfPlaces(places, width);
    return true;
  }

  /** @param {number} cluster */
  function colour(cluster) {
    if (cluster < 0) return muted;
    const look = 4 * (clusters.hues[cluster] * LEVELS + LOOK_LEVEL);
    return `rgb(${colours[look]} ${colours[look + 1]} ${colours[look + 2]})`;
  }

  /**
   * @param {ToPixel} toPixel
   * @param {number} cluster
   */
  const ringAt = (toPixel, cluster) => toPixel(rings[2 * cluster], rings[2 * cluster + 1]);
  const dotSize = () => (places.length > 40000 ? 1.1 : places.length > 8000 ? 1.7 : 2.4);
  const ringSize = () => (clusters.sizes.length > 240 ? 3.5 : clusters.sizes.length > 80 ? 5 : 7);

  function drawBelow() {
    if (!toPixel) return;
    if (!coloured) {
      const style = getComputedStyle(root);
      [coloured, colours, ink, ground] = [true, mapColours(root), style.color, style.backgroundColor];
      muted = style.getPropertyValue("--kv-muted");
    }
    const context = clear(below), byHue = Array.from({ length: HUES + 1 }, () => /** @type {number[]} */ ([]));
    for (let token = 0; token < clusters.labels.length; token++) {
      const cluster = clusters.labels[token];
      byHue[cluster < 0 ? HUES : clusters.hues[cluster]].push(token);
    }
    context.globalAlpha = picked < 0 ? 0.8 : 0.3;
    byHue.forEach((tokens) => {
      if (!tokens.length) return;
      context.fillStyle = colour(clusters.labels[tokens[0]]);
      context.beginPath();
      for (const token of tokens) disc(context, places[2 * token], places[2 * token + 1], dotSize());
      context.fill();
    });
    drawAbove();
  }

  function drawAbove() {
    if (!toPixel || !coloured) return;
    const context = clear(above);
    if (picked >= 0) drawPicked(context);
    for (let cluster = 0; cluster < clusters.sizes.length; cluster++) {
      if (clusters.sizes[cluster]) ring(context, ringAt(toPixel, cluster), cluster);
    }
    if (cursor >= 0) {
      context.setLineDash([3, 3]);
      circle(context, ringAt(toPixel, cursor), ringSize() + 6, ink, 1.5);
      context.setLineDash([]);
    }
    for (const token of found) {
      circle(context, [places[2 * token], places[2 * token + 1]], dotSize() + 2.5, ground, 4);
      circle(context, [places[2 * token], places[2 * token + 1]], dotSize() + 2.5, ink, token === foundAt ? 3 : 1.5);
    }
    if (star) drawStar(context, toPixel(...star), ink, ground);
    if (hovered >= 0) circle(context, [places[2 * hovered], places[2 * hovered + 1]], dotSize() + 4, ink, 1.5);
  }

  /** @param {Context} context */
  function drawPicked(context) {
    context.fillStyle = colour(picked);
    context.strokeStyle = ink;
    context.lineWidth = 1;
    context.beginPath();
    for (const token of membersOf(clusters, picked)) {
      disc(context, places[2 * token], places[2 * token + 1], dotSize() + 1.2);
    }
    context.fill();
    context.stroke();
  }

  /**
   * @param {Context} context
   * @param {[x: number, y: number]} place
   * @param {number} cluster
   */
  function ring(context, place, cluster) {
    const [radius, width] = cluster === picked ? [ringSize() + 3, 3] : [ringSize(), 1.75];
    circle(context, place, radius, ground, width + 2.5); // separates the ring from the dots below it
    circle(context, place, radius, cluster === picked ? ink : colour(cluster), width);
  }

  /**
   * The centroid under the pointer, or else the token, or else null.
   *
   * @param {MouseEvent} event
   * @returns {Key | null}
   */
  function keyAt(event) {
    if (!toPixel) return null;
    const box = host.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    let nearest = NONE, least = (ringSize() + 2) ** 2;
    for (let cluster = 0; cluster < clusters.sizes.length; cluster++) {
      if (!clusters.sizes[cluster]) continue;
      const [a, b] = ringAt(toPixel, cluster), distance = (a - x) ** 2 + (b - y) ** 2;
      if (distance < least) [nearest, least] = [cluster, distance];
    }
    if (nearest >= 0) return { cluster: nearest, token: NONE };
    const token = index.nearest(x, y, REACH);
    return token < 0 ? null : { cluster: clusters.labels[token], token };
  }

  host.addEventListener("pointermove", (event) => {
    if (zoom.moved()) return;
    const key = keyAt(event), token = key ? key.token : NONE;
    host.style.cursor = key ? "pointer" : "default";
    onHover(key, event);
    if (token === hovered) return;
    hovered = token;
    drawAbove();
  });
  host.addEventListener("pointerleave", (event) => {
    hovered = NONE;
    drawAbove();
    onHover(null, event);
  });
  host.addEventListener("click", (event) => {
    const key = zoom.buttons.contains(targetOf(event)) || zoom.moved() ? null : keyAt(event);
    if (key) onPick(key);
  });
  host.addEventListener("keydown", (event) => {
    const direction = DIRECTIONS[event.key];
    if (hasModifier(event) || !toPixel || event.target !== host) return;
    if (direction) moveTo(neighbour(toPixel, ...direction));
    else if ((event.key === "Enter" || event.key === " ") && cursor >= 0) onPick({ cluster: cursor, token: NONE });
    else if (!zoom.press(event.key)) return;
    event.preventDefault();
    event.stopPropagation(); // elsewhere the arrow keys change the step
  });
  host.addEventListener("blur", () => moveTo(NONE));

  /** @param {number} cluster */
  function moveTo(cluster) {
    cursor = cluster;
    if (cursor >= 0 && toPixel) zoom.reveal(ringAt(toPixel, cursor));
    drawAbove();
    onCursor(cluster);
  }

  /**
   * The nearest centroid within 45 degrees of a direction; if there is none, the present one.
   *
   * @param {ToPixel} toPixel
   * @param {number} right
   * @param {number} down
   */
  function neighbour(toPixel, right, down) {
    const from = cursor >= 0 ? cursor : picked;
    if (from < 0) return clusters.sizes.findIndex((size) => size > 0);
    const [x, y] = ringAt(toPixel, from);
    let best = from, least = Infinity;
    for (let cluster = 0; cluster < clusters.sizes.length; cluster++) {
      const [a, b] = ringAt(toPixel, cluster), along = (a - x) * right + (b - y) * down;
      const across = Math.abs((a - x) * down) + Math.abs((b - y) * right);
      if (cluster === from || !clusters.sizes[cluster] || along <= 0 || across > along) continue;
      if (along + across < least) [best, least] = [cluster, along + across];
    }
    return best;
  }

  const resized = new ResizeObserver(() => fit() && drawBelow());
  resized.observe(host);
  return {
    /**
     * @param {Places} newPlaces
     * @param {Clustering} newClusters
     * @param {number} cluster
     */
    show(newPlaces, newClusters, cluster) {
      const moved = newPlaces.points !== points;
      ({ points, stars } = newPlaces);
      rings = ringsOf(newPlaces, newClusters);
      if (moved) zoom.reset();
      [clusters, picked, cursor, hovered] = [newClusters, cluster, NONE, NONE];
      if ((moved || !toPixel) && !fit()) return;
      drawBelow();
    },
    /** @param {number} cluster */
    pick(cluster) {
      picked = cluster;
      drawBelow();
    },
    /** @param {[x: number, y: number] | null} place of the query */
    star(place) {
      star = place;
      drawAbove();
    },
    /**
     * Outlines tokens, one of them strongly.
     *
     * @param {number[]} tokens
     * @param {number} at
     */
    find(tokens, at) {
      [found, foundAt] = [tokens, at];
      if (at >= 0 && 2 * at < places.length) zoom.reveal([places[2 * at], places[2 * at + 1]]);
      drawAbove();
    },
    /** @param {number | null} token */
    hover(token) {
      hovered = token !== null && token < clusters.labels.length ? token : NONE;
      drawAbove();
    },
    recolour() {
      coloured = false;
      drawBelow();
    },
    destroy: () => resized.disconnect(),
  };
}
