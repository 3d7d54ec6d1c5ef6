import { HUES, LEVELS, mapColours } from "./theme.js";
import { element } from "./strip.js";

const MARGIN = 18, REACH = 9, CELL = 14; // CSS pixels: around the dots, how near a pointer has to come, the index's squares
const LABEL_NONE = -1;

// A map of keys: dots for tokens, rings for centroids, a star for the query. Two canvases, so that a pointer repaints
// the few marks on top and never the thousands of dots.
export function createKeyMap(host, root, { onHover, onPick, onCursor }) {
  host.classList.add("kv-keymap");
  host.tabIndex = 0;
  host.setAttribute("role", "application");
  host.setAttribute("aria-label", "map of the keys: arrow keys go from centroid to centroid, Enter picks one, Escape lets go");
  const [below, above] = [0, 1].map(() => host.appendChild(element("canvas")));
  let points = new Float32Array(), star = null, clusters = null, colours = null, ink = "", ground = "";
  let places = new Float32Array(), toPixel = null, index = null, hovered = -1, picked = LABEL_NONE, cursor = LABEL_NONE;

  function fit() {
    const width = host.clientWidth, height = host.clientHeight, scale = window.devicePixelRatio || 1;
    if (!width || !points.length || !clusters) return false;
    for (const canvas of [below, above]) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      canvas.style.cssText = `position:absolute;left:0;top:0;width:${width}px;height:${height}px`;
      canvas.getContext("2d").setTransform(scale, 0, 0, scale, 0, 0);
    }
    toPixel = projector(points, star, width, height);
    places = new Float32Array(points.length);
    for (let at = 0; at < points.length; at += 2) places.set(toPixel(points[at], points[at + 1]), at);
    index = indexOfPlaces(places, width);
    return true;
  }

  const colour = (cluster) => {
    const look = 4 * ((cluster < 0 ? HUES : clusters.hues[cluster]) * LEVELS + LEVELS - 1);
    return `rgb(${colours[look]} ${colours[look + 1]} ${colours[look + 2]})`;
  };
  const ringAt = (cluster) => toPixel(clusters.rings[2 * cluster], clusters.rings[2 * cluster + 1]);
  const dotSize = () => (places.length > 40000 ? 1.1 : places.length > 8000 ? 1.7 : 2.4);
  const ringSize = () => (clusters.sizes.length > 240 ? 3.5 : clusters.sizes.length > 80 ? 5 : 7);

  function drawBelow() {
    if (!toPixel) return;
    if (!colours) {
      const style = getComputedStyle(root);
      [colours, ink, ground] = [mapColours(root), style.color, style.backgroundColor];
    }
    const context = clear(below), byHue = Array.from({ length: HUES + 1 }, () => []);
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
    if (!toPixel || !colours) return;
    const context = clear(above);
    if (picked >= 0) drawPicked(context);
    for (let cluster = 0; cluster < clusters.sizes.length; cluster++) {
      if (clusters.sizes[cluster]) ring(context, cluster, cluster === picked ? ringSize() + 3 : ringSize(), cluster === picked ? 3 : 1.75);
    }
    if (cursor >= 0) {
      context.setLineDash([3, 3]);
      circle(context, ...ringAt(cursor), ringSize() + 6, ink, 1.5);
      context.setLineDash([]);
    }
    drawStar(context, ...toPixel(...star), ink, ground);
    if (hovered >= 0) circle(context, places[2 * hovered], places[2 * hovered + 1], dotSize() + 4, ink, 1.5);
  }

  function drawPicked(context) {
    context.fillStyle = colour(picked);
    context.strokeStyle = ink;
    context.lineWidth = 1;
    context.beginPath();
    for (let token = 0; token < clusters.labels.length; token++) {
      if (clusters.labels[token] === picked) disc(context, places[2 * token], places[2 * token + 1], dotSize() + 1.2);
    }
    context.fill();
    context.stroke();
  }

  function ring(context, cluster, radius, width) {
    const place = ringAt(cluster);
    circle(context, ...place, radius, ground, width + 2.5); // keeps the ring apart from the dots under it
    circle(context, ...place, radius, cluster === picked ? ink : colour(cluster), width);
  }

  // The centroid under the pointer, else the token, else nothing.
  function at(event) {
    if (!toPixel) return null;
    const box = host.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    let best = null, least = (ringSize() + 2) ** 2;
    for (let cluster = 0; cluster < clusters.sizes.length; cluster++) {
      if (!clusters.sizes[cluster]) continue;
      const [a, b] = ringAt(cluster), apart = (a - x) ** 2 + (b - y) ** 2;
      if (apart < least) [best, least] = [{ cluster, token: -1 }, apart];
    }
    if (best) return best;
    const token = index.nearest(x, y, REACH);
    return token < 0 ? null : { cluster: clusters.labels[token], token };
  }

  host.addEventListener("pointermove", (event) => {
    const found = at(event), token = found ? found.token : -1;
    host.style.cursor = found ? "pointer" : "default";
    onHover(found, event);
    if (token === hovered) return;
    hovered = token;
    drawAbove();
  });
  host.addEventListener("pointerleave", (event) => {
    hovered = -1;
    drawAbove();
    onHover(null, event);
  });
  host.addEventListener("click", (event) => {
    const found = at(event);
    if (found) onPick(found);
  });
  host.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey || !toPixel) return;
    if (way) moveTo(neighbour(...way));
    else if ((event.key === "Enter" || event.key === " ") && cursor >= 0) onPick({ cluster: cursor, token: -1 });
    else return;
    event.preventDefault();
    event.stopPropagation(); // elsewhere the arrow keys change C
  });
  host.addEventListener("blur", () => moveTo(LABEL_NONE));

  function moveTo(cluster) {
    cursor = cluster;
    drawAbove();
    onCursor(cluster);
  }

  // The nearest centroid within 45 degrees of a direction; where there is none, the one we are at.
  function neighbour(right, down) {
    const from = cursor >= 0 ? cursor : picked;
    if (from < 0) return clusters.sizes.findIndex((size) => size > 0);
    const [x, y] = ringAt(from);
    let best = from, least = Infinity;
    for (let cluster = 0; cluster < clusters.sizes.length; cluster++) {
      const [a, b] = ringAt(cluster), along = (a - x) * right + (b - y) * down, across = Math.abs((a - x) * down) + Math.abs((b - y) * right);
      if (cluster === from || !clusters.sizes[cluster] || along <= 0 || across > along) continue;
      if (along + across < least) [best, least] = [cluster, along + across];
    }
    return best;
  }

  const resized = new ResizeObserver(() => fit() && drawBelow());
  resized.observe(host);
  return {
    above,
    show(newPlaces, newClusters, cluster) {
      const moved = newPlaces.points !== points;
      [points, star, clusters, picked, cursor, hovered] = [newPlaces.points, newPlaces.star, newClusters, cluster, LABEL_NONE, -1];
      if ((moved || !toPixel) && !fit()) return;
      drawBelow();
    },
    pick(cluster) {
      picked = cluster;
      drawBelow();
    },
    hover(token) {
      hovered = token !== null && token < clusters.labels.length ? token : -1;
      drawAbove();
    },
    recolour() {
      colours = null;
      drawBelow();
    },
    destroy: () => resized.disconnect(),
  };
}

