// A place that keys move and screen readers hear, in a text or a map of any number of places.
import { hasModifier } from "./dom.js";

/** @import { Pointed } from "./tip.js" */

/**
 * The point just below a node, from which a tip describes it.
 *
 * @param {Element} node
 * @returns {Pointed}
 */
export function pointOf(node) {
  const { left, bottom } = node.getBoundingClientRect();
  return { clientX: left, clientY: bottom - 12, spoken: true };
}

/**
 * Whether a pointer that left was a finger, whose tip stays.
 *
 * @param {PointerEvent} event
 */
export function isTouch(event) {
  return event.pointerType === "touch";
}

/**
 * Lets keys act on a focused node: each named key calls its function. They neither scroll nor reach the widget.
 *
 * @param {HTMLElement} node
 * @param {Record<string, (event: KeyboardEvent) => void>} actions
 */
export function onKeys(node, actions) {
  node.addEventListener("keydown", (event) => {
    if (hasModifier(event) || event.target !== node || !(event.key in actions)) return;
    actions[event.key](event);
    event.preventDefault();
    event.stopPropagation();
  });
}
