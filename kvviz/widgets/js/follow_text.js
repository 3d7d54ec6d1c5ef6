// Where a text moves when what is shown changes.
import { element } from "./dom.js";
import { explain } from "./explain.js";
import { setting } from "./menu.js";
import { ATTENDED, MERGED, SINK } from "./strip.js";
import { MEANING } from "./words.js";

/** @import { Frame } from "./slice.js" */
/** @import { Strip } from "./strip.js" */

/**
 * A setting for the token that a text follows: it moves there, unless the token is in sight.
 *
 * @param {HTMLElement} settings
 * @param {Element} heading gets words that say it
 * @param {{ span: number[], prompt_length: number }} page
 * @param {object} options
 * @param {() => Strip} options.strip
 * @param {(position: number) => void} [options.focus]
 * @param {() => number} options.picked the position that was picked, -1 for none
 */
export function createFollowText(settings, heading, page, { strip, picked, focus = (to) => strip().focus(to, false) }) {
  const select = setting(settings, "the text follows", "the token that the text follows", MEANING.follow);
  if (page.span.length) select.append(new Option("the marked tokens", "span"));
  select.append(
    new Option("the strongest token", "strongest"),
    new Option("the missed token", "missed"),
    new Option("the picked token", "picked"),
    new Option("nothing", "nothing"),
  );
  const words = heading.appendChild(explain(element("span", "kv-follow"), `${MEANING.follow}; Settings has others`));
  /** @type {Frame[]} */
  let frames = [];

  /** @returns {number} the position to move to, -1 for none */
  function target() {
    if (select.value === "span") return page.span[0];
    if (select.value === "picked") return picked();
    if (select.value === "missed") return heaviest(frames, (mark) => !(mark & (ATTENDED | MERGED)));
    return select.value === "nothing" ? -1 : strongest(frames);
  }

  function move() {
    const position = target(), [top, bottom] = strip().inSight();
    if (position >= 0 && position < page.prompt_length && (position <= top || position >= bottom - 1)) focus(position);
  }

  function say() {
    for (const option of select.options) option.toggleAttribute("selected", option.selected);
    words.textContent = `follows ${select.selectedOptions[0].text}`;
  }

  select.addEventListener("change", () => {
    say();
    move();
  });
  say();
  return {
    /**
     * Moves the text to its token in what is now shown, one frame or several side by side, or lets it `stay`.
     *
     * @param {Frame[]} shown
     */
    show(shown, stay = false) {
      frames = shown;
      if (!stay) move();
    },
    /** Where the text opens. */
    opening() {
      const position = target();
      return Math.max(0, position >= 0 ? position : heaviest(frames, (mark) => Boolean(mark & ATTENDED)));
    },
  };
}

/**
 * The selected token with the most attention that is no method's sink, -1 if there is none.
 *
 * @param {Frame[]} frames
 */
function strongest(frames) {
  const sinks = new Set();
  for (const { positions, marks } of frames) {
    positions.forEach((position, index) => marks[index] & SINK && sinks.add(position));
  }
  return heaviest(frames, (_, group, position) => group >= 0 && !sinks.has(position));
}

/**
 * The position of the token with the most attention of those that count, -1 if there is none.
 *
 * @param {Frame[]} frames
 * @param {(mark: number, group: number, position: number) => boolean} counts
 */
function heaviest(frames, counts) {
  let heaviestToken = -1, heaviestWeight = -1;
  for (const { positions, marks, groups, weights } of frames) {
    for (let index = 0; index < positions.length; index++) {
      if (weights[index] > heaviestWeight && counts(marks[index], groups[index], positions[index])) {
        [heaviestToken, heaviestWeight] = [positions[index], weights[index]];
      }
    }
  }
  return heaviestToken;
}
