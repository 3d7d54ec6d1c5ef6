// Draws one mark, link or outline of a frame on a canvas.

/** @import { Mark } from "./mechanism_layout.js" */
/** @typedef {{ start: string, end: string, label: string, strength: number, weak: boolean }} Link */
/** @typedef {{ text: string, muted: string, line: string, brand: string, ground: string, raised: string, dark: boolean,
 *   family: string }} Colours */

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Mark} mark
 * @param {Colours} theme
 * @param {(group: number) => number | null} hueOf
 */
export function drawMark(context, mark, theme, hueOf) {
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
    context.fillStyle = shape !== "bar" && hue !== null ? inkOn(theme, alpha) : theme.text;
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
export function drawLink(context, link, index, byObject, theme, alpha) {
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

/**
 * The colour of a label on a hue of this strength, with a contrast of at least 4.5 : 1 on a full one.
 *
 * @param {Colours} theme
 * @param {number} alpha
 */
function inkOn(theme, alpha) {
  return theme.dark && alpha < 0.65 ? theme.text : "#000";
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
export function outline(context, { x, y, w, h, shape }, colour, width) {
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
