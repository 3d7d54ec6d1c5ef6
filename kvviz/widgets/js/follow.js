// One widget of a page follows another one, as MissInspector.follow does with a kernel.

/** @import { PageModel } from "./page.js" */

/**
 * Let the miss inspector take over the step, layer, head and token that are picked in a stepper or comparer: what the
 * diagnosis has of them.
 *
 * `skipped` are the first steps, which the other widget leaves out; `group` of its heads are one KV head.
 *
 * @param {PageModel} inspector
 * @param {PageModel} other
 * @param {{ skipped: number, group: number }} how
 */
export function follow(inspector, other, { skipped, group }) {
  const { layers, steps, evidence } = inspector.get("page");
  /** @type {Record<string, number>} */
  const before = {};
  const moved = () => {
    /** @type {Record<string, number>} */
    const changes = {};
    const picked = {
      step: other.get("step") + skipped,
      layer: other.get("layer"),
      head: Math.floor(other.get("head") / group),
      position: other.get("token"),
    };
    for (const [name, value] of Object.entries(picked)) {
      if (before[name] !== value && known(name, value)) changes[name] = value;
      before[name] = value;
    }
    if (Object.keys(changes).length > 0) inspector.take(changes);
  };

  /**
   * @param {string} name
   * @param {number} value
   */
  function known(name, value) {
    if (name === "step") return value < steps;
    if (name === "layer") return layers.includes(value);
    return name === "head" || evidence.some((/** @type {{ position: number }} */ token) => token.position === value);
  }

  other.told(moved);
  moved();
}
