import { isTouch } from "./cursor.js";
import { contextOf, element } from "./dom.js";
import { layoutOf } from "./mechanism_layout.js";

// Draws the marks of a frame on a canvas, and moves them from their places in the frame before.

/** @import { KeyMap, Mark, Panel } from "./mechanism_layout.js" */
/** @import { Pointed } from "./tip.js" */
/** @typedef {{ start: string, end: string, label: string, strength: number, weak: boolean }} Link */
/** @typedef {{ panels: Panel[], links: Link[], focus: string[] }} Picture */
/** @typedef {{ text: string, muted: string, line: string, brand: string, ground: string, raised: string, dark: boolean,
 *   family: string }} Colours */

const MOVE_MS = 800, REACH = 7; // a mark is pointed at from so many pixels away
const smooth = (/** @type {number} */ t) => t * t * (3 - 2 * t);

/**
 * @param {HTMLElement} host
 * @param {object} options
 * @param {() => Colours} options.colours
 * @param {(group: number) => number | null} options.hueOf
 * @param {(mark: Mark | null, at: Pointed) => void} options.onHover
 * @param {(mark: Mark) => void} options.onPick
 */
export function createPicture(host, { colours, hueOf, onHover, onPick }) {
  const canvas = host.appendChild(element("canvas", "kv-picture"));
  canvas.setAttribute("role", "img");
  const context = contextOf(canvas);
  /** @type {Mark[]} */
  let marks = [];
  /** @type {Map<string, Mark>} where each mark comes from, by key */
  let origins = new Map();
  /** @type {Mark[]} */
  let gone = [];
  /** @type {Picture} */
  let picture = { panels: [], links: [], focus: [] };
  /** @type {KeyMap} */
  let map = { positions: [], x: [], y: [] };
  /** @type {Set<string>} */
  let lit = new Set();
  /** @type {Set<string>} */
  let followed = new Set();
  let height = 1, from = 1, progress = 1, running = 0;
  /** @type {() => void} */
  let arrived = () => {};

  /** @type {(text: string, small?: boolean) => number} */
  function measure(text, small = false) {
    context.font = `${small ? 11 : 12}px ${colours().family}`;
    return context.measureText(text).width;
  }

  /**
   * Shows a frame: at once, or moving there, after which `done` is called.
   *
   * @param {Picture} next
   * @param {KeyMap} keys
   * @param {boolean} moving
   * @param {() => void} done
   */
  function show(next, keys, moving, done) {
    cancelAnimationFrame(running);
    const before = marks.map((mark) => between(mark));
    [picture, map, from] = [next, keys, height];
    ({ marks, height } = layoutOf(picture.panels, map, host.clientWidth || 640, measure));
    const byKey = new Map(before.map((mark) => [mark.key, mark]));
    const byObject = new Map(before.filter(({ id }) => id).map((mark) => [mark.id, mark]));
    origins = new Map(marks.flatMap((mark) => {
      const origin = byKey.get(mark.key) ?? (mark.id ? byObject.get(mark.id) : undefined);
      return origin ? [[mark.key, origin]] : [];
    }));
    const kept = new Set(marks.map(({ key }) => key));
    gone = before.filter(({ key }) => !kept.has(key));
    arrived = done;
    if (!moving || !before.length) return end();
    const started = performance.now();
    const step = () => {
      progress = Math.min(1, (performance.now() - started) / MOVE_MS);
      if (progress >= 1) return end();
      paint();
      running = requestAnimationFrame(step);
    };
    progress = 0;
    step();
  }

  function end() {
    progress = 1;
    gone = [];
    paint();
    const done = arrived;
    arrived = () => {};
    done();
  }

  /**
   * The mark as it is at this moment of the movement.
   *
   * @param {Mark} mark
   * @returns {Mark}
   */
  function between(mark) {
    if (progress >= 1) return mark;
    const origin = origins.get(mark.key), t = smooth(progress);
    if (!origin) return { ...mark, alpha: mark.alpha * t };
    const mix = (/** @type {"x" | "y" | "w" | "h" | "alpha"} */ name) => origin[name] + (mark[name] - origin[name]) * t;
    const place = { x: mix("x"), y: mix("y"), w: mix("w"), h: mix("h"), alpha: mix("alpha") };
    return { ...mark, ...place, group: t < 0.5 ? origin.group : mark.group };
  }

  function paint() {
    const theme = colours(), ratio = devicePixelRatio || 1, width = host.clientWidth || 640;
    const shownHeight = from + (height - from) * smooth(progress);
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(shownHeight * ratio);
    canvas.style.height = `${shownHeight}px`;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, shownHeight);
    const fade = 1 - Math.min(1, progress * 2);
    for (const mark of gone) if (fade > 0) drawMark(context, { ...mark, alpha: mark.alpha * fade }, theme, hueOf);
    const now = marks.map(between);
    const byObject = new Map(now.filter(({ id }) => id).map((mark) => [mark.id, mark]));
    for (const mark of now) if (mark.shape === "ground") drawMark(context, mark, theme, hueOf);
    picture.links.forEach((link, index) => drawLink(context, link, index, byObject, theme, smooth(progress)));
    for (const mark of now) if (mark.shape !== "ground") drawMark(context, mark, theme, hueOf);
    const focus = new Set(picture.focus);
    for (const mark of now) {
      if (lit.has(mark.id)) outline(context, mark, theme.text, 2);
      else if (followed.has(mark.id)) outline(context, mark, theme.brand, 2.5);
      else if (focus.has(mark.id)) outline(context, mark, theme.text, 1.5);
    }
  }

  /** @param {MouseEvent} event */
  function markAt(event) {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    let best = null, least = REACH;
    for (const mark of marks) {
      if (!mark.id) continue;
      const dot = mark.shape === "dot" || mark.shape === "ring" || mark.shape === "star";
      const away = dot ? Math.max(0, Math.hypot(x - mark.x, y - mark.y) - mark.w) : Math.hypot(
        Math.max(mark.x - x, 0, x - mark.x - mark.w),
        Math.max(mark.y - y, 0, y - mark.y - mark.h),
      );
      if (away < least || (away === least && mark.shape === "ring")) [best, least] = [mark, away];
    }
    return best;
  }
  canvas.addEventListener("pointermove", (event) => onHover(markAt(event), event));
  canvas.addEventListener("pointerleave", (event) => isTouch(event) || onHover(null, event));
  canvas.addEventListener("click", (event) => {
    const mark = markAt(event);
    if (mark) onPick(mark);
    onHover(mark, event);
  });
  const resized = new ResizeObserver(() => {
    if (!picture.panels.length && !marks.length) return;
    const { marks: laidOut, height: high } = layoutOf(picture.panels, map, host.clientWidth || 640, measure);
    [marks, height, from] = [laidOut, high, high];
    if (progress >= 1) paint();
  });
  resized.observe(host);

  return {
    canvas,
    show,
    paint,
    marks: () => marks,
    /** @param {Iterable<string>} ids */
    light(ids) {
      lit = new Set(ids);
      paint();
    },
    /** @param {Iterable<string>} ids */
    follow(ids) {
      followed = new Set(ids);
      paint();
    },
    close() {
      cancelAnimationFrame(running);
      resized.disconnect();
    },
  };
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Mark} mark
 * @param {Colours} theme
 * @param {(group: number) => number | null} hueOf
 */
