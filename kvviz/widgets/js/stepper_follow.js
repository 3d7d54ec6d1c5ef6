import { element } from "./dom.js";
import { explain } from "./explain.js";
import { frameOf, indexOf } from "./slice.js";
import { ATTENDED, MERGED, ORACLE } from "./strip.js";
import { MEANING, quoted } from "./words.js";

/** @import { Frame } from "./slice.js" */
/** @import { StepperPage, StepperSlice } from "./stepper.js" */
/** @import { Strip } from "./strip.js" */

/**
 * Where the text moves when step, layer or head change, and what becomes of a picked token over the steps.
 *
 * @param {Element} heading
 * @param {StepperPage} page
 * @param {() => Strip} strip
 */
export function createFollow(heading, page, strip) {
  const label = heading.appendChild(element("label", "kv-follow", "follows "));
  explain(label, MEANING.follow);
  const select = label.appendChild(element("select", "kv-headmeasure"));
  select.setAttribute("aria-label", "the token that the text follows");
  if (page.span.length) select.append(new Option("the marked tokens", "span"));
  select.append(
    new Option("the strongest token", "strongest"),
    new Option("the missed token", "missed"),
    new Option("the picked token", "picked"),
    new Option("nothing", "nothing"),
  );
  const line = element("p", "kv-note kv-picked");
  heading.after(line);
  line.hidden = true;
  let picked = -1;
  /** @type {{ slice: StepperSlice, frame: Frame } | null} */
  let shown = null;

  /** @returns {number} the position to move to, -1 for none */
  function target() {
    if (!shown) return -1;
    const { frame } = shown;
    if (select.value === "span") return page.span[0];
    if (select.value === "picked") return picked;
    if (select.value === "missed") return heaviest(frame, (index) => !(frame.marks[index] & (ATTENDED | MERGED)));
    return select.value === "nothing" ? -1 : heaviest(frame, (index) => frame.groups[index] >= 0);
  }

  function move() {
    const position = target(), [top, bottom] = strip().inSight();
    if (position >= 0 && position < page.prompt_length && (position <= top || position >= bottom - 1)) {
      strip().focus(position, false);
    }
  }

  function tell() {
    line.hidden = picked < 0 || !shown;
    strip().light(picked < 0 ? [] : [picked]);
    if (!shown || picked < 0) return;
    const counts = { agreed: 0, wasted: 0, merged: 0, missed: 0 };
    for (let step = 0; step < page.steps; step++) {
      const frame = frameOf(shown.slice, step), index = indexOf(frame, picked);
      const mark = index < 0 ? 0 : frame.marks[index];
      if (mark & ATTENDED) counts[mark & ORACLE ? "agreed" : "wasted"]++;
      else if (mark & MERGED) counts.merged++;
      else if (mark) counts.missed++;
    }
    const found = Object.entries(counts).filter(([, count]) => count).map(([name, count]) => `${name} in ${count}`);
    line.textContent = `${quoted(page.tokens[picked])} at ${picked}: ${
      found.join(", ") || "neither attended nor wanted"
    } of ${page.steps} steps, in this head`;
  }

  select.addEventListener("change", () => {
    for (const option of select.options) option.toggleAttribute("selected", option.selected);
    move();
  });
  return {
    /**
     * Outlines a token over all steps; picked again, it is let go.
     *
     * @param {number} position
     */
    pick(position) {
      picked = picked === position ? -1 : position;
      tell();
      return picked;
    },
    /** Outlines the picked token again, after others were outlined. */
    light: () => strip().light(picked < 0 ? [] : [picked]),
    /**
     * @param {StepperSlice} slice
     * @param {Frame} frame
     * @param {boolean} stay
     */
    paint(slice, frame, stay) {
      shown = { slice, frame };
      tell();
      if (!stay) move();
    },
    /** Where the text opens. */
    opening: () => Math.max(0, target()),
  };
}

/**
 * The position of the token with the most attention of those that count, -1 if there is none.
 *
 * @param {Frame} frame
 * @param {(index: number) => boolean} counts
 */
function heaviest(frame, counts) {
  let best = -1;
  for (let index = 0; index < frame.positions.length; index++) {
    if (counts(index) && (best < 0 || frame.weights[index] > frame.weights[best])) best = index;
  }
  return best < 0 ? -1 : frame.positions[best];
}
