// The marks that are drawn on the map of keys.
import { contextOf } from "./dom.js";

/** @typedef {CanvasRenderingContext2D} Context */

/** @param {HTMLCanvasElement} canvas */
export function clear(canvas) {
  const context = contextOf(canvas);
  context.globalAlpha = 1;
  context.clearRect(0, 0, canvas.width, canvas.height);
  return context;
}

/**
 * @param {Context} context
 * @param {number} x
 * @param {number} y
 * @param {number} radius
 */
export function disc(context, x, y, radius) {
  context.moveTo(x + radius, y);
  context.arc(x, y, radius, 0, 2 * Math.PI);
}

/**
 * @param {Context} context
 * @param {[x: number, y: number]} place
 * @param {number} radius
 * @param {string} stroke
 * @param {number} width
 */
export function circle(context, [x, y], radius, stroke, width) {
  context.strokeStyle = stroke;
  context.lineWidth = width;
  context.beginPath();
  disc(context, x, y, radius);
  context.stroke();
}

/**
 * @param {Context} context
 * @param {[x: number, y: number]} place
 * @param {string} fill
 * @param {string} edge
 */
export function drawStar(context, [x, y], fill, edge) {
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
