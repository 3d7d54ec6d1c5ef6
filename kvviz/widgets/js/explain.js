// What labels and numbers mean, on hover, focus and tap. Neither touch nor keys reach the attribute `title`.
import { isTouch, pointOf } from "./cursor.js";
import { hasModifier, targetOf } from "./dom.js";

/** @import { Pointed } from "./tip.js" */
/**
 * Shows what a node means, with words for screen readers; without a node it hides that, but no other tip.
 *
 * @typedef {(node: HTMLElement | null, at?: Pointed, said?: string) => void} Show
 */

const CONTROLS = "button, select, input, summary";
const PICTURES = "canvas, svg, .kv-strip"; // have tips of their own

/**
 * Gives a node a meaning, which the tip of its widget shows.
 *
 * @template {HTMLElement} Node
 * @param {Node} node
 * @param {string} meaning
 */
export function explain(node, meaning) {
  if (meaning) node.dataset.meaning = meaning;
  else delete node.dataset.meaning;
  return node;
}

/**
 * Makes the explained nodes of a group one stop of the Tab key: with the focus, ↑ and ↓ go from one to the next.
 *
 * @template {HTMLElement} Node
 * @param {Node} group
 * @param {string} label
 */
export function explainTogether(group, label) {
  group.tabIndex = 0;
  group.dataset.terms = "";
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", label);
  group.setAttribute("aria-description", "↑ and ↓ say what each of them means");
  return group;
}

/**
 * Lets the explained nodes of a root say what they mean: below the pointer, with the focus that a key gave, or tapped.
 * A panel with the focus says what its heading means.
 *
 * @param {HTMLElement} root
 * @param {Show} show
 */
export function explainAll(root, show) {
  root.addEventListener("pointerover", (event) => {
    if (!isTouch(event)) show(termOf(targetOf(event)), event);
  });
  root.addEventListener("pointerleave", (event) => isTouch(event) || show(null));
  root.addEventListener("click", (event) => {
    const target = targetOf(event), term = termOf(target);
    if (target.closest(CONTROLS)) show(null); // it acts, and has its words on it
    else if (term) show(term, event);
  });
  root.addEventListener("focusin", (event) => {
    const target = targetOf(event);
    if (!target.matches(":focus-visible")) return;
    if (target.dataset.terms !== undefined) return walk(target, 0);
    const term = /** @type {HTMLElement | null} */ (target.closest("[data-meaning]"));
    if (term === target) show(term, pointOf(term), target.matches(CONTROLS) ? "" : saidOf(term));
    else if (term && target.matches(CONTROLS)) show(term, pointOf(term));
    else if (entered(target, event.relatedTarget)) {
      const { left, top } = (term ?? target).getBoundingClientRect();
      const panel = term ?? headingOf(target);
      if (panel) show(panel, { clientX: left, clientY: top }, panel.dataset.meaning);
    }
  });
  root.addEventListener("focusout", (event) => {
    root.querySelector("[data-term]")?.removeAttribute("data-term");
    if (targetOf(event).closest("[data-terms], [data-meaning], section")) show(null);
  });
  root.addEventListener("input", () => show(null)); // a field that is typed into keeps its keys
  root.addEventListener("keydown", (event) => {
    const by = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0, group = targetOf(event);
    if (group.dataset.terms === undefined && event.key !== "Escape") return show(null); // the key is for something else
    if (!by || hasModifier(event)) return;
    walk(group, by);
    event.preventDefault();
    event.stopPropagation();
  });

  /**
   * @param {HTMLElement} group
   * @param {number} by
   */
  function walk(group, by) {
    const terms = /** @type {HTMLElement[]} */ ([...group.querySelectorAll("[data-meaning]")])
      .filter((term) => term.offsetParent !== null);
    const before = terms.findIndex((term) => term.dataset.term !== undefined);
    const term = terms[Math.max(0, Math.min(terms.length - 1, before < 0 ? 0 : before + by))];
    if (!term) return;
    terms[before]?.removeAttribute("data-term");
    term.dataset.term = "";
    term.scrollIntoView({ block: "nearest", inline: "nearest" });
    show(term, pointOf(term), saidOf(term));
  }
}

/**
 * @param {Element} target
 * @returns {HTMLElement | null}
 */
function termOf(target) {
  const node = /** @type {HTMLElement | null} */ (target.closest(`[data-meaning], ${PICTURES}`));
  return node?.dataset.meaning ? node : null;
}

/**
 * Whether the focus comes from another section.
 *
 * @param {HTMLElement} target
 * @param {EventTarget | null} before
 */
function entered(target, before) {
  const part = target.closest("[data-meaning], section");
  return !(before instanceof Node && part?.contains(before));
}

/**
 * The heading that explains a panel.
 *
 * @param {HTMLElement} target
 * @returns {HTMLElement | null}
 */
function headingOf(target) {
  return target.closest("section")?.querySelector(":scope > h3[data-meaning]") ?? null;
}

/**
 * What a screen reader says of a node: its texts, and what they mean.
 *
 * @param {HTMLElement} term
 */
function saidOf(term) {
  const parts = [...term.childNodes].map((node) => node.textContent?.trim()).filter(Boolean);
  return `${term.dataset.said ?? parts.join(" ")}: ${term.dataset.meaning}`;
}