function drawMark(context, mark, theme, hueOf) {
  const { x, y, w, h, shape } = mark, hue = hueOf(mark.group);
  const alpha = Math.max(0, Math.min(1, mark.alpha));
  const colour = hue === null ? theme.muted : `oklch(${theme.dark ? 0.72 : 0.62} 0.15 ${hue})`;
  context.globalAlpha = alpha;
  context.fillStyle = context.strokeStyle = colour;
  context.lineWidth = 1;
  context.textBaseline = "alphabetic";
  context.textAlign = "left";
  const write = (/** @type {string} */ text, /** @type {number} */ left, /** @type {number} */ line, small = true) => {
    context.font = `${small ? 11 : 12}px ${theme.family}`;
    context.fillText(text, left, line);
  };
  if (shape === "dot") {
    context.beginPath();
    context.arc(x, y, w, 0, 2 * Math.PI);
    context.fill();
  } else if (shape === "ring") {
    context.lineWidth = 2;
    context.strokeStyle = theme.text;
    context.fillStyle = theme.ground;
    context.beginPath();
    context.arc(x, y, w, 0, 2 * Math.PI);
    context.globalAlpha = 0.75 * alpha;
    context.fill();
    context.globalAlpha = alpha;
    context.stroke();
    context.fillStyle = theme.text;
    context.font = `9px ${theme.family}`;
    context.textAlign = "center";
    context.fillText(mark.label || mark.id.split(":")[1], x, y + 3);
  } else if (shape === "star") {
    star(context, x, y, w, theme.text);
  } else if (shape === "ground") {
    context.fillStyle = theme.raised;
    context.globalAlpha = 0.6 * alpha;
    context.fillRect(x, y, w, h);
  } else if (shape === "box") {
    context.strokeStyle = theme.text;
    context.setLineDash([4, 3]);
    context.strokeRect(x, y, w, h);
    context.setLineDash([]);
    context.fillStyle = theme.text;
    write(mark.label, x + 3, y - 3);
  } else if (shape === "title") {
    context.fillStyle = theme.muted;
    context.font = `600 12px ${theme.family}`;
    context.fillText(mark.label, x, y);
  } else if (shape === "note") {
    context.fillStyle = theme.muted;
    context.textAlign = w < 0 ? "right" : "left";
    write(mark.label, x, y);
  } else if (shape === "cut") {
    context.strokeStyle = context.fillStyle = theme.text;
    context.lineWidth = 2;
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(x + w, y + h);
    context.stroke();
    context.textAlign = h ? "left" : "right";
    if (h) write(mark.label, x + 4, y + h);
    else write(mark.label, x + w, y - 3);
  } else {
    if (shape === "chip" && hue === null) context.globalAlpha = alpha / 4; // its label is read on it
    context.fillRect(x, y, w, h);
    context.globalAlpha = 1;
    context.fillStyle = theme.text;
    if (shape === "bar") {
      context.textAlign = "right";
      if (mark.label) write(mark.label, x - 5, y + h / 2 + 4);
      context.textAlign = "left";
      if (mark.value !== null) write(short(mark.value), x + w + 4, y + h / 2 + 4);
    } else if (shape === "segment") {
      context.strokeStyle = theme.ground;
      context.strokeRect(x, y, w, h);
      if (mark.label) write(mark.label, x + 3, y + h / 2 + 4);
    } else if (shape === "chip" || shape === "cell") {
      if (shape === "chip") {
        context.globalAlpha = 0.4 + 0.6 * alpha;
        context.strokeStyle = theme.line;
        context.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
        context.globalAlpha = 1; // a faint chip is read too
      }
      if (mark.label) write(mark.label, x + 4, y + h / 2 + 4, false);
    }
  }
  context.globalAlpha = 1;
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Link} link
 * @param {number} index
 * @param {Map<string, Mark>} byObject
 * @param {Colours} theme
 * @param {number} alpha
 */
