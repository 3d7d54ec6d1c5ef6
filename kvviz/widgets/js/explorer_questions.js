/** @import { Curve, Place } from "./explorer.js" */
/** @import { Host } from "./host.js" */

const CURVE_WAIT_MS = 300;

/**
 * The explorer's requests to its kernel. One is under way at a time; of those that come meanwhile only the last is
 * sent, so that a slider never falls behind. When there has been no request for a while, the curve grows.
 *
 * @param {Host} host
 * @param {{ show: () => void, grown: (curve: Curve) => void }} answers
 */
export function createQuestions(host, { show, grown }) {
  /** @type {"show" | "curve" | null} */
  let underWay = null;
  /** @type {Place | null} */
  let queued = null;
  /** @type {number | undefined} */
  let timer;

  /** @param {Place} place */
  function request(place) {
    underWay = "show";
    host.send({ kind: "show", place });
  }

  function grow() {
    if (underWay || host.get("curve").done) return;
    underWay = "curve";
    host.send({ kind: "curve" });
  }

  /** @param {number} wait */
  function answered(wait) {
    const place = queued;
    underWay = queued = null;
    clearTimeout(timer);
    if (place) request(place);
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
    if (underWay === "curve") answered(0); // otherwise it comes with new numbers
  });
  shown();
  return {
    /** @param {Place} place */
    ask(place) {
      if (underWay) queued = place;
      else request(place);
    },
    /** Wait no longer for what is under way. What is queued is sent: a kernel that is only slow answers it later. */
    forget() {
      const place = queued;
      if (place) queueMicrotask(() => host.send({ kind: "show", place })); // throws if the kernel is gone
      underWay = queued = null;
    },
    close: () => clearTimeout(timer),
  };
}
