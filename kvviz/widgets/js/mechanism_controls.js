import { element } from "./dom.js";
import { explain } from "./explain.js";
import { MEANING } from "./mechanism_words.js";
import { button, markSelected, picker } from "./panel.js";
import { createSaveMenu } from "./save.js";

/** @import { MechanismPage, Scene } from "./mechanism.js" */
/** @import { Go } from "./panel.js" */
/** @import { Format } from "./save.js" */

/**
 * The head of the widget: play, the frames as a slider, the chapters as a bar, the decode step, and whether things move.
 *
 * @param {HTMLElement} root
 * @param {MechanismPage} page
 * @param {{ go: Go, toggle: () => void, step: (step: number) => void, save: (format: Format) => unknown }} actions
 */
export function createControls(root, page, { go, toggle, step: pickStep, save }) {
  const top = root.appendChild(element("div", "kv-head"));
  top.appendChild(element("h2", "kv-title", page.title));
  const menu = createSaveMenu(top, root, save);
  const bar = root.appendChild(element("div", "kv-controls"));
  const buttons = bar.appendChild(element("span", "kv-buttons"));
  const previous = button(buttons, "‹", "previous frame (←)", () => go(-1));
  const next = button(buttons, "›", "next frame (→)", () => go(1));
  const play = button(buttons, "▶", MEANING.play, toggle);
  const label = bar.appendChild(element("label", "kv-step"));
  label.append(element("span", "", "frame"));
  explain(label, MEANING.frame);
  const slider = label.appendChild(element("input"));
  Object.assign(slider, { type: "range", min: 1, step: 1 });
  slider.setAttribute("aria-label", "frame");
  slider.setAttribute("aria-description", MEANING.frame);
  slider.addEventListener("input", () => go(0, Number(slider.value) - 1));
  const count = label.appendChild(element("output"));
  const step = picker(bar, "step", page.steps, MEANING.step, (value) => pickStep(Number(value)));
  let moves = !matchMedia("(prefers-reduced-motion: reduce)").matches;
  const motion = button(bar, "motion", MEANING.motion, () => move(!moves));
  move(moves);
  const chapters = root.appendChild(element("div", "kv-chapters"));
  chapters.setAttribute("role", "group");
  chapters.setAttribute("aria-label", "chapters");

  /** @param {boolean} on */
  function move(on) {
    moves = on;
    motion.textContent = on ? "motion on" : "motion off";
    motion.setAttribute("aria-pressed", String(on));
  }

  /** @param {Scene} scene */
  function showChapters(scene) {
    const shown = [...chapters.children].map(({ textContent }) => textContent);
    if (shown.join("\n") === scene.chapters.join("\n")) return;
    chapters.replaceChildren();
    for (const name of scene.chapters) {
      button(
        chapters,
        name,
        `chapter: ${name}`,
        () => go(0, scene.frames.findIndex(({ chapter }) => chapter === name)),
      );
    }
  }

  return {
    bar,
    menu,
    moves: () => moves,
    /** @param {boolean} on */
    playing(on) {
      play.textContent = on ? "❚❚" : "▶";
      play.setAttribute("aria-pressed", String(on));
    },
    /**
     * @param {number} now
     * @param {Scene} scene
     * @param {number} shownStep
     */
    paint(now, scene, shownStep) {
      const last = scene.frames.length - 1, { chapter } = scene.frames[now];
      previous.disabled = now === 0;
      next.disabled = now === last;
      slider.max = String(last + 1);
      slider.value = String(now + 1);
      slider.setAttribute("value", slider.value); // screenshots show attributes
      slider.setAttribute("aria-valuetext", `frame ${now + 1} of ${last + 1}, ${chapter}`);
      count.textContent = `${now + 1} / ${last + 1}`;
      step.value = String(shownStep);
      markSelected(step);
      showChapters(scene);
      for (const each of chapters.children) {
        if (each.textContent === chapter) each.setAttribute("aria-current", "step");
        else each.removeAttribute("aria-current");
      }
    },
  };
}