// Takes keys' coordinates to pixels, one unit as long both ways; whatever lies outside is drawn at the border.
function projector(points, star, width, height) {
  let [left, right, low, high] = [star[0], star[0], star[1], star[1]];
  for (let at = 0; at < points.length; at += 2) {
    left = Math.min(left, points[at]);
    right = Math.max(right, points[at]);
    low = Math.min(low, points[at + 1]);
    high = Math.max(high, points[at + 1]);
  }
  const unit = Math.min((width - 2 * MARGIN) / Math.max(right - left, 1e-9), (height - 2 * MARGIN) / Math.max(high - low, 1e-9));
  const [x0, y0] = [(width - unit * (right - left)) / 2, (height - unit * (high - low)) / 2];
  return (x, y) => [x0 + unit * (x - left), y0 + unit * (high - y)];
}

// Answers which place lies nearest to a pixel: only the squares around it are looked at.
function indexOfPlaces(places, width) {
  const columns = Math.ceil(width / CELL) + 2, squares = new Map();
  const square = (x, y) => (Math.floor(y / CELL) + 1) * columns + Math.floor(x / CELL) + 1;
  for (let token = 0; 2 * token < places.length; token++) {
    const key = square(places[2 * token], places[2 * token + 1]);
    if (squares.has(key)) squares.get(key).push(token);
    else squares.set(key, [token]);
  }
  return {
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

function clear(canvas) {
  const context = canvas.getContext("2d");
  context.globalAlpha = 1;
  context.clearRect(0, 0, canvas.width, canvas.height);
  return context;
}

function disc(context, x, y, radius) {
  context.moveTo(x + radius, y);
  context.arc(x, y, radius, 0, 2 * Math.PI);
}

function circle(context, x, y, radius, stroke, width) {
  context.strokeStyle = stroke;
  context.lineWidth = width;
  context.beginPath();
  disc(context, x, y, radius);
  context.stroke();
}

function drawStar(context, x, y, fill, edge) {
  context.beginPath();
  for (let corner = 0; corner < 10; corner++) {
    const radius = corner % 2 ? 4.5 : 11, angle = (corner * Math.PI) / 5 - Math.PI / 2;
    context.lineTo(x + radius * Math.cos(angle), y + radius * Math.sin(angle));
  }
  context.closePath();
  context.lineWidth = 3;
  context.strokeStyle = edge;
  context.stroke();
  context.fillStyle = fill;
  context.fill();
}
