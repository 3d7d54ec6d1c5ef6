import { isTouch } from "./cursor.js";
import { contextOf, element } from "./dom.js";
import { drawLink, drawMark, outline } from "./mechanism_draw.js";
import { layoutOf } from "./mechanism_layout.js";

// Draws the marks of a frame on a canvas, and moves them from their places in the frame before.

/** @import { Colours, Link } from "./mechanism_draw.js" */
/** @import { KeyMap, Mark, Panel } from "./mechanism_layout.js" */
/** @import { Pointed } from "./tip.js" */
/** @typedef {{ panels: Panel[], links: Link[], focus: string[] }} Picture */

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
