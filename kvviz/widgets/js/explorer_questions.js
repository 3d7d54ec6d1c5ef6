/** @import { Curve, Place } from "./explorer.js" */
/** @import { Host } from "./host.js" */

const CURVE_WAIT_MS = 300;

/**
 * What the explorer asks its kernel. One question is under way at a time, and of those that come meanwhile only the
 * last is put, so that a slider never falls behind. The curve grows once nobody has asked for a while.
 *
 * @param {Host} host
 * @param {{ show: () => void, grown: (curve: Curve) => void }} answers
 */
export function createQuestions(host, { show, grown }) {
  /** @type {"show" | "curve" | null} */
  let asked = null;
  /** @type {Place | null} */
  let queued = null;
  /** @type {number | undefined} */
  let timer;

  /** @param {Place} place */
  function put(place) {
    asked = "show";
    host.send({ kind: "show", place });
  }

  function grow() {
    if (asked || host.get("curve").done) return;
    asked = "curve";
    host.send({ kind: "curve" });
  }

  /** @param {number} wait */
  function answered(wait) {
    const place = queued;
    asked = queued = null;
    clearTimeout(timer);
    if (place) put(place);
    else timer = setTimeout(grow, wait);
  }

  function shown() {
    if (queued === null) show();
    grown(host.get("curve"));
    answered(CURVE_WAIT_MS);
  }

  host.on("numbers", shown);
  host.on("curve", () => {
    grown(host.get("curve"));
    if (asked === "curve") answered(0); // else it comes with new numbers
  });
  shown();
  return {
    /** @param {Place} place */
    ask(place) {
      if (asked) queued = place;
      else put(place);
    },
    close: () => clearTimeout(timer),
  };
}
