import { element } from "./dom.js";
import { distanceText, fixed, measuredText, OPEN } from "./prediction_words.js";

/** @import { Asked, Change } from "./prediction.js" */
/**
 * @typedef {object} ValueQuestion
 * @property {"value"} kind
 * @property {string} text
 * @property {number} measured
 * @property {number} low
 * @property {number} high
 * @property {string} unit
 * @property {number} digits
 * @property {boolean} log
 */

const MOST_STOPS = 1000, LOG_STOPS = 200;

/**
 * A slider, which says that it is not answered until it is used; then a mark where the measured value is.
 *
 * @param {HTMLElement} host
 * @param {ValueQuestion} question
 * @param {Change} changed
 * @returns {Asked}
 */
export function createValue(host, question, changed) {
  const { measured, low, high, unit, digits, log } = question, stops = stopsOf(question), last = stops.length - 1;
  const track = host.appendChild(element("div", "kv-track"));
  const slider = track.appendChild(element("input"));
  Object.assign(slider, { type: "range", min: 0, max: last, step: 1 });
  slider.setAttribute("aria-label", question.text);
  const shown = host.appendChild(element("output"));
  const scale = track.appendChild(element("div", "kv-scale"));
  scale.append(element("span", "", fixed(low, digits)), element("span", "", fixed(high, digits)));
  const line = track.appendChild(element("div", "kv-line"));
  /** @type {number | undefined} */
  let said;

  const withUnit = (/** @type {string} */ text) => unit ? `${text} ${unit}` : text;
  const words = () => said === undefined ? OPEN : withUnit(fixed(said, digits));

  function paint() {
    const place = said === undefined ? Math.floor(last / 2) : nearest(stops, said);
    slider.value = String(place);
    slider.setAttribute("value", slider.value); // screenshots show attributes
    slider.setAttribute("aria-valuetext", words());
    shown.textContent = said === undefined ? "?" : words();
    host.toggleAttribute("data-open", said === undefined);
  }

  function answer() {
    said = stops[Number(slider.value)];
    paint();
    changed(said, words());
  }
  slider.addEventListener("input", answer);
  slider.addEventListener("click", () => said === undefined && answer());
  slider.addEventListener("keydown", (event) => event.key === "Enter" && answer());
  paint();
  return {
    set(value) {
      said = value;
      paint();
    },
    lock: (locked) => (slider.disabled = locked),
    reveal() {
      const at = log ? Math.log(measured / low) / Math.log(high / low) : (measured - low) / (high - low);
      const mark = line.appendChild(element("span", "kv-diamond", "◆"));
      const label = line.appendChild(
        element("span", "kv-label", `measured ${withUnit(measuredText(measured, digits))}`),
      );
      line.style.setProperty("--kv-at", String(at));
      mark.setAttribute("aria-hidden", "true");
      label.setAttribute("aria-hidden", "true"); // the words below say it
      const value = Number(said),
        both = withUnit(`You said ${fixed(value, digits)}, measured ${measuredText(measured, digits)}`);
      const shown = Number(measuredText(measured, digits).replaceAll(",", "")); // so that the sentence adds up
      return `${both}: ${distanceText(value, shown, digits, log)}.`;
    },
    hide: () => line.replaceChildren(),
  };
}

/**
 * The values at which the slider stops, ascending, with as many decimals as the answer has.
 *
 * @param {ValueQuestion} question
 */
function stopsOf({ low, high, digits, log }) {
  const unit = 10 ** digits,
    count = log ? LOG_STOPS : Math.min(MOST_STOPS, Math.max(1, Math.round((high - low) * unit)));
  const stops = Array.from({ length: count + 1 }, (_, at) => {
    const value = log ? low * (high / low) ** (at / count) : low + ((high - low) * at) / count;
    return Math.min(high, Math.max(low, Math.round(value * unit) / unit));
  });
  return [...new Set(stops)];
}

/**
 * @param {number[]} stops
 * @param {number} value
 */
function nearest(stops, value) {
  const apart = stops.map((stop) => Math.abs(stop - value));
  return apart.indexOf(Math.min(...apart));
}
