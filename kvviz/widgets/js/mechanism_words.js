import { element } from "./dom.js";

// The words of a frame, with references to the objects that they speak of.

const REFERENCE = /\[\[(.*?)\|(.*?)\]\]/gs;
const SPEAK_MS = 1100; // that a reference is highlighted

/** @type {Record<string, string>} */
export const MEANING = {
  frame: "frame: one picture of the method at work, counted from 1; ← and → go on and back",
  step: "decode step, counted from 0: the text's last tokens play the steps",
  play: "play or pause the frames (space)",
  motion: "whether things move to their new places, or are there at once",
  chapters: "the method's stages; press one to go to its first frame",
  picture: "the picture of this frame: point at something to read what it is; click a token to follow it",
  prompt:
    "the prompt, then the tokens that the steps feed; click a token of the prompt to follow it through all frames",
  follow: "followed: the token whose way through the method is shown, outlined in the picture",
};

/**
 * The words below the picture. Some are read before things move, and the rest after; then what they refer to is
 * highlighted, one after the other, and again while it is pointed at or has the focus.
 *
 * @param {HTMLElement} host
 * @param {(objects: string[]) => void} light
 */
export function createWords(host, light) {
  const before = host.appendChild(element("p", "kv-told")), after = host.appendChild(element("p", "kv-told"));
  /** @type {HTMLElement[]} */
  let references = [];
  /** @type {number | undefined} */
  let timer;

  /**
   * @param {HTMLElement} line
   * @param {string} text
   */
  function write(line, text) {
    line.replaceChildren();
    let end = 0;
    for (const match of text.matchAll(REFERENCE)) {
      line.append(text.slice(end, match.index));
      const node = line.appendChild(element("span", "kv-refer", match[1])), objects = match[2].split(",");
      node.tabIndex = 0;
      node.addEventListener("pointerenter", () => speak(node, objects));
      node.addEventListener("focus", () => speak(node, objects));
      for (const end of ["pointerleave", "blur"]) node.addEventListener(end, () => speak(null, []));
      node.dataset.objects = match[2];
      references.push(node);
      end = match.index + match[0].length;
    }
    line.append(text.slice(end));
  }

  /**
   * @param {HTMLElement | null} node
   * @param {string[]} objects
   */
  function speak(node, objects) {
    clearTimeout(timer);
    for (const each of references) each.toggleAttribute("data-spoken", each === node);
    light(objects);
  }

  return {
    /**
     * @param {string} text
     * @param {string} result
     * @param {boolean} moving whether the result waits for `arrive`
     */
    show(text, result, moving) {
      clearTimeout(timer);
      references = [];
      write(before, text);
      write(after, result);
      after.toggleAttribute("data-waits", moving);
    },
    /** Things have arrived: the result can be read, and what is spoken of is highlighted in turn, if things move. */
    arrive(moving = true) {
      after.removeAttribute("data-waits");
      let index = 0;
      const next = () => {
        const node = references[index++];
        if (!node) return speak(null, []);
        speak(node, (node.dataset.objects ?? "").split(","));
        timer = setTimeout(next, SPEAK_MS);
      };
      if (moving && references.length) next();
    },
    close: () => clearTimeout(timer),
  };
}

/**
 * A frame's panels in words, for those who do not see them: what each shows, and its first values.
 *
 * @param {import("./mechanism_layout.js").Panel[]} panels
 */
export function describe(panels) {
  const count = (/** @type {number} */ number, /** @type {string} */ kind) =>
    `${number.toLocaleString("en-US")} ${kind.replace(/\d+$/, "")}${number === 1 ? "" : "s"}`;
  return panels.map((panel) => {
    if (panel.type === "plane") {
      return `Map, ${panel.title}: ${panel.dots.map(({ kind, numbers }) => count(numbers.length, kind)).join(", ")}`;
    }
    if (panel.type === "rows") {
      const rows = panel.rows.map(({ name, labels, numbers, kind }) =>
        `${name ? `${name} ` : ""}${labels ? labels.slice(0, 12).join(" ") : count(numbers.length, kind)}`
      );
      return `Rows, ${panel.title}: ${rows.join("; ")}`;
    }
    const values = panel.type === "bars" ? panel.values : panel.sizes;
    const first = values.slice(0, 5).map((value, index) =>
      `${panel.labels?.[index] ?? panel.numbers[index]} ${Number(value.toPrecision(3))}`
    );
    const cut = panel.cut === null ? "" : `, cut after ${Math.floor(panel.cut).toLocaleString("en-US")}`;
    return `${panel.type === "bars" ? "Bars" : "Ruler"}, ${panel.title}: ${first.join(", ")}${
      values.length > 5 ? ", …" : ""
    }${cut}`;
  }).join(". ");
}
