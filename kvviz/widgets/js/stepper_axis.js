import { element, format } from "./dom.js";
import { explain } from "./explain.js";
import { createRange } from "./map_zoom.js";

/** @import { Zoom } from "./map_zoom.js" */
/** @import { StepperPage } from "./stepper.js" */
/** @import { Strip } from "./strip.js" */

/**
 * What frames the map: above, the visible part of the prompt, its end and the marked tokens; below, the positions.
 *
 * @param {HTMLElement} mapPanel
 * @param {StepperPage} page
 * @param {Zoom} zoom
 */
export function createAxis(mapPanel, page, zoom) {
  const bar = explain(
    element("div", "kv-sight"),
    "the visible part of the prompt, the end of the prompt, and the marked tokens",
  );
  const inSight = bar.appendChild(element("span", "kv-seen"));
  const marks = [
    placed("kv-end", page.prompt_length, "the end of the prompt"),
    ...page.span.map((position) => placed("kv-asked", position + 0.5, "a marked token")),
  ];
  mapPanel.before(bar);
  const axis = element("div", "kv-axis");
  const first = axis.appendChild(element("span"));
  axis.append(element("span", "", `position; steps 0 to ${format(page.steps - 1)} from top to bottom`));
  const last = axis.appendChild(element("span"));
  mapPanel.after(axis, createRange(zoom));
  /** @type {Strip | null} */
  let strip = null;

  /**
   * @param {string} name
   * @param {number} position
   * @param {string} meaning
   */
  function placed(name, position, meaning) {
    return { position, node: bar.appendChild(explain(element("span", name), meaning)) };
  }

  /** @param {number} position */
  function shareOf(position) {
    const [from, until] = zoom.range;
    return (position - from) / (until - from);
  }

  function sight() {
    if (!strip) return;
    const ends = strip.inSight().map((position) => shareOf(Math.min(position, page.prompt_length)));
    const [from, until] = ends.map((share) => Math.max(0, Math.min(1, share)));
    inSight.hidden = until <= from;
    inSight.style.left = `${100 * from}%`;
    inSight.style.width = `${100 * (until - from)}%`;
  }

  function paint() {
    const [from, until] = zoom.range;
    first.textContent = format(from);
    last.textContent = format(until - 1);
    for (const { position, node } of marks) {
      const share = shareOf(position);
      node.hidden = share < 0 || share > 1;
      node.style.left = `${100 * share}%`;
    }
    sight();
  }
  zoom.told((_, choosing) => choosing || paint());
  paint();
  return {
    sight,
    /** @param {Strip} prompt */
    follow(prompt) {
      strip = prompt;
      sight();
    },
  };
}