function drawLink(context, link, index, byObject, theme, alpha) {
  const start = byObject.get(link.start), end = byObject.get(link.end);
  if (!start || !end) return;
  const [a, b] = [start, end].map(middleOf), down = a.y < b.y;
  const [top, bottom] = down ? [start, end] : [end, start], [high, low] = down ? [a, b] : [b, a];
  const round = (/** @type {Mark} */ mark) => ["dot", "ring", "star"].includes(mark.shape);
  const from = round(top) ? high.y : top.y + top.h, to = round(bottom) ? low.y : bottom.y;
  context.globalAlpha = alpha * Math.max(0.15, link.strength);
  context.strokeStyle = context.fillStyle = theme.text;
  context.lineWidth = 0.6 + 1.6 * link.strength;
  if (link.weak) context.setLineDash([3, 3]);
  context.beginPath();
  context.moveTo(high.x, from);
  context.lineTo(low.x, to);
  context.stroke();
  context.setLineDash([]);
  if (link.label) {
    context.globalAlpha = alpha;
    context.font = `10px ${theme.family}`;
    context.textAlign = "center";
    // Near its start, where links do not cross yet, by turns at two heights, on a ground of its own.
    const away = index % 2 ? 0.38 : 0.2, near = down ? away : 1 - away;
    const half = context.measureText(link.label).width / 2 + 1, right = context.canvas.clientWidth - half;
    const x = Math.min(Math.max(high.x + (low.x - high.x) * near, half), right), y = from + (to - from) * near + 3;
    context.strokeStyle = theme.ground;
    context.lineWidth = 4;
    context.strokeText(link.label, x, y);
    context.fillText(link.label, x, y);
  }
  context.globalAlpha = 1;
}

/** @param {Mark} mark */
function middleOf({ x, y, w, h, shape }) {
  return ["dot", "ring", "star"].includes(shape) ? { x, y } : { x: x + w / 2, y: y + h / 2 };
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Mark} mark
 * @param {string} colour
 * @param {number} width
 */
function outline(context, { x, y, w, h, shape }, colour, width) {
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.beginPath();
  if (["dot", "ring", "star"].includes(shape)) context.arc(x, y, w + 3, 0, 2 * Math.PI);
  else context.rect(x - 1.5, y - 1.5, w + 3, h + 3);
  context.stroke();
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number} x
 * @param {number} y
 * @param {number} radius
 * @param {string} colour
 */
function star(context, x, y, radius, colour) {
  context.fillStyle = colour;
  context.beginPath();
  for (let point = 0; point < 10; point++) {
    const angle = (point * Math.PI) / 5 - Math.PI / 2, length = point % 2 ? radius * 0.45 : radius;
    context.lineTo(x + length * Math.cos(angle), y + length * Math.sin(angle));
  }
  context.fill();
}

/** @param {number} value */
function short(value) {
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return value.toLocaleString("en-US");
  return Math.abs(value) >= 1000 || (value !== 0 && Math.abs(value) < 0.01)
    ? value.toExponential(1)
    : String(Number(value.toPrecision(3)));
}
