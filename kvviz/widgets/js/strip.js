import { NOTHING, tintOf } from "./theme.js";

// Marks of a token, packed by kvviz/widgets/view.py.
export const ATTENDED = 1, ORACLE = 2, SINK = 4, RECENT = 8, GENERATED = 16, MERGED = 32;
const WINDOW = 20000; // tokens: above this many elements a page becomes slow to lay out
const BIDI_CONTROL = /[\u202a-\u202e\u2066-\u2069]/; // changes the direction of what follows it

// Running text whose tokens are tinted. `start` is the position of the first token; `most` is how many are shown at once.
// paint(positions, looks, marks) tints those tokens and clears all others; it never changes the layout.
export function createStrip(host, { tokens, start = 0, label, most = WINDOW, onHover = () => {}, onPick = () => {}, onScroll = () => {}, onTurn = null }) {
  host.classList.add("kv-strip");
  host.tabIndex = 0;
  host.setAttribute("role", "region");
  host.setAttribute("aria-label", label);
  const note = host.appendChild(element("p", "kv-window")), shownNow = note.appendChild(element("span"));
  const [earlier, later] = [["earlier", -1], ["later", 1]].map(([name, way]) => {
    const made = note.appendChild(element("button", "", name));
    made.type = "button";
    made.title = `show ${name} tokens`;
    made.setAttribute("aria-label", made.title);
    made.addEventListener("click", () => (onTurn ?? turn)(way));
    return made;
  });
  const lines = host.appendChild(element("div", "kv-lines"));
  most = 2 * Math.ceil(most / 2);
  let spans = [], first = start, painted = new Set(), last = [[], [], []], shown = tokens.length, lit = [], wanted = [];

  function build(from) {
    first = Math.max(start, Math.min(from, start + tokens.length - most));
    const until = Math.min(start + tokens.length, first + most);
    spans = [];
    painted = new Set();
    for (let position = first; position < until; position++) {
      const span = element("span");
      span.textContent = tokens[position - start];
      span.dataset.position = position;
      if (BIDI_CONTROL.test(span.textContent)) span.dataset.bidi = "";
      spans.push(span);
    }
    lines.replaceChildren(...spans);
    light(wanted);
    note.hidden = tokens.length <= most;
    shownNow.textContent = `Showing tokens ${format(first)} to ${format(until - 1)} of ${format(tokens.length)}.`;
    earlier.disabled = first === start;
    later.disabled = until === start + tokens.length;
  }

  // To the tokens before or after those shown, half of which stay.
  function turn(way) {
    build(first + (way * most) / 2);
    paint(...last);
    host.scrollTop = 0;
  }

  const at = (position) => spans[position - first];

  function paint(positions, looks, marks) {
    last = [positions, looks, marks];
    const before = painted;
    painted = new Set();
    for (let index = 0; index < positions.length; index++) {
      const span = at(positions[index]);
      if (!span) continue;
      dress(span, looks[index], marks[index]);
      painted.add(span);
    }
    for (const span of before) if (!painted.has(span)) dress(span, NOTHING, 0);
  }

  // Lights the tokens of one cluster, over whatever they are painted with.
  function light(positions) {
    wanted = positions;
    for (const span of lit) span.removeAttribute("data-lit");
    lit = positions.map(at).filter(Boolean);
    for (const span of lit) span.dataset.lit = "";
  }

  function focus(position, flash = true) {
    if (position < start || position >= start + tokens.length) return;
    if (!at(position)) {
      build(position - most / 2);
      paint(...last);
    }
    host.scrollTop = at(position).offsetTop - host.clientHeight / 3;
    if (flash) at(position).animate([{ outline: "2px solid currentColor" }, { outline: "2px solid transparent" }], 1200);
  }

  // Shows the first `count` tokens only.
  function reveal(count) {
    for (let index = Math.min(count, shown); index < Math.max(count, shown); index++) spans[index].hidden = index >= count;
    shown = count;
  }

  // First and last position in sight, by bisection over the lines' heights.
  function inSight() {
    const below = (height) => {
      let low = 0, high = spans.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (spans[middle].offsetTop + spans[middle].offsetHeight > height) high = middle;
        else low = middle + 1;
      }
      return low;
    };
    return [first + below(host.scrollTop), first + below(host.scrollTop + host.clientHeight)];
  }

  const positionOf = (event) => (event.target.dataset.position === undefined ? null : Number(event.target.dataset.position));
  host.addEventListener("pointerover", (event) => onHover(positionOf(event), event));
  host.addEventListener("pointerleave", (event) => onHover(null, event));
  host.addEventListener("click", (event) => {
    if (positionOf(event) !== null) onPick(positionOf(event));
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
  return { paint, light, focus, turn, reveal, inSight };
}

// Touches the element only where something changed: most tokens stay as they are from step to step.
function dress(span, look, mark) {
  if (span.mark !== mark) span.className = classOf(mark);
  if (span.look !== look) span.style.cssText = look === NOTHING ? "" : tintOf(look);
  span.mark = mark;
  span.look = look;
}

function classOf(mark) {
  if (!mark) return "";
  if (!(mark & ATTENDED)) return mark & MERGED ? "kv-merged" : "kv-missed";
  const kept = mark & (SINK | RECENT);
  const own = mark & GENERATED ? "kv-generated" : kept ? "kv-kept" : "";
  const verdict = mark & ORACLE ? "kv-agreed" : kept || mark & GENERATED ? "" : "kv-wasted";
  return `kv-attended ${own} ${verdict}`;
}

export function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

export function format(number) {
  return Number(number).toLocaleString("en-US");
}
