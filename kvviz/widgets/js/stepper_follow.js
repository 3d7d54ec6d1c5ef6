import { createFollowText } from "./follow_text.js";
import { element } from "./dom.js";
import { frameOf, indexOf } from "./slice.js";
import { ATTENDED, MERGED, ORACLE } from "./strip.js";
import { unionOf } from "./union.js";
import { quoted } from "./words.js";

/** @import { Frame } from "./slice.js" */
/** @import { StepperPage, StepperSlice } from "./stepper.js" */
/** @import { Strip } from "./strip.js" */

/**
 * What the text follows when step, layer or head change, and what becomes of a picked token over the steps.
 *
 * @param {HTMLElement} settings
 * @param {Element} heading
 * @param {StepperPage} page
 * @param {() => Strip} strip
 */
export function createFollow(settings, heading, page, strip) {
  let picked = -1;
  const text = createFollowText(settings, heading, page, { strip, picked: () => picked });
  const line = element("p", "kv-note kv-picked");
  heading.after(line);
  line.hidden = true;
  /** @type {StepperSlice | null} */
  let shown = null;

  function tell() {
    line.hidden = picked < 0 || !shown;
    strip().light(picked < 0 ? [] : [picked]);
    if (!shown || picked < 0) return;
    const counts = { agreed: 0, wasted: 0, merged: 0, missed: 0 };
    for (let step = 0; step < page.steps; step++) {
      const frame = frameOf(shown, step), index = indexOf(frame, picked);
      const mark = index < 0 ? 0 : frame.marks[index];
      if (mark & ATTENDED) counts[mark & ORACLE ? "agreed" : "wasted"]++;
      else if (mark & MERGED) counts.merged++;
      else if (mark) counts.missed++;
    }
    const found = Object.entries(counts).filter(([, count]) => count).map(([name, count]) => `${name} in ${count}`);
    const { kind, heads } = unionOf(shown);
    line.textContent = `${quoted(page.tokens[picked])} at ${picked}: ${
      found.join(", ") || "neither attended nor wanted"
    } of ${page.steps} steps, in ${kind === "none" ? "this head" : `the union of ${heads} heads`}`;
  }

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
      shown = slice;
      tell();
      text.show([frame], stay);
    },
    opening: text.opening,
  };
}
