import { isTouch, onKeys, pointOf } from "./cursor.js";
import { element, format, targetOf } from "./dom.js";
import { explain } from "./explain.js";
import { NOTHING, tintOf } from "./theme.js";

// The bits of a token's mark, packed by kvviz/widgets/view.py.
export const ATTENDED = 1, ORACLE = 2, SINK = 4, RECENT = 8, GENERATED = 16, MERGED = 32;
const WHOLE = 20000; // tokens: with more elements, the layout of a page becomes slow
const WINDOW = 8000; // tokens shown of a longer text: each time it moves, all of them are laid out
const BIDI_CONTROL = /[\u202a-\u202e\u2066-\u2069]/; // changes the writing direction of the text that follows

/** @typedef {HTMLSpanElement & { look?: number, mark?: number }} Token */
/** @typedef {ArrayLike<number>} Numbers */
/** @import { Pointed } from "./tip.js" */
/** @typedef {(position: number | null, at: Pointed) => void} OnHover */
/** @typedef {ReturnType<typeof createStrip>} Strip */

/**
 * Running text with tinted tokens. `start` is the position of the first token. A text of more than `whole` tokens shows
 * `most` of them at once. Painting tints some tokens and clears all others; it never changes the layout. With the focus,
 * the keys ↑ and ↓ go to the marked token before and after, with Shift to any token; Enter picks it.
 *
 * @param {HTMLElement} host
 * @param {object} options
 * @param {string[]} options.tokens
 * @param {number} [options.start]
 * @param {number[]} [options.span] positions that are marked, whatever the step
 * @param {string} options.label
 * @param {number} [options.whole]
 * @param {number} [options.most]
 * @param {OnHover} [options.onHover]
 * @param {(position: number) => void} [options.onPick]
 * @param {() => void} [options.onScroll]
 * @param {((direction: number) => void) | null} [options.onTurn]
 */
export function createStrip(host, options) {
  const {
    tokens,
    start = 0,
    span: marks = [],
    label,
    whole = WHOLE,
    onHover = () => {},
    onPick = () => {},
    onScroll = () => {},
    onTurn,
  } = options;
  const most = tokens.length <= whole ? tokens.length : 2 * Math.ceil((options.most ?? WINDOW) / 2);
  host.classList.add("kv-strip");
  host.tabIndex = 0;
  host.setAttribute("role", "region");
  host.setAttribute("aria-label", label);
  host.setAttribute("aria-description", "↑ and ↓ read the marked tokens, with Shift all tokens; Enter picks one");
  const note = host.appendChild(element("p", "kv-window")), range = note.appendChild(element("span"));
  const [earlier, later] = ["earlier", "later"].map((name, later) => {
    const button = note.appendChild(element("button", "", name));
    button.type = "button";
    explain(button, `show ${name} tokens`).setAttribute("aria-label", `show ${name} tokens`);
    button.addEventListener("click", () => (onTurn ?? turn)(later ? 1 : -1));
    return button;
  });
  const lines = host.appendChild(element("div", "kv-lines"));
  /** @type {Token[]} */
  let spans = [];
  /** @type {Map<string, { positions: number[], spans: Token[] }>} by the name of their attribute */
  const outlines = new Map();
  /** @type {Set<Token>} */
  let painted = new Set();
  /** @type {[positions: Numbers, looks: Numbers, marks: Numbers]} */
  let lastPaint = [[], [], []];
  const asked = new Set(marks);
  let first = start, revealed = tokens.length;
  let cursor = -1; // the position that keys went to

  /** @param {number} from */
  function build(from) {
    first = Math.max(start, Math.min(from, start + tokens.length - most));
    const until = Math.min(start + tokens.length, first + most);
    spans = [];
    painted = new Set();
    for (let position = first; position < until; position++) {
      const text = tokens[position - start], span = element("span", "", text);
      span.dataset.position = String(position);
      if (BIDI_CONTROL.test(text)) span.dataset.bidi = "";
      if (asked.has(position)) span.dataset.span = "";
      spans.push(span);
    }
    lines.replaceChildren(...spans);
    for (const [name, { positions }] of outlines) outline(name, positions);
    note.hidden = tokens.length <= most;
    range.textContent = `Showing tokens ${format(first)} to ${format(until - 1)} of ${format(tokens.length)}.`;
    earlier.disabled = first === start;
    later.disabled = until === start + tokens.length;
  }

  /**
   * Shows the tokens before or after the present ones, half of which stay.
   *
   * @param {number} direction
   */
  function turn(direction) {
    build(first + (direction * most) / 2);
    paint(...lastPaint);
    host.scrollTop = 0;
  }

  /** @type {(position: number) => Token | undefined} */
  const spanAt = (position) => spans[position - first];

  /**
   * @param {Numbers} positions
   * @param {Numbers} looks
   * @param {Numbers} marks
   */
  function paint(positions, looks, marks) {
    lastPaint = [positions, looks, marks];
    const before = painted;
    painted = new Set();
    for (let index = 0; index < positions.length; index++) {
      const span = spanAt(positions[index]);
      if (!span) continue;
      dress(span, looks[index], marks[index]);
      painted.add(span);
    }
    for (const span of before) if (!painted.has(span)) dress(span, NOTHING, 0);
  }

  /**
   * Outlines tokens, and no others of that name, whatever their tints and marks.
   *
   * @param {string} name the style sheet's attribute data-…: "lit", "found" or "match"
   * @param {number[]} positions
   */
  function outline(name, positions) {
    for (const span of outlines.get(name)?.spans ?? []) delete span.dataset[name];
    const outlined = positions.flatMap((position) => spanAt(position) ?? []);
    for (const span of outlined) span.dataset[name] = "";
    outlines.set(name, { positions, spans: outlined });
  }

  /**
   * Outlines the tokens of one cluster, or the picked token.
   *
   * @param {number[]} positions
   */
  const light = (positions) => outline("lit", positions);

  /** @param {number} position */
  function focus(position, flash = true) {
    if (position < start || position >= start + tokens.length) return;
    if (!spanAt(position)) {
      build(position - most / 2);
      paint(...lastPaint);
    }
    const span = spans[position - first];
    host.scrollTop = span.offsetTop - host.clientHeight / 3;
    if (flash) span.animate([{ outline: "2px solid currentColor" }, { outline: "2px solid transparent" }], 1200);
  }

  /**
   * Shows only the first `count` tokens.
   *
   * @param {number} count
   */
  function reveal(count) {
    for (let index = Math.min(count, revealed); index < Math.max(count, revealed); index++) {
      spans[index].hidden = index >= count;
    }
    revealed = count;
  }

  /** The first and the last position in sight, by bisection over the tokens' heights. */
  function inSight() {
    const indexBelow = (/** @type {number} */ height) => {
      let low = 0, high = spans.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (spans[middle].offsetTop + spans[middle].offsetHeight > height) high = middle;
        else low = middle + 1;
      }
      return low;
    };
    return [first + indexBelow(host.scrollTop), first + indexBelow(host.scrollTop + host.clientHeight)];
  }

  /** @param {number} by */
  const move = (by) => (/** @type {KeyboardEvent} */ { shiftKey }) => {
    const from = cursor >= 0 ? cursor : inSight()[0] - (by > 0 ? 1 : 0);
    const next = shiftKey || painted.size === 0 ? from + by : marked(from, by);
    if (next === undefined || next < start || next >= start + revealed) return;
    place(next);
  };

  /**
   * The nearest marked position before or after one.
   *
   * @param {number} from
   * @param {number} by
   */
  function marked(from, by) {
    const [positions, , marks] = lastPaint;
    const places = Array.from(positions).filter((position, index) => marks[index] && (position - from) * by > 0);
    return by > 0 ? places[0] : places.at(-1);
  }

  /** @param {number} position */
  function place(position) {
    spanAt(cursor)?.removeAttribute("data-cursor");
    cursor = position;
    if (cursor < 0) return;
    const [top, bottom] = inSight();
    if (cursor <= top || cursor >= bottom) focus(cursor, false);
    const span = spans[cursor - first];
    span.dataset.cursor = "";
    onHover(cursor, pointOf(span));
  }
  onKeys(host, { ArrowUp: move(-1), ArrowDown: move(1), Enter: () => cursor >= 0 && onPick(cursor) });
  host.addEventListener("blur", () => {
    if (cursor < 0) return;
    place(-1);
    onHover(null, pointOf(host));
  });

  const positionOf = (/** @type {Event} */ event) => {
    const { position } = targetOf(event).dataset;
    return position === undefined ? null : Number(position);
  };
  host.addEventListener("pointerover", (event) => onHover(positionOf(event), event));
  host.addEventListener("pointerleave", (event) => isTouch(event) || onHover(null, event));
  host.addEventListener("click", (event) => {
    const position = positionOf(event);
    if (position === null) return;
    onPick(position);
    if (isTouch(/** @type {PointerEvent} */ (event))) onHover(position, event); // picking may have hidden the tip
  });
  let waiting = false;
  host.addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      onScroll();
    });
  });
  build(start);
  return { paint, light, outline, focus, turn, reveal, inSight };
}

/**
 * Sets the classes of a token, but only if they changed: most tokens are the same from step to step.
 *
 * @param {Token} span
 * @param {number} look
 * @param {number} mark
 */
function dress(span, look, mark) {
  if (span.mark === mark && span.look === look) return;
  span.className = look === NOTHING ? classOf(mark) : `${classOf(mark)} ${tintOf(look)}`;
  span.mark = mark;
  span.look = look;
}

/** @param {number} mark */
function classOf(mark) {
  if (!mark) return "";
  if (!(mark & ATTENDED)) return mark & MERGED ? "kv-merged" : "kv-missed";
  const kept = mark & (SINK | RECENT);
  const kind = mark & GENERATED ? "kv-generated" : kept ? "kv-kept" : "";
  const verdict = mark & ORACLE ? "kv-agreed" : kept || mark & GENERATED ? "" : "kv-wasted";
  return `kv-attended ${kind} ${verdict}`;
}
