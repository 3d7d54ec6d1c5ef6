// dom.js
var SVG = "http://www.w3.org/2000/svg";
function element(tag, className = "", text = "") {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text) node.textContent = text;
  return node;
}
function svgElement(tag, attributes, text = "") {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  if (text) node.textContent = text;
  return node;
}
function contextOf(canvas, settings) {
  return (
    /** @type {CanvasRenderingContext2D} */
    canvas.getContext("2d", settings)
  );
}
function targetOf(event) {
  return (
    /** @type {HTMLElement} */
    event.target
  );
}
function hasModifier(event) {
  return event.ctrlKey || event.metaKey || event.altKey;
}
var english = new Intl.NumberFormat("en-US");
function format(number) {
  return english.format(number);
}

// cursor.js
function pointOf(node) {
  const { left, bottom } = node.getBoundingClientRect();
  return {
    clientX: left,
    clientY: bottom - 12,
    spoken: true
  };
}
function isTouch(event) {
  return event.pointerType === "touch";
}
function onKeys(node, actions) {
  node.addEventListener("keydown", (event) => {
    if (hasModifier(event) || event.target !== node || !(event.key in actions)) return;
    actions[event.key](event);
    event.preventDefault();
    event.stopPropagation();
  });
}

// explain.js
var CONTROLS = "button, select, input, summary";
var PICTURES = "canvas, svg, .kv-strip";
function explain(node, meaning) {
  if (meaning) node.dataset.meaning = meaning;
  else delete node.dataset.meaning;
  return node;
}
function explainTogether(group2, label) {
  group2.tabIndex = 0;
  group2.dataset.terms = "";
  group2.setAttribute("role", "group");
  group2.setAttribute("aria-label", label);
  group2.setAttribute("aria-description", "\u2191 and \u2193 say what each of them means");
  return group2;
}
function explainAll(root2, show) {
  root2.addEventListener("pointerover", (event) => {
    if (!isTouch(event)) show(termOf(targetOf(event)), event);
  });
  root2.addEventListener("pointerleave", (event) => isTouch(event) || show(null));
  root2.addEventListener("click", (event) => {
    const target = targetOf(event), term = termOf(target);
    if (target.closest(CONTROLS)) show(null);
    else if (term) show(term, event);
  });
  root2.addEventListener("focusin", (event) => {
    const target = targetOf(event);
    if (!target.matches(":focus-visible")) return;
    if (target.dataset.terms !== void 0) return walk(target, 0);
    const term = (
      /** @type {HTMLElement | null} */
      target.closest("[data-meaning]")
    );
    if (term === target) show(term, pointOf(term), target.matches(CONTROLS) ? "" : saidOf(term));
    else if (term && target.matches(CONTROLS)) show(term, pointOf(term));
    else if (entered(target, event.relatedTarget)) {
      const { left, top } = (term ?? target).getBoundingClientRect();
      const panel = term ?? headingOf(target);
      if (panel) show(panel, {
        clientX: left,
        clientY: top
      }, panel.dataset.meaning);
    }
  });
  root2.addEventListener("focusout", (event) => {
    root2.querySelector("[data-term]")?.removeAttribute("data-term");
    if (targetOf(event).closest("[data-terms], [data-meaning], section")) show(null);
  });
  root2.addEventListener("input", () => show(null));
  root2.addEventListener("keydown", (event) => {
    const by = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0, group2 = targetOf(event);
    if (group2.dataset.terms === void 0 && event.key !== "Escape") return show(null);
    if (!by || hasModifier(event)) return;
    walk(group2, by);
    event.preventDefault();
    event.stopPropagation();
  });
  function walk(group2, by) {
    const terms = (
      /** @type {HTMLElement[]} */
      [
        ...group2.querySelectorAll("[data-meaning]")
      ].filter((term2) => term2.offsetParent !== null)
    );
    const before = terms.findIndex((term2) => term2.dataset.term !== void 0);
    const term = terms[Math.max(0, Math.min(terms.length - 1, before < 0 ? 0 : before + by))];
    if (!term) return;
    terms[before]?.removeAttribute("data-term");
    term.dataset.term = "";
    term.scrollIntoView({
      block: "nearest",
      inline: "nearest"
    });
    show(term, pointOf(term), saidOf(term));
  }
}
function termOf(target) {
  const node = (
    /** @type {HTMLElement | null} */
    target.closest(`[data-meaning], ${PICTURES}`)
  );
  return node?.dataset.meaning ? node : null;
}
function entered(target, before) {
  const part = target.closest("[data-meaning], section");
  return !(before instanceof Node && part?.contains(before));
}
function headingOf(target) {
  return target.closest("section")?.querySelector(":scope > h3[data-meaning]") ?? null;
}
function saidOf(term) {
  const parts = [
    ...term.childNodes
  ].map((node) => node.textContent?.trim()).filter(Boolean);
  return `${term.dataset.said ?? parts.join(" ")}: ${term.dataset.meaning}`;
}

// scope.js
var SCOPES = {
  head: "this head",
  heads: "all heads of the layer",
  query_heads: "this KV head",
  layer: "this layer",
  layers: "all layers",
  step: "this step",
  steps: "all steps",
  last: "last step",
  answer: "whole answer"
};
var SCOPE_OF = {
  recall: "head",
  mass: "head",
  attended: "head",
  read: "layer",
  moved: "layer",
  error: "layer",
  metadata: "layer",
  choose: "layer",
  logprob: "layers"
};
var OF_UNION = {
  none: "head",
  layer: "heads",
  kv_head: "query_heads"
};
function scopeIn(scope, union) {
  return scope === "head" ? OF_UNION[union] : scope;
}
function scopeText(...scopes) {
  return scopes.map((scope) => SCOPES[scope]).join(", ");
}
function tagged(node, ...scopes) {
  node.append(tagOf(node, ...scopes));
  return node;
}
function tagOf(node, ...scopes) {
  node.dataset.scope = scopes.join(" ");
  return element("span", "kv-scope", scopeText(...scopes));
}
function explainNumber(node, meaning, ...scopes) {
  return explain(node, `${meaning}. Of: ${scopeText(...scopes)}`);
}

// slice.js
var TYPES = {
  U8: Uint8Array,
  I32: Int32Array,
  F32: Float32Array,
  F64: Float64Array
};
function unpack(bytes2) {
  const buffer = bytes2.slice().buffer;
  const headerLength = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, headerLength)));
  const slice = {
    shapes: {}
  };
  for (const [name, entry] of Object.entries(header)) {
    const { dtype, shape, data_offsets: [from, to] } = entry;
    const type = TYPES[dtype];
    slice[name] = new type(buffer, 8 + headerLength + from, (to - from) / type.BYTES_PER_ELEMENT);
    slice.shapes[name] = shape;
  }
  [slice.layer, slice.head] = slice.place;
  return slice;
}
function frameOf(slice, step) {
  const names = [
    "positions",
    "groups",
    "scores",
    "weights",
    "looks",
    "marks"
  ];
  return cut(slice, names, slice.offsets[step], slice.offsets[step + 1]);
}
function clustersOf(slice, step) {
  const names = [
    "group_ids",
    "group_hues",
    "group_counts",
    "group_scores",
    "group_masses",
    "group_known"
  ];
  return cut(slice, names, slice.group_offsets[step], slice.group_offsets[step + 1]);
}
function indexOf(frame2, position) {
  let low = 0, high = frame2.positions.length - 1;
  while (low <= high) {
    const middle = low + high >> 1;
    if (frame2.positions[middle] === position) return middle;
    if (frame2.positions[middle] < position) low = middle + 1;
    else high = middle - 1;
  }
  return -1;
}
function positionAt({ map_positions, shapes }, [row2, column]) {
  return map_positions[row2 * shapes.map_positions[1] + column];
}
function roundedWeight(slice, step, position) {
  if (!slice.all_weights) return null;
  const byte = slice.all_weights[step * slice.shapes.all_weights[1] + position];
  return byte === 0 ? 0 : 2 ** ((byte - 255) / 10);
}
function cut(slice, names, from, to) {
  return Object.fromEntries(names.map((name) => [
    name,
    slice[name].subarray(from, to)
  ]));
}

// theme.js
var HUES = 24;
var LEVELS = 8;
var NOTHING = 255;
function watchTheme(root2, changed = () => {
}) {
  const media = window.matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const dark = isDark(media.matches);
    root2.dataset.theme = dark ? "dark" : "light";
    changed();
  };
  const observer = new MutationObserver(apply);
  observer.observe(document.body, {
    attributes: true,
    attributeFilter: [
      "data-jp-theme-name",
      "data-jp-theme-light",
      "class"
    ]
  });
  observer.observe(document.documentElement, {
    attributes: true,
    attributeFilter: [
      "data-theme"
    ]
  });
  media.addEventListener("change", apply);
  apply();
  return () => {
    observer.disconnect();
    media.removeEventListener("change", apply);
  };
}
function isDark(preferred) {
  const background = getComputedStyle(document.body).getPropertyValue("--jp-layout-color1").trim();
  const theme = document.documentElement.dataset.theme;
  if (!background) return theme ? theme === "dark" : preferred;
  const [red, green, blue] = pixels([
    background
  ]);
  return 0.3 * red + 0.59 * green + 0.11 * blue < 128;
}
function tintOf(look) {
  return `kv-hue-${Math.min(Math.floor(look / LEVELS), HUES)} kv-level-${look % LEVELS}`;
}
function colourOf(hue) {
  return `oklch(var(--kv-l) var(--kv-c) ${hue * (360 / HUES)})`;
}
function pixels(colours) {
  const canvas = element("canvas");
  canvas.width = colours.length;
  canvas.height = 1;
  const context = contextOf(canvas, {
    willReadFrequently: true
  });
  colours.forEach((colour, index) => {
    context.fillStyle = colour;
    context.fillRect(index, 0, 1, 1);
  });
  return context.getImageData(0, 0, colours.length, 1).data;
}

// strip.js
var ATTENDED = 1;
var ORACLE = 2;
var SINK = 4;
var RECENT = 8;
var GENERATED = 16;
var MERGED = 32;
var WHOLE = 2e4;
var WINDOW = 8e3;
var BIDI_CONTROL = /[\u202a-\u202e\u2066-\u2069]/;
function createStrip(host, options) {
  const { tokens, start = 0, span: marks = [], label, whole = WHOLE, onHover = () => {
  }, onPick = () => {
  }, onScroll = () => {
  }, onTurn } = options;
  const most = tokens.length <= whole ? tokens.length : 2 * Math.ceil((options.most ?? WINDOW) / 2);
  host.classList.add("kv-strip");
  host.tabIndex = 0;
  host.setAttribute("role", "region");
  host.setAttribute("aria-label", label);
  host.setAttribute("aria-description", "\u2191 and \u2193 read the marked tokens, with Shift all tokens; Enter picks one");
  const note = host.appendChild(element("p", "kv-window")), range2 = note.appendChild(element("span"));
  const [earlier, later] = [
    "earlier",
    "later"
  ].map((name, later2) => {
    const button2 = note.appendChild(element("button", "", name));
    button2.type = "button";
    explain(button2, `show ${name} tokens`).setAttribute("aria-label", `show ${name} tokens`);
    button2.addEventListener("click", () => (onTurn ?? turn)(later2 ? 1 : -1));
    return button2;
  });
  const lines = host.appendChild(element("div", "kv-lines"));
  let spans = [];
  const outlines = /* @__PURE__ */ new Map();
  let painted = /* @__PURE__ */ new Set();
  let lastPaint = [
    [],
    [],
    []
  ];
  const asked = new Set(marks);
  let first = start, revealed = tokens.length;
  let cursor = -1;
  function build(from) {
    first = Math.max(start, Math.min(from, start + tokens.length - most));
    const until = Math.min(start + tokens.length, first + most);
    spans = [];
    painted = /* @__PURE__ */ new Set();
    for (let position = first; position < until; position++) {
      const text = tokens[position - start], span = element("span", "", text);
      span.dataset.position = String(position);
      if (BIDI_CONTROL.test(text)) span.dataset.bidi = "";
      if (asked.has(position)) span.dataset.span = "";
      spans.push(span);
    }
    lines.replaceChildren(...spans);
    for (const [name, { positions }] of outlines) outline2(name, positions);
    note.hidden = tokens.length <= most;
    range2.textContent = `Showing tokens ${format(first)} to ${format(until - 1)} of ${format(tokens.length)}.`;
    earlier.disabled = first === start;
    later.disabled = until === start + tokens.length;
  }
  function turn(direction) {
    build(first + direction * most / 2);
    paint(...lastPaint);
    host.scrollTop = 0;
  }
  const spanAt = (position) => spans[position - first];
  function paint(positions, looks2, marks2) {
    lastPaint = [
      positions,
      looks2,
      marks2
    ];
    const before = painted;
    painted = /* @__PURE__ */ new Set();
    for (let index = 0; index < positions.length; index++) {
      const span = spanAt(positions[index]);
      if (!span) continue;
      dress(span, looks2[index], marks2[index]);
      painted.add(span);
    }
    for (const span of before) if (!painted.has(span)) dress(span, NOTHING, 0);
  }
  function outline2(name, positions) {
    for (const span of outlines.get(name)?.spans ?? []) delete span.dataset[name];
    const outlined = positions.flatMap((position) => spanAt(position) ?? []);
    for (const span of outlined) span.dataset[name] = "";
    outlines.set(name, {
      positions,
      spans: outlined
    });
  }
  const light = (positions) => outline2("lit", positions);
  function focus(position, flash = true) {
    if (position < start || position >= start + tokens.length) return;
    if (!spanAt(position)) {
      build(position - most / 2);
      paint(...lastPaint);
    }
    const span = spans[position - first];
    host.scrollTop = span.offsetTop - host.clientHeight / 3;
    if (flash) span.animate([
      {
        outline: "2px solid currentColor"
      },
      {
        outline: "2px solid transparent"
      }
    ], 1200);
  }
  function reveal(count) {
    for (let index = Math.min(count, revealed); index < Math.max(count, revealed); index++) {
      spans[index].hidden = index >= count;
    }
    revealed = count;
  }
  function inSight() {
    const indexBelow = (height) => {
      let low = 0, high = spans.length;
      while (low < high) {
        const middle = low + high >> 1;
        if (spans[middle].offsetTop + spans[middle].offsetHeight > height) high = middle;
        else low = middle + 1;
      }
      return low;
    };
    return [
      first + indexBelow(host.scrollTop),
      first + indexBelow(host.scrollTop + host.clientHeight)
    ];
  }
  const move = (by) => ({ shiftKey }) => {
    const from = cursor >= 0 ? cursor : inSight()[0] - (by > 0 ? 1 : 0);
    const next = shiftKey || painted.size === 0 ? from + by : marked(from, by);
    if (next === void 0 || next < start || next >= start + revealed) return;
    place(next);
  };
  function marked(from, by) {
    const [positions, , marks2] = lastPaint;
    const places = Array.from(positions).filter((position, index) => marks2[index] && (position - from) * by > 0);
    return by > 0 ? places[0] : places.at(-1);
  }
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
  onKeys(host, {
    ArrowUp: move(-1),
    ArrowDown: move(1),
    Enter: () => cursor >= 0 && onPick(cursor)
  });
  host.addEventListener("blur", () => {
    if (cursor < 0) return;
    place(-1);
    onHover(null, pointOf(host));
  });
  const positionOf = (event) => {
    const { position } = targetOf(event).dataset;
    return position === void 0 ? null : Number(position);
  };
  host.addEventListener("pointerover", (event) => onHover(positionOf(event), event));
  host.addEventListener("pointerleave", (event) => isTouch(event) || onHover(null, event));
  host.addEventListener("click", (event) => {
    const position = positionOf(event);
    if (position === null) return;
    onPick(position);
    if (isTouch(
      /** @type {PointerEvent} */
      event
    )) onHover(position, event);
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
  return {
    paint,
    light,
    outline: outline2,
    focus,
    turn,
    reveal,
    inSight
  };
}
function dress(span, look, mark) {
  if (span.mark === mark && span.look === look) return;
  span.className = look === NOTHING ? classOf(mark) : `${classOf(mark)} ${tintOf(look)}`;
  span.mark = mark;
  span.look = look;
}
function classOf(mark) {
  if (!mark) return "";
  if (!(mark & ATTENDED)) return mark & MERGED ? "kv-merged" : "kv-missed";
  const kept = mark & (SINK | RECENT);
  const kind = mark & GENERATED ? "kv-generated" : kept ? "kv-kept" : "";
  const verdict3 = mark & ORACLE ? "kv-agreed" : kept || mark & GENERATED ? "" : "kv-wasted";
  return `kv-attended ${kind} ${verdict3}`;
}

// words.js
var MEANING = {
  step: "decode step, counted from 0 as in recording.indices(step, layer)",
  fed: "the token that this step feeds to the model",
  recall: "recall: share of the oracle's tokens that were attended to; the oracle selects as many tokens as the method attends to, those with the largest exact weights",
  mass: "mass: share of the exact attention that falls on the attended tokens; a merged token counts with the weight that its centroid gives it, up to its own",
  error: "error: relative error of the layer's attention output against exact attention, mean over its query heads",
  attended: "attended: tokens that this head attends to at this step, including sinks, recent and generated tokens",
  read: "read: bytes of the keys and values that the whole layer attends to at this step",
  moved: "moved: bytes of keys and values that the whole layer fetched from another tier at this step",
  prompt: "the prompt as the model reads it; point at a token to see its cluster, score and attention",
  map: "one row per step, the first at the top; one column per position, or per several positions of a long text (the strongest token is drawn); in colour: attended, in the colour of the text: missed, faint: sinks and recent tokens; click to go to the step and the token; drag over positions to zoom in; the bar above it has the visible part of the prompt, the prompt's end and the marked tokens",
  next: "the token that this step predicts",
  follow: "where the text moves when the step, layer or head changes; click a token to pick it",
  heads: "a number of each head; the area of a mark is its share of the largest; pick a head by a click or by the arrow keys",
  recalled: "the clusters recalled at this step, best score first: rank, number, score, bar and share of the exact attention on the attended tokens, how many these are, and their first words",
  merged: "merged: the oracle would attend to it; the method attends to its centroid instead, the mean of several tokens, which gives it at least half of its weight",
  written: "the tokens fed up to this step (a question in grey), then the token that this step predicts",
  hues: `there are ${HUES} hues, which repeat: the number tells two of one hue apart`,
  share: "share of the exact attention that falls on these tokens",
  score: "the method ranks by this number, the best first"
};
var MARKS = {
  agreed: [
    "kv-attended kv-agreed",
    "attended, and the oracle of the same size would attend to it too"
  ],
  wasted: [
    "kv-attended kv-wasted",
    "selected by the method, although the oracle would not attend to it"
  ],
  missed: [
    "kv-missed",
    "the oracle would attend to it; the method did not"
  ],
  merged: [
    "kv-merged",
    MEANING.merged,
    true
  ],
  "sink or recent": [
    "kv-attended kv-kept",
    "always attended, without being selected"
  ]
};
function marksOf(merges) {
  return Object.entries(MARKS).filter(([, [, , merging]]) => merges || !merging).map(([name, [classes, meaning]]) => [
    classes,
    name,
    `${name === "merged" ? "" : `${name}: `}${meaning}`
  ]);
}
function visible(text) {
  const spaces = text.replace(/ /g, "\xB7").replace(/\n/g, "\u21B5").replace(/\t/g, "\u2192").replace(/\r/g, "\u240D");
  return named(spaces);
}
function named(text) {
  const hidden = /[\x00-\x1f\x7f-\x9f\xad\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
  return text.replace(hidden, (character) => `\u27E8U+${character.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}\u27E9`);
}
function quoted(text) {
  return `\u201C\u2068${visible(text)}\u2069\u201D`;
}
function bytes(count) {
  const units = [
    "B",
    "kB",
    "MB",
    "GB"
  ];
  let power = 0;
  while (count >= 999.5 && power < 3) {
    count /= 1e3;
    power++;
  }
  return `${power && count < 99.95 ? count.toFixed(1) : Math.round(count)} ${units[power]}`;
}
function decimals(number) {
  if (Number.isNaN(number)) return "none";
  return number !== 0 && (Math.abs(number) < 1e-3 || Math.abs(number) >= 1e5) ? number.toExponential(1) : Number(number.toPrecision(3)).toString();
}
function wasRecalled(frame2, index) {
  return index >= 0 && frame2.groups[index] >= 0;
}
function aboutToken(page, slice, frame2, step, position) {
  const rows = [
    [
      "token",
      visible(page.tokens[position])
    ],
    [
      "position",
      format(position)
    ]
  ];
  if (position > page.prompt_length + step) return [
    ...rows,
    [
      "state",
      "not yet in the text at this step"
    ]
  ];
  const index = indexOf(frame2, position);
  if (wasRecalled(frame2, index)) {
    rows.push([
      page.group_name,
      `#${frame2.groups[index]}`
    ], [
      "score",
      decimals(frame2.scores[index])
    ]);
  } else rows.push([
    page.group_name,
    index < 0 ? "unknown" : "none"
  ]);
  rows.push([
    "attention",
    weightOf(slice, frame2, index, step, position)
  ], [
    "state",
    verdict(index < 0 ? 0 : frame2.marks[index])
  ], [
    "numbers",
    `of ${SCOPES.head}, step ${format(step)}`
  ]);
  return rows;
}
function weightOf(slice, frame2, index, step, position) {
  if (index >= 0) return decimals(frame2.weights[index]);
  const weight = roundedWeight(slice, step, position);
  if (weight === null) return "less than any token of the oracle";
  return weight === 0 ? "below 3e-8" : `about ${decimals(Number(weight.toPrecision(2)))}`;
}
function verdict(mark) {
  if (!mark) return "not attended; the oracle would not attend to it either";
  if (!(mark & ATTENDED)) return mark & MERGED ? MEANING.merged : "missed: the oracle would attend to it";
  const oracle = mark & ORACLE ? "the oracle would too" : "the oracle would not";
  const kind = mark & SINK ? "attended as a sink" : mark & RECENT ? "attended as a recent token" : mark & GENERATED ? "attended as a generated token" : "attended";
  return `${kind}; ${oracle}`;
}

// panel.js
function keepKeys(root2) {
  const suppress = (node) => {
    node.dataset.lmSuppressShortcuts = "true";
  };
  suppress(root2);
  root2.addEventListener("focusin", (event) => suppress(targetOf(event)));
}
function picker(host, name, options, meaning, changed) {
  const label = host.appendChild(element("label", "kv-picker"));
  label.append(element("span", "", name));
  explain(label, meaning);
  const select = label.appendChild(element("select"));
  select.setAttribute("aria-label", name);
  select.setAttribute("aria-description", meaning);
  for (const option of options) {
    const [value, text, disabled] = Array.isArray(option) ? option : [
      String(option),
      String(option)
    ];
    select.appendChild(new Option(text, value)).disabled = disabled === "disabled";
  }
  select.addEventListener("change", () => changed(select.value));
  return select;
}
function button(host, text, meaning, pressed) {
  const node = host.appendChild(element("button", "", text));
  node.type = "button";
  explain(node, meaning).setAttribute("aria-label", meaning);
  node.addEventListener("click", () => pressed());
  return node;
}
function section(host, title, name, meaning) {
  const node = host.appendChild(element("section", name));
  explain(node.appendChild(element("h3", "", title)), meaning);
  return node;
}
function titledPanel(host, title, name, meaning) {
  const node = section(host, title, name, meaning);
  return {
    heading: (
      /** @type {HTMLElement} */
      node.children[0]
    ),
    panel: node.appendChild(element("div", "kv-panel"))
  };
}
function stepKeys(steps2) {
  return {
    ArrowLeft: [
      -1
    ],
    ArrowRight: [
      1
    ],
    Home: [
      0,
      0
    ],
    End: [
      0,
      steps2 - 1
    ]
  };
}
function createStepSlider(bar, steps2, go) {
  const last = steps2 - 1;
  const buttons = bar.appendChild(element("span", "kv-buttons"));
  const previous = button(buttons, "\u2039", "previous step (\u2190)", () => go(-1));
  const next = button(buttons, "\u203A", "next step (\u2192)", () => go(1));
  const label = bar.appendChild(element("label", "kv-step"));
  label.append(element("span", "", "step"));
  explain(label, MEANING.step);
  const slider = label.appendChild(element("input"));
  Object.assign(slider, {
    type: "range",
    min: 0,
    max: last,
    step: 1
  });
  slider.setAttribute("aria-label", "decode step");
  slider.setAttribute("aria-description", MEANING.step);
  slider.addEventListener("input", () => go(0, Number(slider.value)));
  const count = label.appendChild(element("output"));
  count.style.minWidth = `${2 * format(last).length + 3}ch`;
  return {
    buttons,
    /** @param {number} step */
    show(step, about2 = "") {
      previous.disabled = step === 0;
      next.disabled = step === last;
      slider.value = String(step);
      slider.setAttribute("value", slider.value);
      slider.setAttribute("aria-valuetext", `step ${step} of ${last}${about2}`);
      count.textContent = `${format(step)} / ${format(last)}`;
    }
  };
}
function createLegend(marks, hint, hintMeaning) {
  const host = explainTogether(element("p", "kv-legend"), "legend of the marks");
  for (const [mark, text, meaning] of marks) {
    const entry = host.appendChild(element("span", "kv-entry"));
    const sample = entry.appendChild(element("span", mark, "text"));
    if (mark !== "kv-missed") sample.style.cssText = `--kv-h:250;--kv-a:0.6;${mark.includes("kept") ? "--kv-c:0" : ""}`;
    entry.append(element("span", "", text));
    explain(entry, meaning);
  }
  explain(host.appendChild(element("span", "kv-entry", hint)), hintMeaning);
  return host;
}
function markSelected(...selects) {
  for (const select of selects) {
    for (const option of select.options) option.toggleAttribute("selected", option.selected);
  }
}

// map_zoom.js
var MAP_COLUMNS = 384;
var SHORTEST = 8;
function createZoom(length, changed, { most = MAP_COLUMNS, noun = "positions" } = {}) {
  let range2 = [
    0,
    length
  ];
  const listeners = [];
  function show(from, until) {
    const size2 = Math.min(length, Math.max(Math.min(SHORTEST, length), Math.round(until - from)));
    const start = Math.max(0, Math.min(length - size2, Math.round(from)));
    if (start === range2[0] && start + size2 === range2[1]) return false;
    range2 = [
      start,
      start + size2
    ];
    changed();
    for (const react of listeners) react(range2, false);
    return true;
  }
  return {
    noun,
    get length() {
      return length;
    },
    get range() {
      return range2;
    },
    get zoomed() {
      return range2[1] - range2[0] < length;
    },
    show,
    /**
     * Shows all of another number of positions, without drawing them.
     *
     * @param {number} other
     */
    resize(other) {
      if (other === length) return;
      length = other;
      range2 = [
        0,
        length
      ];
      for (const react of listeners) react(range2, false);
    },
    reset: () => show(0, length),
    /**
     * Makes the range larger or smaller by a factor; a position stays where it is on the map.
     *
     * @param {number} factor
     * @param {number} position
     */
    by(factor, position) {
      const [from, until] = range2, size2 = Math.max(SHORTEST, (until - from) * factor);
      return show(position - (position - from) * size2 / (until - from), position + (until - position) * size2 / (until - from));
    },
    /**
     * Moves the range by half of its size; says whether it moved.
     *
     * @param {number} direction
     */
    shift(direction) {
      const by = direction * (range2[1] - range2[0]) / 2;
      return show(range2[0] + by, range2[1] + by);
    },
    /**
     * The first position of a column; the end of the range for the column behind the last one.
     *
     * @param {number} column
     */
    firstOf(column) {
      const size2 = range2[1] - range2[0], columns = Math.min(most, size2);
      return column >= columns ? range2[1] : range2[0] + Math.floor(column * (size2 / columns));
    },
    /** @param {number} position */
    columnOf(position) {
      const inside = Math.max(0, Math.min(range2[1] - 1, position) - range2[0]);
      return most < Infinity ? columnIndex(range2)[inside] : inside;
    },
    /**
     * Tells which positions are being chosen, before the maps show them; null: none any more.
     *
     * @param {Range | null} positions
     */
    choosing(positions) {
      for (const react of listeners) react(positions ?? range2, positions !== null);
    },
    /** @param {(range: Range, choosing: boolean) => void} react */
    told: (react) => listeners.push(react)
  };
}
function createRange(zoom) {
  const bar = element("div", "kv-range");
  bar.append(element("span", "", "map:"));
  const words = bar.appendChild(element("span"));
  words.setAttribute("role", "status");
  const reset = button(bar, "show all", `show all ${zoom.noun} (0)`, () => zoom.reset());
  function paint([from, until], choosing) {
    reset.hidden = !zoom.zoomed;
    const positions = `${zoom.noun} ${format(from)} to ${format(until - 1)}`;
    words.textContent = choosing ? `choosing ${positions}` : zoom.zoomed ? `${positions} of ${format(zoom.length)}` : `all ${format(zoom.length)} ${zoom.noun}`;
  }
  zoom.told(paint);
  paint(zoom.range, false);
  return bar;
}
function mapOf(slice, zoom, attendedFirst) {
  return zoom.zoomed ? pooled(slice, zoom.range, attendedFirst) : slice;
}
function pooled(slice, range2, attendedFirst) {
  const [from, until] = range2, steps2 = slice.offsets.length - 1, columns = columnsOf(range2), index = columnIndex(range2);
  const map_looks = new Uint8Array(steps2 * columns).fill(255), map_positions = new Int32Array(steps2 * columns);
  const ranks = new Float32Array(steps2 * columns);
  for (let place = from; place < until; place++) {
    const column = index[place - from];
    if (place === from || index[place - from - 1] !== column) map_positions[column] = place;
  }
  for (let step = 1; step < steps2; step++) map_positions.copyWithin(step * columns, 0, columns);
  for (let step = 0; step < steps2; step++) {
    for (let token = slice.offsets[step]; token < slice.offsets[step + 1]; token++) {
      const position = slice.positions[token];
      if (position < from || position >= until) continue;
      const cell2 = step * columns + index[position - from];
      const first = attendedFirst && slice.marks[token] & ATTENDED ? 1 : 0;
      const rank = Math.fround(Math.fround(slice.weights[token] + 1) + first);
      if (rank <= ranks[cell2]) continue;
      ranks[cell2] = rank;
      map_positions[cell2] = position;
      map_looks[cell2] = slice.cell_looks[token];
    }
  }
  const shape = [
    steps2,
    columns
  ];
  return {
    map_looks,
    map_positions,
    shapes: {
      map_looks: shape,
      map_positions: shape
    }
  };
}
function columnsOf([from, until]) {
  return Math.min(MAP_COLUMNS, until - from);
}
function columnIndex(range2) {
  const size2 = range2[1] - range2[0], columns = columnsOf(range2), wide = size2 / columns;
  const index = new Uint16Array(size2);
  for (let column = 0; column < columns; column++) {
    index.fill(column, Math.floor(column * wide), column === columns - 1 ? size2 : Math.floor((column + 1) * wide));
  }
  return index;
}

// matrix_brush.js
var FIRST_MOVE = 5;
function createBrush(canvas, inner, { columnAt, columns, choosing, chosen, cancelled }) {
  const box = inner.appendChild(element("div", "kv-brush"));
  box.hidden = true;
  canvas.style.touchAction = "pan-y pinch-zoom";
  let pressed = null;
  let dragged = false;
  function show(one, other) {
    const from = Math.min(one, other), until = Math.max(one, other) + 1;
    box.hidden = false;
    box.style.left = `${100 * from / columns()}%`;
    box.style.width = `${100 * (until - from) / columns()}%`;
    choosing(from, until);
  }
  function hide() {
    box.hidden = true;
    pressed = null;
  }
  function cancel() {
    if (!box.hidden) cancelled();
    hide();
  }
  canvas.addEventListener("pointerdown", (event) => {
    dragged = false;
    if (event.isPrimary && event.button === 0) pressed = {
      x: event.clientX,
      column: columnAt(event)
    };
    else cancel();
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!pressed || !event.isPrimary) return;
    if (!dragged && Math.abs(event.clientX - pressed.x) < FIRST_MOVE) return;
    if (!dragged) canvas.setPointerCapture(event.pointerId);
    dragged = true;
    show(pressed.column, columnAt(event));
  });
  canvas.addEventListener("pointerup", (event) => {
    const start = pressed, end = columnAt(event);
    hide();
    if (start && dragged) chosen(Math.min(start.column, end), Math.max(start.column, end) + 1);
  });
  canvas.addEventListener("pointercancel", cancel);
  return {
    show,
    hide,
    get dragging() {
      return pressed !== null && dragged;
    },
    /** Whether the last press was a drag, whose click picks nothing. */
    get dragged() {
      return dragged;
    },
    get shown() {
      return !box.hidden;
    }
  };
}

// matrix.js
var STRIDES = 32;
var TALLEST_ROW = 18;
var SHORTEST_ROW = 3;
function createMatrix(host, { label, palette, height = 330, onHover = () => {
}, onPick = () => {
}, zoom = null }) {
  host.classList.add("kv-matrix");
  const inner = host.appendChild(element("div", "kv-matrix-inner"));
  const canvas = inner.appendChild(element("canvas"));
  const frame2 = inner.appendChild(element("div", "kv-row"));
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-label", label);
  const keys = "arrow keys go to the marked cells, Enter picks one";
  const zooms = `plus and minus zoom, Shift with \u2190 or \u2192 chooses ${zoom?.noun} and Enter zooms to them, 0 shows all`;
  canvas.setAttribute("aria-description", zoom ? `${keys}; ${zooms}` : keys);
  const painted = element("canvas"), wide = element("canvas");
  let image = null;
  let colours = null;
  let values = new Uint8Array(), rows = 0, columns = 0, rowHeight = TALLEST_ROW, framed = -1;
  const cross = inner.appendChild(element("div", "kv-cross"));
  cross.hidden = true;
  let cursor = null;
  let anchor = -1;
  const brush = zoom && createBrush(canvas, inner, {
    columnAt(event) {
      const box = canvas.getBoundingClientRect();
      return Math.max(0, Math.min(columns - 1, Math.floor((event.clientX - box.left) / box.width * columns)));
    },
    columns: () => columns,
    choosing: (from, until) => zoom.choosing([
      zoom.firstOf(from),
      zoom.firstOf(until)
    ]),
    chosen,
    cancelled: () => zoom.choosing(null)
  });
  function chosen(from, until) {
    anchor = -1;
    onHover(null, {
      clientX: 0,
      clientY: 0
    });
    if (!zoom?.show(zoom.firstOf(from), zoom.firstOf(until))) zoom?.choosing(null);
  }
  function draw2() {
    const width = host.clientWidth;
    if (!rows || !width) return;
    colours ??= palette();
    const scale = window.devicePixelRatio || 1;
    rowHeight = Math.max(SHORTEST_ROW, Math.min(TALLEST_ROW, Math.floor(height / rows)));
    canvas.style.height = inner.style.height = `${rows * rowHeight}px`;
    size(canvas, Math.round(width * scale), rowHeight > SHORTEST_ROW ? Math.round(rows * rowHeight * scale) : rows);
    if (!image || image.width !== columns || image.height !== rows) image = new ImageData(columns, rows);
    fill(image, values, colours);
    putInto(painted, image);
    widen(wide, painted, canvas.width);
    const context = contextOf(canvas);
    context.imageSmoothingEnabled = false;
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.drawImage(wide, 0, 0, canvas.width, canvas.height);
    place();
  }
  function place() {
    const top = framed * rowHeight;
    frame2.hidden = framed < 0 || framed >= rows;
    frame2.style.top = `${top}px`;
    frame2.style.height = `${rowHeight}px`;
    if (top < host.scrollTop) host.scrollTop = top;
    if (top + rowHeight > host.scrollTop + host.clientHeight) host.scrollTop = top + rowHeight - host.clientHeight;
  }
  function cellAt(event) {
    const box = canvas.getBoundingClientRect();
    const row2 = Math.floor((event.clientY - box.top) / box.height * rows);
    const column = Math.floor((event.clientX - box.left) / box.width * columns);
    return row2 >= 0 && row2 < rows && column >= 0 && column < columns ? [
      row2,
      column
    ] : null;
  }
  const move = (down, right) => ({ shiftKey }) => {
    if (shiftKey && right && zoom) return choose(right);
    forget();
    const [row2, column] = cursor ?? [
      Math.max(framed, 0),
      right < 0 ? columns : -1
    ];
    const next = Math.max(0, Math.min(rows - 1, row2 + down));
    let place2 = column + right;
    if (right) {
      while (place2 >= 0 && place2 < columns && values[next * columns + place2] === NOTHING) place2 += right;
    }
    if (place2 < 0 || place2 >= columns) {
      if (right && zoom && cursor) return at(column, () => zoom.shift(right));
      if (right) return;
      place2 = 0;
    }
    go([
      next,
      place2
    ]);
  };
  function go(cell2) {
    cursor = cell2;
    cross.hidden = !cell2;
    if (!cell2) return;
    const [row2, column] = cell2, box = canvas.getBoundingClientRect();
    cross.style.cssText = `left:${100 * (column + 0.5) / columns}%;top:${(row2 + 0.5) * rowHeight}px`;
    const [x, y] = [
      (column + 0.5) / columns * box.width,
      (row2 + 0.5) / rows * box.height
    ];
    onHover(cell2, {
      clientX: box.left + x,
      clientY: box.top + y,
      spoken: true
    });
  }
  function at(column, change) {
    if (!zoom) return;
    const position = zoom.firstOf(column);
    change(position);
    if (cursor) go([
      cursor[0],
      zoom.columnOf(position)
    ]);
  }
  function choose(direction) {
    const [row2, column] = cursor ?? [
      Math.max(framed, 0),
      0
    ], stride = Math.max(1, Math.round(columns / STRIDES));
    if (anchor < 0) anchor = column;
    go([
      row2,
      Math.max(0, Math.min(columns - 1, column + direction * stride))
    ]);
    onHover(null, {
      clientX: 0,
      clientY: 0
    });
    brush?.show(anchor, cursor?.[1] ?? anchor);
  }
  function forget() {
    const choosing = Boolean(brush?.shown);
    anchor = -1;
    brush?.hide();
    if (choosing) zoom?.choosing(null);
    return choosing;
  }
  const zoomBy = (factor) => () => {
    forget();
    at(cursor?.[1] ?? Math.floor(columns / 2), (position) => zoom?.by(factor, position));
  };
  const reset = () => at(cursor?.[1] ?? 0, () => zoom?.reset());
  onKeys(canvas, {
    ArrowUp: move(-1, 0),
    ArrowDown: move(1, 0),
    ArrowLeft: move(0, -1),
    ArrowRight: move(0, 1),
    Enter() {
      if (anchor >= 0 && cursor) {
        const ends = [
          anchor,
          cursor[1]
        ];
        brush?.hide();
        at(cursor[1], () => chosen(Math.min(...ends), Math.max(...ends) + 1));
      } else if (cursor) onPick(...cursor);
    },
    ...zoom && {
      "+": zoomBy(0.5),
      "=": zoomBy(0.5),
      "-": zoomBy(2),
      "0": reset,
      Escape: () => forget() || reset()
    }
  });
  canvas.addEventListener("blur", () => {
    forget();
    if (cursor) onHover(null, {
      clientX: 0,
      clientY: 0
    });
    go(null);
  });
  canvas.addEventListener("pointermove", (event) => onHover(brush?.dragging ? null : cellAt(event), event));
  canvas.addEventListener("pointerleave", (event) => isTouch(event) || onHover(null, event));
  canvas.addEventListener("click", (event) => {
    const cell2 = cellAt(event);
    if (!cell2 || brush?.dragged) return;
    onPick(...cell2);
    if (isTouch(
      /** @type {PointerEvent} */
      event
    )) onHover(cell2, event);
  });
  const resized = new ResizeObserver(draw2);
  resized.observe(host);
  return {
    canvas,
    /**
     * @param {Uint8Array<ArrayBuffer>} newValues
     * @param {number[]} shape
     */
    paint(newValues, shape) {
      values = newValues;
      [rows, columns] = shape;
      draw2();
    },
    recolour() {
      colours = null;
      draw2();
    },
    /** @param {number} row */
    frame(row2) {
      framed = row2;
      place();
    },
    destroy: () => resized.disconnect()
  };
}
function fill(image, values, colours) {
  const pixels2 = new Uint32Array(image.data.buffer), table = new Uint32Array(colours.buffer, colours.byteOffset, 256);
  for (let index = 0; index < pixels2.length; index++) pixels2[index] = table[values[index]];
}
function putInto(canvas, image) {
  size(canvas, image.width, image.height);
  contextOf(canvas).putImageData(image, 0, 0);
}
function widen(canvas, image, width) {
  size(canvas, width, image.height);
  const context = contextOf(canvas);
  context.clearRect(0, 0, width, image.height);
  context.imageSmoothingEnabled = width < 3 * image.width;
  context.drawImage(image, 0, 0, width, image.height);
}
function size(canvas, width, height) {
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
}

// map_colours.js
var AGREED = 0;
var WASTED = 1;
var KEPT = 2;
var MISSED = 3;
var MERGED_AWAY = 4;
var RANGES = {
  light: {
    kept: [
      0.925,
      0.9
    ],
    wasted: [
      0.81,
      0.77
    ],
    merged: [
      0.69,
      0.65
    ],
    agreed: [
      0.59,
      0.46
    ],
    missed: [
      0.36,
      0.1
    ],
    clusters: [
      0.78,
      0.48
    ]
  },
  dark: {
    kept: [
      0.32,
      0.35
    ],
    wasted: [
      0.44,
      0.47
    ],
    merged: [
      0.58,
      0.615
    ],
    agreed: [
      0.695,
      0.78
    ],
    missed: [
      0.89,
      0.99
    ],
    clusters: [
      0.48,
      0.78
    ]
  }
};
var CHROMA = 0.15;
function mapColours(root2) {
  const { kept, clusters, missed } = rangesOf(root2);
  return looks((number, level) => {
    if (number < HUES) return oklch(within(clusters, level), CHROMA, number * 360 / HUES);
    if (number === HUES) return oklch(within(kept, level));
    return number === HUES + 1 ? oklch(within(missed, level)) : "transparent";
  });
}
function verdictColours(root2, method) {
  const { agreed, wasted, kept, missed, merged } = rangesOf(root2);
  const ranges = [];
  [ranges[AGREED], ranges[WASTED], ranges[KEPT], ranges[MISSED]] = [
    agreed,
    wasted,
    kept,
    missed
  ];
  ranges[MERGED_AWAY] = merged;
  return looks((verdict3, level) => {
    if (!ranges[verdict3]) return "transparent";
    const lightness = within(ranges[verdict3], level);
    return verdict3 === KEPT || verdict3 === MISSED ? oklch(lightness) : `oklch(from ${method} ${lightness} c h)`;
  });
}
function rangesOf(root2) {
  return RANGES[root2.closest(".kvviz")?.getAttribute("data-theme") === "dark" ? "dark" : "light"];
}
function within([faintest, strongest2], level) {
  return faintest + level / (LEVELS - 1) * (strongest2 - faintest);
}
function oklch(lightness, chroma = 0, hue = 0) {
  return `oklch(${lightness} ${chroma} ${hue})`;
}
function looks(colour) {
  return pixels(Array.from({
    length: 256
  }, (_, look) => look === NOTHING ? "transparent" : colour(Math.floor(look / LEVELS), look % LEVELS)));
}

// alone.js
function createTokenStrip(root2, host) {
  const strip = createStrip(panelOf(root2), {
    tokens: host.get("tokens"),
    label: host.get("label"),
    onHover: (position) => host.tell({
      hovered: position ?? -1
    }),
    onPick: (clicked) => host.tell({
      clicked
    })
  });
  const paint = () => {
    const looks2 = host.bytes("looks"), marks = host.bytes("marks");
    const positions = [
      ...marks.keys()
    ].filter((position) => marks[position]);
    strip.paint(positions, positions.map((position) => looks2[position]), positions.map((position) => marks[position]));
  };
  host.on("looks", paint);
  host.on("marks", paint);
  host.on("focus", () => strip.focus(host.get("focus")));
  const unwatch = watchTheme(root2);
  paint();
  return unwatch;
}
function createCanvasMatrix(root2, host) {
  const zoom = createZoom(host.get("shape")[1], () => paint(), {
    most: Infinity,
    noun: "columns"
  });
  const whole = (row2, column) => [
    row2,
    zoom.firstOf(column)
  ];
  const matrix = createMatrix(panelOf(root2), {
    label: host.get("label"),
    zoom,
    palette: () => host.get("colours").byteLength ? host.bytes("colours").slice() : mapColours(root2),
    onHover: (cell2) => host.tell({
      hovered: cell2 ? whole(...cell2) : [
        -1,
        -1
      ]
    }),
    onPick: (row2, column) => host.tell({
      clicked: whole(row2, column)
    })
  });
  root2.append(createRange(zoom));
  const frame2 = () => matrix.frame(host.get("row"));
  const paint = () => {
    const values = host.bytes("values"), [rows, columns] = host.get("shape");
    if (values.length !== rows * columns) return;
    zoom.resize(columns);
    const [from, until] = zoom.range;
    matrix.paint(zoom.zoomed ? columnsOf2(values, columns, from, until) : values, [
      rows,
      until - from
    ]);
    frame2();
  };
  host.on("values", paint);
  host.on("shape", paint);
  host.on("colours", matrix.recolour);
  host.on("row", frame2);
  const unwatch = watchTheme(root2, matrix.recolour);
  paint();
  return () => {
    unwatch();
    matrix.destroy();
  };
}
function panelOf(root2) {
  root2.className = "kvviz kv-alone";
  return root2.appendChild(element("div", "kv-panel"));
}
function columnsOf2(values, columns, from, until) {
  const wide = until - from, cut2 = new Uint8Array(values.length / columns * wide);
  for (let row2 = 0; row2 * columns < values.length; row2++) {
    cut2.set(values.subarray(row2 * columns + from, row2 * columns + until), row2 * wide);
  }
  return cut2;
}

// comparer_curve.js
var WIDE = 100;
var TALL = 40;
var INSET = 2;
function createCurve(host, { label, onPick, onHover }) {
  const box = {
    viewBox: `0 0 ${WIDE} ${TALL}`,
    preserveAspectRatio: "none"
  };
  const svg = host.appendChild(svgElement("svg", {
    ...box,
    role: "img",
    "aria-label": label
  }));
  const fixed2 = {
    "vector-effect": "non-scaling-stroke"
  };
  const others = svg.appendChild(svgElement("path", {
    class: "kv-others",
    ...fixed2
  }));
  const curve = svg.appendChild(svgElement("path", {
    class: "kv-own",
    ...fixed2
  }));
  const frame2 = svg.appendChild(svgElement("rect", {
    class: "kv-now",
    y: 0.5,
    height: TALL - 1,
    ...fixed2
  }));
  let steps2 = 1;
  const x = (step) => (step + 0.5) * WIDE / steps2;
  const stepAt = (event) => {
    const box2 = svg.getBoundingClientRect();
    return Math.max(0, Math.min(steps2 - 1, Math.floor((event.clientX - box2.left) / box2.width * steps2)));
  };
  svg.addEventListener("click", (event) => onPick(stepAt(event)));
  svg.addEventListener("pointermove", (event) => onHover(stepAt(event), event));
  svg.addEventListener("pointerleave", (event) => onHover(null, event));
  return {
    /**
     * `all`: the values per step of every method; `front`: the index of this one; `top`: the value at the upper edge.
     *
     * @param {Float64Array[]} all
     * @param {number} front
     * @param {number} top
     */
    paint(all, front, top) {
      steps2 = all[front].length;
      const path = (values) => {
        const points = Array.from(values, (value, step) => `${x(step).toFixed(2)} ${(TALL - INSET - value / top * (TALL - 2 * INSET)).toFixed(2)}`);
        if (points.length === 1) points.push(`${WIDE} ${points[0].split(" ")[1]}`);
        return `M${points.join("L")}`;
      };
      others.setAttribute("d", all.filter((_, index) => index !== front).map(path).join(""));
      curve.setAttribute("d", path(all[front]));
      frame2.setAttribute("width", String(WIDE / steps2));
    },
    /** @param {number} step */
    frame(step) {
      frame2.setAttribute("x", String(step * WIDE / steps2));
    }
  };
}

// comparer_words.js
var NUMBERS = {
  recall: {
    meaning: MEANING.recall,
    write: (value) => value.toFixed(2),
    more: true,
    share: true
  },
  mass: {
    meaning: MEANING.mass,
    write: (value) => value.toFixed(2),
    more: true,
    share: true
  },
  attended: {
    meaning: MEANING.attended,
    write: (value) => format(Math.round(value)),
    more: false
  },
  read: {
    meaning: MEANING.read,
    write: bytes,
    more: false
  },
  moved: {
    meaning: MEANING.moved,
    write: bytes,
    more: false
  },
  error: {
    meaning: MEANING.error,
    write: decimals,
    more: false
  }
};
var NAMES = (
  /** @type {Name[]} */
  Object.keys(NUMBERS)
);
var ROWS = {
  curve: "this number over all steps: this method in colour, the others faint; the current step is framed; click to go to a step",
  map: "one row per step, the first at the top; one column per position, or per several positions of a long text (the marked token with the most attention is drawn); strong: agreed, pale: wasted, in the colour of the text: missed, faint: sinks and recent tokens; click to go to the step and the token; drag over positions to zoom in, in all columns",
  prompt: "the prompt as the model reads it; all prompts scroll together; point at a token to outline it in all",
  answer: "the tokens fed after the prompt (a question in grey, later tokens faint), then the token that the last step predicts; the token that this step feeds is framed"
};
function sortKey(sort) {
  const mean = sort.startsWith("mean "), name = NAMES.find((name2) => name2 === (mean ? sort.slice(5) : sort));
  return name ? {
    name,
    mean
  } : null;
}
function sortMeaning(sort) {
  const key = sortKey(sort);
  if (!key) return "the order in which the recordings were given";
  return `${key.mean ? "mean over the steps, " : ""}${NUMBERS[key.name].more ? "largest" : "smallest"} first`;
}
function meanOf(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

// union.js
var UNIONS = (
  /** @type {Union[]} */
  [
    "none",
    "layer",
    "kv_head"
  ]
);
var MEANS = [
  "recall",
  "mass"
];
var STRENGTH = "strength: the share of the heads that attended to the token, or missed it; a token is agreed if a head attends to it and the oracle of a head would, missed if no head attends to it, wasted if a head chose it and no oracle would";
function unionOf({ union }) {
  return union ? {
    kind: UNIONS[union[0]],
    heads: union[1]
  } : {
    kind: "none",
    heads: 1
  };
}
function nameIn(name, union, label = name) {
  return union !== "none" && MEANS.includes(name) ? `mean ${label}` : label;
}
function meaningIn(name, union, heads) {
  if (union === "none" || heads === 1) return MEANING[name];
  if (MEANS.includes(name)) return `mean over the ${heads} heads of ${MEANING[name]}`;
  return name === "attended" ? `attended: tokens that at least one of the ${heads} heads attends to` : MEANING[name];
}
function about(page, slice, frame2, step, position, row2 = step) {
  const rows = aboutToken(page, slice, frame2, step, position), index = indexOf(frame2, position);
  if (!slice.union || position > page.prompt_length + step) return rows;
  const counts = (
    /** @type {HeadCounts} */
    slice
  ), heads = unionOf(slice).heads;
  const at = slice.offsets[row2] + index;
  const of = (name) => `${index < 0 ? 0 : counts[name][at]} of ${heads} heads`;
  const mark = index < 0 ? 0 : frame2.marks[index];
  return [
    ...rows.filter(([term]) => term === "token" || term === "position"),
    [
      "attended by",
      of("attending")
    ],
    [
      "oracle of",
      of("wanting")
    ],
    ...index < 0 ? [] : (
      /** @type {Rows} */
      [
        [
          "missed by",
          of("missing")
        ],
        [
          "wasted by",
          of("wasting")
        ]
      ]
    ),
    ...rows.filter(([term]) => term === "attention").map(([, value]) => (
      /** @type {[string, string]} */
      [
        "mean attention",
        value
      ]
    )),
    [
      "state",
      verdict2(mark)
    ],
    [
      "numbers",
      `of ${SCOPES[scopeIn("head", unionOf(slice).kind)]}, step ${format(step)}`
    ]
  ];
}
function verdict2(mark) {
  if (!mark) return "no head attends to it; no oracle would";
  if (mark & ATTENDED && mark & ORACLE) return "agreed: a head attends to it, and the oracle of a head would";
  if (mark & ATTENDED) {
    const kind = mark & SINK ? "as a sink" : mark & RECENT ? "as a recent token" : "as a generated token";
    if (mark & (SINK | RECENT | GENERATED)) return `attended ${kind}; no oracle would`;
    return "wasted: a head chose it, and no oracle would";
  }
  if (mark & MERGED) return "merged: no head attends to it alone, but the centroids of those whose oracle would count";
  return "missed: no head attends to it; the oracle of a head would";
}
function createHeadsLegend(marks, words, meaning) {
  const host = createLegend(marks, words, meaning);
  const last = (
    /** @type {HTMLElement} */
    host.lastElementChild
  );
  return {
    host,
    /** @param {AnySlice} slice */
    say(slice) {
      const { kind, heads } = unionOf(slice);
      last.textContent = kind === "none" ? words : `union of ${heads} heads \xB7 strength: share of the heads`;
      explain(last, kind === "none" ? meaning : STRENGTH);
    }
  };
}
function isShown(slice, layer, head, union) {
  const { kind } = unionOf(slice);
  return kind === union && slice.layer === layer && (kind === "layer" || slice.head === head);
}

// comparer_column.js
var ALL_WHOLE = 4e4;
var ALL_WINDOWS = 8e3;
var LEAST_WINDOW = 2e3;
var MAP_HEIGHT = 96;
function createColumn(host, page, method, { go, choose, turn, point, about: about2, zoom }) {
  const column = host.appendChild(element("section", "kv-column"));
  column.setAttribute("aria-label", method.label);
  column.style.setProperty("--kv-light", method.light);
  column.style.setProperty("--kv-dark", method.dark);
  const { group_name } = method;
  const text = {
    tokens: [
      ...page.prompt,
      ...method.fed
    ],
    prompt_length: page.prompt.length,
    group_name
  };
  const head = column.appendChild(element("div", "kv-name-cell"));
  explain(head, method.about);
  head.append(element("h3", "", method.label));
  const note = head.appendChild(element("span", "kv-mean"));
  const times = head.appendChild(element("span", "kv-times"));
  times.append(element("span", "kv-scope", SCOPES.step), element("span", "kv-scope", `mean of ${SCOPES.steps}`));
  const numbers = NAMES.map((name) => numberCell(column, name));
  const curveCell = cell(column, "over the steps", ROWS.curve);
  const curve = createCurve(curveCell, {
    label: `${method.label}: over the steps`,
    onPick: (step2) => go(0, step2),
    onHover: (step2, event) => about2(step2 === null ? null : [
      [
        "step",
        format(step2)
      ],
      ...numbersAt(step2)
    ], event)
  });
  let slice;
  let drawn;
  let frame2 = null;
  let step = 0;
  const numbersAt = (step2) => NAMES.map((name) => [
    scopedName(name, unionOf(slice).kind),
    NUMBERS[name].write(slice[name][step2])
  ]);
  const describeToken = (position, event) => about2(position === null || !frame2 ? null : about(text, slice, frame2, step, position), event);
  const mapCell = cell(column, "steps \u2193 \xD7 positions \u2192", ROWS.map);
  mapCell.classList.add("kv-map");
  const map = createMatrix(mapCell.appendChild(element("div", "kv-panel")), {
    label: `${method.label}: one row per step, one column per position`,
    height: MAP_HEIGHT,
    zoom,
    palette: () => verdictColours(column, getComputedStyle(column).getPropertyValue("--kv-method")),
    onHover(cell2, event) {
      if (!cell2 || !slice) return about2(null, event);
      const [row2] = cell2, rows = about(text, slice, frameOf(slice, row2), row2, positionAt(drawn, cell2));
      about2([
        [
          "step",
          format(row2)
        ],
        ...rows
      ], event);
    },
    onPick(row2, mapColumn) {
      go(0, row2);
      choose(positionAt(drawn, [
        row2,
        mapColumn
      ]));
    }
  });
  const promptCell = cell(column, "prompt", ROWS.prompt);
  promptCell.classList.add("kv-prompt");
  const panel = promptCell.appendChild(element("div", "kv-panel"));
  const prompt = createStrip(panel, {
    tokens: page.prompt,
    span: page.span,
    label: `${method.label}: prompt`,
    whole: Math.max(LEAST_WINDOW, ALL_WHOLE / page.methods.length),
    most: Math.max(LEAST_WINDOW, ALL_WINDOWS / page.methods.length),
    onTurn: turn,
    onPick: choose,
    onHover(position, event) {
      point(position);
      describeToken(position, event);
    }
  });
  const answerCell = cell(column, "answer", ROWS.answer);
  answerCell.classList.add("kv-answer");
  const answerPanel = answerCell.appendChild(element("div", "kv-panel"));
  const answer = createStrip(answerPanel, {
    tokens: method.fed,
    start: page.prompt.length,
    label: `${method.label}: answer`,
    onHover: describeToken
  });
  const lines = (
    /** @type {HTMLElement} */
    answerPanel.querySelector(".kv-lines")
  );
  const fed = (
    /** @type {HTMLElement[]} */
    [
      ...lines.children
    ]
  );
  fed.forEach((span, index) => span.toggleAttribute("data-question", index < method.question_length));
  const next = lines.appendChild(element("span", "kv-next", method.next_token));
  explain(next, "what the last step predicts");
  function paintMap() {
    drawn = mapOf(slice, zoom, false);
    map.paint(drawn.map_looks, drawn.shapes.map_looks);
  }
  return {
    element: column,
    label: method.label,
    panel,
    prompt,
    /**
     * @param {number} position
     * @param {boolean} flash
     */
    focus: (position, flash) => (position < page.prompt.length ? prompt : answer).focus(position, flash),
    /** @param {number[]} positions */
    light(positions) {
      prompt.light(positions);
      answer.light(positions);
    },
    get slice() {
      return slice;
    },
    /**
     * Reads the layout, so it is called before `describe` changes any column.
     *
     * @param {ColumnSlice} shown
     */
    show(shown2) {
      slice = shown2;
      paintMap();
    },
    paintMap,
    describe() {
      const row2 = slice.head * method.rows_a_head, { kind, heads } = unionOf(slice), union = kind !== "none";
      const which = union ? heads > 1 ? `union of ${heads} heads` : "one head" : method.rows_a_head > 1 ? `query head ${row2}` : "";
      note.textContent = [
        `budget ${format(method.budget)}`,
        which
      ].filter(Boolean).join(" \xB7 ");
      for (const { name, mean, cell: cell2 } of numbers) {
        mean.textContent = `mean ${NUMBERS[name].write(meanOf(slice[name]))}`;
        const scope = cell2.dataset.scope = scopeIn(SCOPE_OF[name], kind);
        cell2.dataset.name = scopedName(name, kind);
        explainNumber(cell2, `${meaningIn(name, kind, heads)}; left at this step, right the mean over the steps`, scope);
      }
    },
    /**
     * @param {Name} name
     * @param {Float64Array[]} all
     * @param {number} front
     * @param {number} top
     */
    curve(name, all, front, top) {
      curveCell.dataset.name = `${name} over the steps`;
      curve.paint(all, front, top);
    },
    /**
     * Does everything that reads the layout, before `paint` changes any column.
     *
     * @param {number} now
     */
    place(now) {
      step = now;
      map.frame(step);
      curve.frame(step);
      const token = fed[step];
      if (token) answerPanel.scrollTop = token.offsetTop - answerPanel.clientHeight / 2;
    },
    paint() {
      frame2 = frameOf(slice, step);
      prompt.paint(frame2.positions, frame2.looks, frame2.marks);
      fed.forEach((span, index) => {
        span.toggleAttribute("data-now", index === step);
        span.toggleAttribute("data-ahead", index > step);
      });
      for (const { name, now, cell: cell2 } of numbers) {
        const value = slice[name][step];
        now.textContent = NUMBERS[name].write(value);
        if (NUMBERS[name].share) cell2.style.setProperty("--kv-share", String(value));
      }
    },
    recolour: map.recolour,
    destroy: map.destroy
  };
}
function cell(column, name, meaning) {
  const cell2 = column.appendChild(element("div", "kv-cell"));
  cell2.dataset.name = name;
  explain(cell2, meaning);
  return cell2;
}
function scopedName(name, union) {
  return `${nameIn(name, union)} (${SCOPES[scopeIn(SCOPE_OF[name], union)]})`;
}
function numberCell(column, name) {
  const row2 = cell(column, name, NUMBERS[name].meaning);
  row2.classList.add("kv-numbers");
  row2.toggleAttribute("data-share", Boolean(NUMBERS[name].share));
  const now = row2.appendChild(element("span", "kv-number")), mean = row2.appendChild(element("span", "kv-mean"));
  return {
    name,
    cell: row2,
    now,
    mean
  };
}

// menu.js
var MOVES = /* @__PURE__ */ new Map([
  [
    "ArrowDown",
    1
  ],
  [
    "ArrowUp",
    -1
  ],
  [
    "Home",
    -Infinity
  ],
  [
    "End",
    Infinity
  ]
]);
function createMenu(head, root2, name, meaning) {
  const menu = head.appendChild(element("details", "kv-menu"));
  const summary = menu.appendChild(explain(element("summary", "", name), meaning));
  root2.addEventListener("pointerdown", (event) => {
    if (!menu.contains(targetOf(event))) menu.open = false;
  });
  const sheet = menu.appendChild(element("div", "kv-sheet"));
  menu.addEventListener("keydown", (event) => {
    const by = MOVES.get(event.key);
    const buttons = (
      /** @type {HTMLElement[]} */
      [
        ...sheet.querySelectorAll("button:enabled")
      ]
    );
    if (event.key === "Escape" && menu.open) close();
    else if (by && menu.open && buttons.length && targetOf(event).tagName !== "SELECT") {
      const at = buttons.findIndex((node) => node === document.activeElement);
      buttons[Math.max(0, Math.min(buttons.length - 1, at + by))].focus();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });
  function close() {
    if (menu.contains(document.activeElement)) summary.focus();
    menu.open = false;
  }
  return {
    menu,
    sheet,
    close
  };
}
function createSettings(head, root2) {
  return createMenu(head, root2, "Settings", "what the map of heads shows, and what the text follows").sheet;
}
function setting(sheet, text, label, meaning) {
  const row2 = sheet.appendChild(explain(element("label", "kv-setting", text), meaning));
  const select = row2.appendChild(element("select"));
  select.setAttribute("aria-label", label);
  select.setAttribute("aria-description", meaning);
  return select;
}

// head_map.js
var FEW = 10;
var MOVES2 = {
  ArrowLeft: [
    -1,
    0
  ],
  ArrowRight: [
    1,
    0
  ],
  ArrowUp: [
    0,
    -1
  ],
  ArrowDown: [
    0,
    1
  ]
};
function createHeadMap(host, options) {
  const { layers, heads, headName, label, about: about2, pick, tip } = options;
  const { joined = () => void 0, available = () => true, elsewhere = () => "" } = options;
  const nameOf2 = ({ layer, head }) => `layer ${layer}, ${joined(head)?.name ?? `${headName} ${head}`}`;
  const keyOf2 = ({ layer, head }) => String([
    layer,
    head
  ]);
  let current = {
    layer: -1,
    head: -1
  }, cursor = current;
  const table = host.appendChild(element("div", "kv-headmap"));
  table.setAttribute("role", "grid");
  table.setAttribute("aria-label", label);
  table.style.setProperty("--kv-layers", String(layers.length));
  const small = heads.length > 12, few = layers.length <= FEW;
  if (small) table.dataset.small = few ? "few" : "many";
  const cells = /* @__PURE__ */ new Map();
  for (const head of heads) {
    const row2 = table.appendChild(element("div", "kv-headrow"));
    row2.setAttribute("role", "row");
    const several = joined(head), name = row2.appendChild(element("span", "kv-headname", several?.short ?? String(head)));
    name.setAttribute("role", "rowheader");
    explain(name, several?.name ?? "");
    row2.toggleAttribute("data-joined", Boolean(several));
    for (const layer of layers) row2.append(cell2({
      layer,
      head
    }));
  }
  const axis = table.appendChild(element("div", "kv-headrow kv-headaxis"));
  axis.setAttribute("aria-hidden", "true");
  axis.append(element("span", "kv-headname", "layer"));
  const every = Math.max(small && !few ? 2 : 1, Math.ceil(layers.length / FEW));
  layers.forEach((layer, at) => axis.append(element("span", "", at % every ? "" : String(layer))));
  const said = host.appendChild(element("p", "kv-headsaid"));
  said.setAttribute("role", "status");
  function cell2(place) {
    const node = element("button", "kv-headcell");
    node.type = "button";
    node.setAttribute("role", "gridcell");
    node.tabIndex = -1;
    node.append(element("span"));
    if (!available(place)) {
      node.dataset.away = "";
      node.setAttribute("aria-disabled", "true");
    }
    node.addEventListener("click", () => go(place));
    node.addEventListener("pointerover", (event) => tip.show([
      [
        "head",
        nameOf2(place)
      ],
      ...told(place)
    ], event));
    node.addEventListener("pointerleave", () => tip.hide());
    cells.set(keyOf2(place), node);
    return node;
  }
  function told(place) {
    return available(place) ? about2(place) : [
      ...about2(place),
      [
        "data",
        elsewhere(place)
      ]
    ];
  }
  function go(place) {
    move(place);
    if (available(place)) pick(place);
    cells.get(keyOf2(place))?.focus();
  }
  function move(place) {
    const before = cells.get(keyOf2(cursor)), node = cells.get(keyOf2(place));
    if (before) before.tabIndex = -1;
    if (node) node.tabIndex = 0;
    cursor = place;
    say(place);
  }
  function say(place) {
    const words = `${nameOf2(place)}: ${told(place).map(([name, value]) => `${name} ${value}`).join(" \xB7 ")}`;
    if (said.textContent !== words) said.textContent = words;
  }
  table.addEventListener("keydown", (event) => {
    const [right, down] = MOVES2[event.key] ?? [];
    if (right === void 0 || down === void 0) return;
    const layer = layers[layers.indexOf(cursor.layer) + right], head = heads[heads.indexOf(cursor.head) + down];
    event.preventDefault();
    event.stopPropagation();
    if (layer !== void 0 && head !== void 0) go({
      layer,
      head
    });
  });
  table.addEventListener("focusout", ({ relatedTarget }) => {
    if (!table.contains(
      /** @type {Node | null} */
      relatedTarget
    )) move(current);
  });
  return {
    table,
    /**
     * Draws a value for each head; below 0 the mark is hollow.
     *
     * @param {(head: Head) => number} valueOf
     * @param {number} most
     */
    draw(valueOf, most) {
      for (const layer of layers) {
        for (const head of heads) {
          const node = (
            /** @type {HTMLButtonElement} */
            cells.get(keyOf2({
              layer,
              head
            }))
          );
          const value = valueOf({
            layer,
            head
          }), [, number = ""] = about2({
            layer,
            head
          })[0] ?? [];
          const mark = (
            /** @type {HTMLElement} */
            node.firstChild
          );
          mark.className = value < 0 ? "kv-hollow" : "";
          mark.style.width = mark.style.height = `${Math.max(8, 100 * Math.sqrt(Math.min(1, Math.abs(value) / most)))}%`;
          const away = available({
            layer,
            head
          }) ? "" : elsewhere({
            layer,
            head
          });
          const words = [
            number,
            away
          ].filter(Boolean).join(", ");
          node.setAttribute("aria-label", `${nameOf2({
            layer,
            head
          })}: ${words}`);
        }
      }
    },
    /** @param {Head} picked */
    paint({ layer, head }) {
      cells.get(keyOf2(current))?.removeAttribute("data-picked");
      const moved = keyOf2({
        layer,
        head
      }) !== keyOf2(current);
      current = {
        layer,
        head
      };
      cells.get(keyOf2(current))?.setAttribute("data-picked", "");
      if (moved && !table.contains(document.activeElement)) move(current);
      else if (moved || keyOf2(cursor) === keyOf2(current)) say(current);
    },
    /**
     * Sets or removes an attribute of each head.
     *
     * @param {string} name
     * @param {(head: Head) => boolean} holds
     */
    mark(name, holds) {
      for (const layer of layers) {
        for (const head of heads) cells.get(keyOf2({
          layer,
          head
        }))?.toggleAttribute(name, holds({
          layer,
          head
        }));
      }
    }
  };
}

// head_panel.js
var ALL = -1;
function hasHeadMap(page) {
  return page.head_maps.length > 0 && layersOf(page).length * headsOf(page).length > 1;
}
var layersOf = ({ head_maps: [numbers], windows = {} }) => [
  .../* @__PURE__ */ new Set([
    ...Object.keys(numbers.values),
    ...Object.keys(windows)
  ])
].map(Number).sort((one, other) => one - other);
var headsOf = (page) => Object.values(page.head_maps[0].values)[0].map((_, head) => head);
function createHeadPanel(root2, page, { tip, pick, settings }) {
  const nothing = () => {
  };
  if (!hasHeadMap(page)) return {
    paint: nothing
  };
  const { unions = [], per_kv_head: perKvHead = 1, elsewhere = "", windows = {} } = page;
  const layers = layersOf(page), heads = headsOf(page), joinedHeads = page.joined_heads ?? heads;
  const joined = unions.includes("kv_head") ? heads.filter((head) => head % perKvHead === 0).map(rowOfKvHead) : [];
  if (unions.includes("layer")) joined.push(ALL);
  const section2 = root2.appendChild(element("section", "kv-headpanel"));
  const title = section2.appendChild(element("h3", "", `layers \xD7 ${page.head_name}s: `));
  const label = "the number that the map of heads shows";
  const name = title.appendChild(element("span", "kv-headlabel"));
  const select = settings ? setting(settings, "the map of heads shows", label, MEANING.heads) : title.appendChild(element("select", "kv-headmeasure"));
  select.setAttribute("aria-label", label);
  for (const { label: label2 } of page.head_maps) select.append(new Option(label2));
  const note = title.appendChild(element("span", "kv-headnote"));
  let shown2 = page.head_maps[0], place = {
    layer: -1,
    head: 0
  };
  function rowOfKvHead(head) {
    return ALL - 1 - head / perKvHead;
  }
  function headsOfRow(row2) {
    if (row2 >= 0) return [
      row2
    ];
    return row2 === ALL ? heads : heads.filter((head) => rowOfKvHead(head - head % perKvHead) === row2);
  }
  function unionOfRow(row2) {
    return row2 >= 0 ? "none" : row2 === ALL ? "layer" : "kv_head";
  }
  function valueOf(numbers, { layer, head }) {
    const values = headsOfRow(head).map((each) => numbers.values[layer]?.[each] ?? 0);
    return values.reduce((sum, value) => sum + value, 0) / values.length;
  }
  const map = createHeadMap(section2, {
    layers,
    heads: [
      ...heads,
      ...joined
    ],
    headName: page.head_name,
    label: "map of the heads, which picks one",
    joined(row2) {
      if (row2 === ALL) return {
        name: `union of all ${page.head_name}s`,
        short: "all"
      };
      const number = ALL - 1 - row2;
      return row2 < 0 ? {
        name: `union of the query heads of KV head ${number}`,
        short: `KV ${number}`
      } : void 0;
    },
    about: (place2) => {
      if (windows[place2.layer]) return [];
      const others = page.head_maps.filter((numbers) => numbers !== shown2);
      const several = headsOfRow(place2.head).length > 1, kind = unionOfRow(place2.head);
      return [
        shown2,
        ...others
      ].map((numbers) => [
        `${several && numbers.scope === "head" ? "mean over the heads of " : ""}${numbers.label} (${SCOPES[scopeIn(numbers.scope, kind)]})`,
        valueOf(numbers, place2).toFixed(3)
      ]);
    },
    available: ({ layer, head: row2 }) => page.layers.includes(layer) && headsOfRow(row2).some((head) => (row2 < 0 ? joinedHeads : page.heads).includes(head)),
    elsewhere: ({ layer }) => windows[layer] ?? elsewhere,
    pick({ layer, head: row2 }) {
      if (row2 >= 0) pick(layer, row2, "none");
      else if (row2 === ALL) pick(layer, place.head < 0 ? 0 : place.head, "layer");
      else pick(layer, headsOfRow(row2)[0], "kv_head");
    },
    tip
  });
  function draw2() {
    shown2 = page.head_maps[select.selectedIndex] ?? shown2;
    if (settings) name.textContent = `${shown2.label}; `;
    const all = layers.flatMap((layer) => heads.map((head) => valueOf(shown2, {
      layer,
      head
    })));
    const most = Math.max(1e-9, ...all);
    map.draw((place2) => valueOf(shown2, place2), most);
    const windowed = Object.keys(windows).length;
    const away = layers.length - windowed > page.layers.length || heads.length > page.heads.length;
    const dashed = [
      windowed ? "sliding windows" : "",
      away ? "not in this page" : ""
    ].filter(Boolean).join(", or ");
    note.textContent = `largest ${most.toFixed(3)}; ${shown2.about}${dashed ? `; dashed: ${dashed}` : ""}`;
    explain(title, [
      MEANING.heads,
      MEANING[shown2.measure],
      page.layers_meaning
    ].filter(Boolean).join(". "));
    for (const option of select.options) option.toggleAttribute("selected", option.selected);
  }
  select.addEventListener("change", () => {
    draw2();
    map.paint(place);
  });
  draw2();
  return {
    /**
     * @param {number} layer
     * @param {number} head
     * @param {Union} [union]
     */
    paint(layer, head, union = "none") {
      const row2 = union === "layer" ? ALL : union === "kv_head" ? rowOfKvHead(head - head % perKvHead) : head;
      place = {
        layer,
        head: row2
      };
      map.paint(place);
    }
  };
}

// place_pickers.js
function layerOptions({ layers, windows = {} }) {
  const all = [
    .../* @__PURE__ */ new Set([
      ...layers,
      ...Object.keys(windows).map(Number)
    ])
  ].sort((one, other) => one - other);
  return all.map((layer) => windows[layer] ? [
    String(layer),
    `layer ${layer}, ${windows[layer]}`,
    "disabled"
  ] : String(layer));
}
function createPlacePickers(host, page, pick) {
  if (hasHeadMap(page)) return () => {
  };
  const changed = () => pick(Number(layer.value), Number(row2.value));
  const layer = picker(host, "layer", layerOptions(page), page.layers_meaning ?? "layer: the layer that is shown", changed);
  const meaning = `${page.head_name}: the head of the layer that is shown`;
  const row2 = picker(host, page.head_name, page.heads, meaning, changed);
  return (shownLayer, shownHead) => {
    layer.value = String(shownLayer);
    row2.value = String(shownHead);
    markSelected(layer, row2);
  };
}

// picture.js
var UNWRITABLE = /[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]/gu;
var SCALE = 2;
var PRINTED_MS = 6e4;
function textOf({ svg }) {
  return new XMLSerializer().serializeToString(svg).replace(UNWRITABLE, "\uFFFD");
}
async function pngOf(drawn) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(textOf(drawn))}`;
  await image.decode();
  const canvas = element("canvas");
  canvas.width = SCALE * drawn.width;
  canvas.height = SCALE * drawn.height;
  contextOf(canvas).drawImage(image, 0, 0, canvas.width, canvas.height);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  if (!blob) throw new Error("the picture is too large for it");
  return blob;
}
function print({ svg, width, height }, name) {
  const frame2 = element("iframe");
  frame2.style.cssText = "position:fixed;width:0;height:0;border:0";
  frame2.setAttribute("aria-hidden", "true");
  frame2.tabIndex = -1;
  document.body.append(frame2);
  const sheet = (
    /** @type {Window} */
    frame2.contentWindow
  ), page = sheet.document, before = document.title;
  page.title = document.title = name;
  const size2 = `@page { size: ${width / 96}in ${height / 96}in; margin: 0 }`;
  page.head.append(element("style", "", `${size2} html, body { margin: 0 } svg { display: block; break-inside: avoid }`));
  page.body.append(page.importNode(svg, true));
  const done = () => {
    clearTimeout(timer);
    frame2.remove();
    if (document.title === name) document.title = before;
  };
  const timer = setTimeout(done, PRINTED_MS);
  sheet.addEventListener("afterprint", () => setTimeout(done));
  sheet.focus();
  sheet.print();
}
function download(blob, name) {
  const link = element("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1e3);
}

// vector_boxes.js
var SIDES = [
  "Top",
  "Right",
  "Bottom",
  "Left"
];
function colourReader() {
  const known = /* @__PURE__ */ new Map();
  return (text) => {
    let read = known.get(text);
    if (!read) {
      const [red, green, blue, alpha] = pixels([
        text
      ]);
      read = {
        colour: `rgb(${red},${green},${blue})`,
        alpha: Math.round(1e3 * alpha / 255) / 1e3
      };
      known.set(text, read);
    }
    return read;
  };
}
function ink(drawing, kind, text) {
  const { colour, alpha } = drawing.read(text);
  return alpha === 1 ? {
    [kind]: colour
  } : {
    [kind]: colour,
    [`${kind}-opacity`]: alpha
  };
}
function paintBox(drawing, into, box, style) {
  if (!box.width || !box.height) return;
  const radius = Math.min(parseFloat(style.borderTopLeftRadius) || 0, box.width / 2, box.height / 2);
  if (drawing.read(style.backgroundColor).alpha) {
    into.append(rectangle(drawing, box, 0, radius, ink(drawing, "fill", style.backgroundColor)));
  }
  if (style.backgroundImage !== "none") paintImage(drawing, into, box, radius, style);
  paintBorder(drawing, into, box, radius, style);
  const shadow = /^(.*\)|\w+) 0px 0px 0px ([\d.]+)px inset$/.exec(style.boxShadow);
  if (shadow) into.append(frame(drawing, box, radius, -Number(shadow[2]) / 2, Number(shadow[2]), shadow[1], "solid"));
  const width = parseFloat(style.outlineWidth);
  if (style.outlineStyle !== "none" && width) {
    const beyond = parseFloat(style.outlineOffset) + width / 2;
    drawing.outlines.append(frame(drawing, box, radius, beyond, width, style.outlineColor, style.outlineStyle));
  }
}
function underline(drawing, into, box, style, ascent) {
  const y = box.top - drawing.top + parseFloat(style.paddingTop) + ascent + (parseFloat(style.textUnderlineOffset) || 1);
  const width = parseFloat(style.textDecorationThickness) || 1;
  const [x1, x2] = [
    box.left - drawing.left,
    box.right - drawing.left
  ];
  const stroke = {
    "stroke-width": width,
    ...ink(drawing, "stroke", style.textDecorationColor)
  };
  into.append(svgElement("line", {
    ...rounded({
      x1,
      x2,
      y1: y + width / 2,
      y2: y + width / 2
    }),
    ...stroke
  }));
}
function paintBorder(drawing, into, box, radius, style) {
  const sides = SIDES.map((side) => ({
    width: parseFloat(style.getPropertyValue(`border-${side.toLowerCase()}-width`)),
    line: style.getPropertyValue(`border-${side.toLowerCase()}-style`),
    colour: style.getPropertyValue(`border-${side.toLowerCase()}-color`)
  }));
  const [first] = sides, drawn = sides.map(({ width, line: line2 }) => line2 !== "none" && width > 0);
  if (sides.every((side) => JSON.stringify(side) === JSON.stringify(first))) {
    if (drawn[0]) into.append(frame(drawing, box, radius, -first.width / 2, first.width, first.colour, first.line));
    return;
  }
  const left = box.left - drawing.left, top = box.top - drawing.top;
  sides.forEach(({ width, line: line2, colour }, side) => {
    if (!drawn[side]) return;
    const across = side % 2 === 0, far = side === 1 || side === 2;
    const at = (far ? (across ? box.height : box.width) - width / 2 : width / 2) + (across ? top : left);
    const ends = across ? {
      x1: left,
      x2: left + box.width,
      y1: at,
      y2: at
    } : {
      x1: at,
      x2: at,
      y1: top,
      y2: top + box.height
    };
    into.append(svgElement("line", {
      ...rounded(ends),
      ...strokeOf(drawing, width, colour, line2)
    }));
  });
}
function frame(drawing, box, radius, beyond, width, colour, line2) {
  const looks2 = {
    fill: "none",
    ...strokeOf(drawing, width, colour, line2)
  };
  return rectangle(drawing, box, beyond, radius && Math.max(0, radius + beyond), looks2);
}
function strokeOf(drawing, width, colour, line2) {
  const dashes = {
    dashed: `${3 * width} ${2 * width}`,
    dotted: `${width} ${width}`
  }[line2];
  const stroke = {
    "stroke-width": width,
    ...ink(drawing, "stroke", colour)
  };
  return dashes ? {
    ...stroke,
    "stroke-dasharray": dashes
  } : stroke;
}
function rectangle(drawing, box, beyond, radius, looks2) {
  const [x, y] = [
    box.left - drawing.left - beyond,
    box.top - drawing.top - beyond
  ];
  const size2 = {
    width: Math.max(0, box.width + 2 * beyond),
    height: Math.max(0, box.height + 2 * beyond)
  };
  return svgElement("rect", {
    ...rounded({
      x,
      y,
      ...size2
    }),
    ...radius ? rounded({
      rx: radius
    }) : {},
    ...looks2
  });
}
function paintImage(drawing, into, box, radius, style) {
  const image = /^([a-z-]+)\((.*)\)$/.exec(style.backgroundImage);
  if (!image) return;
  const [first, ...stops] = image[2].split(/,\s*(?![^(]*\))/);
  const read = stops.map((stop) => ({
    colour: stop.replace(/(\s+-?[\d.]+(px|%))+$/, ""),
    places: [
      ...stop.matchAll(/\s(-?[\d.]+)(?:px|%)/g)
    ].map(([, number]) => Number(number)).slice(-2)
  }));
  if (image[1] === "linear-gradient") {
    const share = Math.min(1, Math.max(0, read[0].places[0] / 100));
    const [before, after] = [
      new DOMRect(box.left, box.top, box.width * share, box.height),
      new DOMRect(box.left + box.width * share, box.top, box.width * (1 - share), box.height)
    ];
    into.append(rectangle(drawing, before, 0, 0, ink(drawing, "fill", read[0].colour)));
    into.append(rectangle(drawing, after, 0, 0, ink(drawing, "fill", read[1].colour)));
    return;
  }
  const key = `${style.backgroundImage} ${style.backgroundSize}`;
  let id = drawing.patterns.get(key);
  if (!id) {
    id = `pattern-${drawing.patterns.size}`;
    drawing.patterns.set(key, id);
    const places = read.flatMap((stop) => stop.places);
    const dots = image[1] === "radial-gradient", size2 = dots ? parseFloat(style.backgroundSize) : Math.max(...places);
    const turn = dots ? {} : {
      patternTransform: `rotate(${parseFloat(first) - 90})`
    };
    const units = {
      id,
      patternUnits: "userSpaceOnUse",
      width: size2,
      height: size2,
      ...turn
    };
    const fill2 = ink(drawing, "fill", read[0].colour);
    drawing.defs.appendChild(svgElement("pattern", units)).append(dots ? svgElement("circle", {
      cx: size2 / 2,
      cy: size2 / 2,
      r: (places[0] + places[1]) / 2,
      ...fill2
    }) : svgElement("rect", {
      width: Math.min(...places.filter((place) => place > 0)),
      height: size2,
      ...fill2
    }));
  }
  into.append(rectangle(drawing, box, 0, radius, {
    fill: `url(#${id})`
  }));
}
function rounded(numbers) {
  return Object.fromEntries(Object.entries(numbers).map(([name, value]) => [
    name,
    Math.round(100 * value) / 100
  ]));
}

// vector_text.js
var GENERIC = /(^|,)\s*(serif|sans-serif|monospace)\s*$/;
var measuring = contextOf(element("canvas"));
function withGeneric(family) {
  return GENERIC.test(family) ? family : `${family}, sans-serif`;
}
function metricsOf(style) {
  measuring.font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  const { fontBoundingBoxAscent: ascent, fontBoundingBoxDescent: descent } = measuring.measureText("x");
  return {
    ascent,
    descent,
    widthOf: (text) => measuring.measureText(text).width
  };
}
function attributesOfFont(drawing, style) {
  const family = withGeneric(style.fontFamily);
  return {
    "font-size": parseFloat(style.fontSize),
    ...style.fontWeight === "400" ? {} : {
      "font-weight": style.fontWeight
    },
    ...style.fontStyle === "normal" ? {} : {
      "font-style": style.fontStyle
    },
    ...family === drawing.family ? {} : {
      "font-family": family
    }
  };
}
function drawText(drawing, into, node, style, clip) {
  if (!node.data.trim()) return;
  const kept = style.whiteSpaceCollapse ? style.whiteSpaceCollapse !== "collapse" : style.whiteSpace.startsWith("pre");
  const { ascent, descent, widthOf } = metricsOf(style);
  for (const line2 of linesOf(node)) {
    if (line2.bottom < clip.top || line2.top > clip.bottom || line2.left > clip.right || line2.right < clip.left) continue;
    let text = kept ? line2.text.replace(/\s/g, " ") : line2.text.replace(/\s+/g, " ");
    let width = line2.right - line2.left;
    if (style.textOverflow === "ellipsis" && line2.right > clip.right + 0.5) {
      while (text && line2.left + widthOf(`${text}\u2026`) > clip.right) text = text.slice(0, -1).trimEnd();
      text += "\u2026";
      width = widthOf(text);
    }
    const y = line2.top - drawing.top + (line2.bottom - line2.top) * ascent / (ascent + descent);
    write(drawing, into, text, {
      x: line2.left - drawing.left,
      y,
      width
    }, style);
  }
}
function drawWords(drawing, into, text, { left, middle }, style) {
  const { ascent, descent, widthOf } = metricsOf(style);
  const y = middle - drawing.top + (ascent - descent) / 2;
  write(drawing, into, text, {
    x: left - drawing.left,
    y,
    width: widthOf(text)
  }, style);
}
function write(drawing, into, text, { x, y, width }, style) {
  const looks2 = {
    ...attributesOfFont(drawing, style),
    ...ink(drawing, "fill", style.color)
  };
  const length = width > 0 ? {
    ...rounded({
      textLength: width
    }),
    lengthAdjust: "spacingAndGlyphs"
  } : {};
  const node = into.appendChild(svgElement("text", {
    ...rounded({
      x,
      y
    }),
    ...length,
    ...looks2
  }, text));
  if (/ {2}/.test(text)) node.setAttribute("xml:space", "preserve");
}
function linesOf(node) {
  const range2 = document.createRange(), text = node.data;
  const boxOf = (from, until) => {
    range2.setStart(node, from);
    range2.setEnd(node, until);
    return range2.getBoundingClientRect();
  };
  const start = text.length - text.trimStart().length, end = text.trimEnd().length;
  range2.setStart(node, start);
  range2.setEnd(node, end);
  const boxes = [
    ...range2.getClientRects()
  ].filter((box) => box.width);
  if (boxes.length <= 1) return boxes.map((box) => ({
    text: text.slice(start, end),
    ...edges(box)
  }));
  const lines = [];
  for (let at = start; at < end; ) {
    const sign = String.fromCodePoint(text.codePointAt(at) ?? 0), box = boxOf(at, at + sign.length);
    const line2 = lines.at(-1);
    at += sign.length;
    if (line2 && (!box.width || Math.abs(box.top - line2.top) < box.height / 2)) {
      line2.text += sign;
      if (box.width && sign.trim()) {
        line2.left = Math.min(line2.left, box.left);
        line2.right = Math.max(line2.right, box.right);
      }
    } else if (sign.trim() && box.width) lines.push({
      text: sign,
      ...edges(box)
    });
  }
  for (const line2 of lines) line2.text = line2.text.trimEnd();
  return lines;
}
function edges({ left, right, top, bottom }) {
  return {
    left,
    right,
    top,
    bottom
  };
}

// vector_controls.js
var LOOKS = [
  "stroke-width",
  "stroke-dasharray",
  "stroke-linejoin",
  "stroke-linecap",
  "vector-effect",
  "text-anchor",
  "dominant-baseline",
  "opacity"
];
var THUMB = 7;
var TRACK = 5;
function drawCanvas(drawing, into, canvas, box, style) {
  if (!canvas.width || !canvas.height) return;
  const place = rounded({
    x: box.left - drawing.left,
    y: box.top - drawing.top,
    width: box.width,
    height: box.height
  });
  const image = svgElement("image", {
    ...place,
    preserveAspectRatio: "none",
    href: canvas.toDataURL("image/png")
  });
  if (style.imageRendering !== "auto") image.style.imageRendering = style.imageRendering;
  into.append(image);
}
function drawCurves(drawing, into, svg, box) {
  const copy = (
    /** @type {SVGSVGElement} */
    svg.cloneNode(true)
  );
  const copies = copy.querySelectorAll("*");
  svg.querySelectorAll("*").forEach((node, index) => {
    const style = getComputedStyle(node), drawn = copies[index];
    if (style.display === "none") return drawn.remove();
    for (const name of LOOKS) {
      const value = style.getPropertyValue(name);
      if (value && ![
        "none",
        "auto",
        "normal"
      ].includes(value)) drawn.setAttribute(name, value.replaceAll("px", ""));
    }
    for (const kind of [
      "fill",
      "stroke"
    ]) {
      const colour = style.getPropertyValue(kind);
      for (const [name, value] of Object.entries(colour === "none" ? {
        [kind]: "none"
      } : ink(drawing, kind, colour))) {
        drawn.setAttribute(name, String(value));
      }
    }
    if (node.tagName === "text" || node.tagName === "tspan") {
      for (const [name, value] of Object.entries(attributesOfFont(drawing, style))) {
        drawn.setAttribute(name, String(value));
      }
    }
    drawn.removeAttribute("class");
  });
  if (copy.getAttribute("preserveAspectRatio") === "none") stretch(copy, box);
  for (const name of [
    "class",
    "style",
    "role",
    "aria-label",
    "tabindex"
  ]) copy.removeAttribute(name);
  const place = rounded({
    x: box.left - drawing.left,
    y: box.top - drawing.top,
    width: box.width,
    height: box.height
  });
  for (const [name, value] of Object.entries(place)) copy.setAttribute(name, String(value));
  into.append(copy);
}
function stretch(svg, box) {
  const { width, height } = svg.viewBox.baseVal, scales = [
    box.width / width,
    box.height / height
  ];
  for (const node of svg.querySelectorAll("*")) {
    node.removeAttribute("vector-effect");
    let at = 0;
    const path = node.getAttribute("d")?.replace(/-?[\d.]+/g, (number) => (Number(number) * scales[at++ % 2]).toFixed(2));
    if (path) node.setAttribute("d", path);
    for (const [name, side] of Object.entries({
      x: 0,
      width: 0,
      y: 1,
      height: 1
    })) {
      if (node.hasAttribute(name)) node.setAttribute(name, (Number(node.getAttribute(name)) * scales[side]).toFixed(2));
    }
  }
  svg.removeAttribute("viewBox");
}
function drawSelect(drawing, into, select, box, style) {
  const middle = box.top + box.height / 2, left = box.left + parseFloat(style.paddingLeft) + 1;
  drawWords(drawing, into, select.selectedOptions[0]?.text ?? "", {
    left,
    middle
  }, style);
  const [x, y] = [
    box.right - drawing.left - 15,
    middle - drawing.top - 2
  ];
  const line2 = {
    fill: "none",
    "stroke-width": 1.5,
    ...ink(drawing, "stroke", style.color)
  };
  into.append(svgElement("path", {
    d: `M${x.toFixed(1)} ${y.toFixed(1)}l4 4l4 -4`,
    ...line2
  }));
}
function drawInput(drawing, into, input, box, style) {
  const middle = box.top + box.height / 2, [x, y] = [
    box.left - drawing.left,
    middle - drawing.top
  ];
  const muted = ink(drawing, "fill", style.getPropertyValue("--kv-line"));
  const accent = ink(drawing, "fill", input.disabled ? style.color : style.getPropertyValue("--kv-brand"));
  if (input.type === "range") {
    const low = Number(input.min || 0), high = Number(input.max || 100);
    const reached = THUMB + (Number(input.value) - low) / Math.max(high - low, 1e-9) * (box.width - 2 * THUMB);
    const track = {
      x,
      y: y - TRACK / 2,
      height: TRACK,
      rx: TRACK / 2
    };
    into.append(svgElement("rect", {
      ...rounded({
        ...track,
        width: box.width
      }),
      ...muted
    }), svgElement("rect", {
      ...rounded({
        ...track,
        width: reached
      }),
      ...accent
    }), svgElement("circle", {
      ...rounded({
        cx: x + reached,
        cy: y,
        r: THUMB
      }),
      ...accent
    }));
  } else if (input.type === "checkbox" || input.type === "radio") {
    const size2 = {
      x: x + 0.5,
      y: y - box.height / 2 + 0.5,
      width: box.width - 1,
      height: box.height - 1
    };
    const edge = ink(drawing, "stroke", style.color), round = input.type === "radio" ? box.width / 2 : 2;
    into.append(svgElement("rect", {
      ...rounded({
        ...size2,
        rx: round
      }),
      fill: "none",
      ...edge
    }));
    if (!input.checked) return;
    const inner = {
      x: x + 3,
      y: y - box.height / 2 + 3,
      width: box.width - 6,
      height: box.height - 6,
      rx: round
    };
    into.append(svgElement("rect", {
      ...rounded(inner),
      ...accent
    }));
  } else {
    const left = box.left + parseFloat(style.borderLeftWidth) + parseFloat(style.paddingLeft);
    drawWords(drawing, into, input.value || input.placeholder, {
      left,
      middle
    }, style);
  }
}

// vector.js
var TYPED = /* @__PURE__ */ new Set([
  "number",
  "text",
  "search"
]);
var LEFT_OUT = ".kv-tip, .kv-sheet, .kv-menu, .kv-cross";
function vectorOf(root2, about2 = "") {
  const box = root2.getBoundingClientRect(), style = getComputedStyle(root2);
  const width = Math.ceil(box.width), height = Math.ceil(box.height);
  const svg = svgElement("svg", {
    width,
    height,
    viewBox: `0 0 ${width} ${height}`
  });
  const family = withGeneric(style.fontFamily);
  svg.setAttribute("font-family", family);
  svg.style.fontVariantNumeric = style.fontVariantNumeric;
  svg.append(svgElement("title", {}, root2.querySelector("h2")?.textContent ?? ""), svgElement("desc", {}, about2));
  const defs = svg.appendChild(svgElement("defs", {}));
  const drawing = {
    left: box.left,
    top: box.top,
    defs,
    outlines: svgElement("g", {}),
    patterns: /* @__PURE__ */ new Map(),
    family,
    read: colourReader()
  };
  svg.append(svgElement("rect", {
    width,
    height,
    fill: drawing.read(style.backgroundColor).colour
  }));
  drawChildren(drawing, svg, root2, box);
  svg.append(drawing.outlines);
  return {
    svg,
    width,
    height
  };
}
function drawChildren(drawing, into, parent, clip) {
  const style = getComputedStyle(parent);
  for (const node of parent.childNodes) {
    if (node instanceof Text) drawText(drawing, into, node, style, clip);
    else if (node instanceof Element) drawElement(drawing, into, node, clip);
  }
}
function drawElement(drawing, into, node, clip) {
  if (node.matches(LEFT_OUT)) return;
  const style = getComputedStyle(node);
  if (style.display === "none" || style.visibility !== "visible" || style.clipPath !== "none") return;
  const boxes = [
    ...node.getClientRects()
  ].filter((box) => meets(box, clip));
  if (!boxes.length) return;
  const group2 = style.opacity === "1" ? into : into.appendChild(svgElement("g", {
    opacity: style.opacity
  }));
  const drawn = node instanceof HTMLInputElement && style.appearance !== "none" && !TYPED.has(node.type);
  for (const box of boxes) {
    if (!drawn) paintBox(drawing, group2, box, style);
    if (style.textDecorationLine === "underline") underline(drawing, group2, box, style, metricsOf(style).ascent);
  }
  drawBefore(drawing, group2, node, boxes[0]);
  if (node instanceof HTMLCanvasElement) drawCanvas(drawing, group2, node, boxes[0], style);
  else if (node instanceof SVGSVGElement) drawCurves(drawing, group2, node, boxes[0]);
  else if (node instanceof HTMLSelectElement) drawSelect(drawing, group2, node, boxes[0], style);
  else if (node instanceof HTMLInputElement) drawInput(drawing, group2, node, boxes[0], style);
  else if (style.overflowX === "visible" || !(node instanceof HTMLElement)) drawChildren(drawing, group2, node, clip);
  else drawClipped(drawing, group2, node, boxes[0], clip);
}
function drawClipped(drawing, into, node, box, clip) {
  const left = box.left + node.clientLeft, top = box.top + node.clientTop;
  const inside = {
    left: Math.max(left, clip.left),
    top: Math.max(top, clip.top),
    right: Math.min(left + node.clientWidth, clip.right),
    bottom: Math.min(top + node.clientHeight, clip.bottom)
  };
  const cut2 = node.scrollWidth > node.clientWidth || node.scrollHeight > node.clientHeight;
  if (!cut2) return drawChildren(drawing, into, node, inside);
  const id = `cut-${drawing.defs.childElementCount}`;
  const path = drawing.defs.appendChild(svgElement("clipPath", {
    id
  }));
  path.append(svgElement("rect", {
    x: inside.left - drawing.left,
    y: inside.top - drawing.top,
    width: Math.max(0, inside.right - inside.left),
    height: Math.max(0, inside.bottom - inside.top)
  }));
  const group2 = into.appendChild(svgElement("g", {
    "clip-path": `url(#${id})`
  })), outlines = svgElement("g", {});
  drawChildren({
    ...drawing,
    outlines
  }, group2, node, inside);
  if (outlines.hasChildNodes()) group2.append(outlines);
}
function drawBefore(drawing, into, node, box) {
  const style = getComputedStyle(node, "::before");
  const words = /^"(.*)"$/.exec(style.content)?.[1];
  if (words === void 0 || style.display === "none") return;
  if (style.position === "absolute") {
    const [left, top, width, height] = [
      style.left,
      style.top,
      style.width,
      style.height
    ].map(parseFloat);
    paintBox(drawing, into, new DOMRect(box.left + left, box.top + top, width, height), style);
  } else if (words) {
    const { padding, line: line2 } = {
      padding: getComputedStyle(node),
      line: parseFloat(style.lineHeight)
    };
    const x = box.left + parseFloat(padding.paddingLeft), y = box.top + parseFloat(padding.paddingTop);
    drawWords(drawing, into, words, {
      left: x,
      middle: y + line2 / 2
    }, style);
  }
}
function meets(box, clip) {
  return box.right >= clip.left && box.left <= clip.right && box.bottom >= clip.top && box.top <= clip.bottom;
}

// wait.js
var PATIENCE_MS = 8e3;
var BUSY = "The kernel is busy. Its answer is shown as soon as it comes.";
function createWait(root2, back, usual = PATIENCE_MS, kept = "The widget still shows what it showed before.") {
  const words = root2.appendChild(element("p", "kv-silent"));
  words.setAttribute("role", "status");
  let timer;
  function end() {
    clearTimeout(timer);
    delete root2.dataset.busy;
    words.textContent = "";
  }
  return {
    words,
    /** @param {Host} host */
    begin(host, patience = usual) {
      end();
      let waited = 0;
      function late() {
        waited += patience;
        if (host.isBusy()) {
          if (words.textContent !== BUSY) words.textContent = BUSY;
          timer = setTimeout(late, patience);
          return;
        }
        end();
        back();
        words.textContent = `The kernel has not answered for ${waited / 1e3} seconds: it is busy, or it has stopped. ${kept} If the kernel has stopped, run the cell again.`;
      }
      timer = setTimeout(late, patience);
    },
    end,
    close: () => clearTimeout(timer)
  };
}

// save.js
var PAGE_MS = 6e4;
var FORMATS = [
  [
    "png",
    "a picture of the widget, two pixels per pixel of the screen"
  ],
  [
    "svg",
    "a vector graphic of the widget: text stays text, maps are pictures at their own resolution"
  ],
  [
    "pdf",
    "opens the print dialog for one page of the widget's size: choose \u201CSave as PDF\u201D there"
  ],
  [
    "html",
    "a page with the widget that works without Python and without a network"
  ]
];
function createSaveMenu(head, root2, save) {
  const meaning = "this widget as a picture, vector graphic or page, or the Python line that opens it";
  const { menu, sheet, close } = createMenu(head, root2, "Save", meaning);
  for (const [format2, meaning2] of FORMATS) item(`Save as ${format2.toUpperCase()}`, meaning2, () => save(format2));
  item("Copy the call that made this", "copies the Python line that opens this view", copy);
  const line2 = sheet.appendChild(element("code"));
  const status = sheet.appendChild(element("p", "kv-said"));
  status.setAttribute("role", "status");
  const saved = head.appendChild(element("span", "kv-spoken"));
  saved.setAttribute("role", "status");
  const wait = createWait(sheet, () => status.textContent = "", PAGE_MS, "Nothing was saved.");
  wait.words.className = "kv-said";
  menu.addEventListener("toggle", () => {
    if (menu.open) status.textContent = saved.textContent = "";
  });
  function item(text, meaning2, pressed) {
    const node = sheet.appendChild(element("button", "", text));
    node.type = "button";
    explain(node, meaning2).setAttribute("aria-description", meaning2);
    node.addEventListener("click", () => pressed());
  }
  async function copy() {
    try {
      await navigator.clipboard.writeText(line2.textContent);
      status.textContent = "Copied.";
    } catch {
      getSelection()?.selectAllChildren(line2);
      status.textContent = "This page cannot use the clipboard. The line is selected: copy it with Ctrl+C.";
    }
  }
  return {
    menu,
    line: line2,
    wait,
    /** @param {string} words */
    saved(words) {
      close();
      saved.textContent = words;
    },
    /** @param {string} words */
    say(words) {
      menu.open = true;
      status.textContent = words;
    }
  };
}
async function saveAs(format2, menu, root2, host, name) {
  const file = `${name}.${format2}`;
  if (format2 === "html") return savePage(menu, host, file);
  try {
    const drawn = vectorOf(root2, menu.line.textContent);
    if (format2 === "pdf") {
      print(drawn, name);
      return menu.saved("The print dialog was opened.");
    }
    download(format2 === "png" ? await pngOf(drawn) : new Blob([
      textOf(drawn)
    ], {
      type: "image/svg+xml"
    }), file);
    menu.saved(`Saved ${file}.`);
  } catch (error) {
    const { message } = (
      /** @type {Error} */
      error
    );
    menu.say(`This browser cannot save the widget as ${format2.toUpperCase()} (${message}): take a screenshot instead.`);
  }
}
function savePage(menu, host, file) {
  menu.say("Making the page \u2026");
  menu.wait.begin(host);
  host.askForPage(({ page, refusal }) => {
    menu.wait.end();
    if (!page) return menu.say(`No page was made: ${refusal}`);
    download(new Blob([
      page
    ], {
      type: "text/html"
    }), file);
    menu.saved(`Saved ${file}.`);
  });
}

// comparer_controls.js
function createComparerControls(root2, page, { go, pick, sort, save }) {
  const head = root2.appendChild(element("div", "kv-head"));
  head.append(element("h2", "kv-title", page.description));
  const place = createPlacePickers(head, page, (layer, row2) => pick(layer, row2, "none"));
  const order = picker(head, "sort by", [], "order of the columns, the best first", () => sort(order.value));
  order.append(new Option("as given", "given"), group("at this step", page.sorts, false), group("mean over the steps", page.sorts, true));
  const settings = createSettings(head, root2);
  const menu = createSaveMenu(head, root2, save);
  const bar = root2.appendChild(element("div", "kv-controls"));
  const slider = createStepSlider(bar, page.steps, go);
  return {
    bar,
    menu,
    settings,
    /**
     * @param {ComparerState} state
     * @param {AnySlice} slice
     */
    paint(state, slice) {
      const { step } = state;
      slider.show(step);
      place(slice.layer, slice.head);
      order.value = state.sort;
      order.setAttribute("aria-description", sortMeaning(state.sort));
      if (order.parentElement) explain(order.parentElement, `order of the columns: ${sortMeaning(state.sort)}`);
      markSelected(order);
      const token = state.token < 0 ? "" : `, token=${state.token}`;
      const sorted = state.sort === "given" ? token : `${token}, sort="${state.sort}"`;
      const { kind } = unionOf(slice), more = kind === "none" ? sorted : `, union="${kind}"${sorted}`;
      menu.line.textContent = `kvviz.widgets.MethodComparer(recordings, step=${step}, layer=${slice.layer}, head=${slice.head}${more})`;
    }
  };
}
function group(label, sorts, mean) {
  const options = element("optgroup");
  options.label = label;
  for (const sort of sorts.filter((name) => name !== "given" && name.startsWith("mean ") === mean)) {
    options.append(new Option(sort, sort));
  }
  return options;
}

// comparer_labels.js
function createLabels(host) {
  const list = explainTogether(host.appendChild(element("div", "kv-labels")), "rows of numbers, panels and texts");
  list.append(element("span"));
  const numbers = NAMES.map((name2) => {
    const row2 = list.appendChild(element("span"));
    const text = row2.appendChild(element("span", "", name2));
    return {
      name: name2,
      text,
      row: tagged(row2, SCOPE_OF[name2])
    };
  });
  const curve = list.appendChild(explain(element("span"), ROWS.curve));
  const name = curve.appendChild(element("span")), range2 = curve.appendChild(element("span", "kv-mean"));
  const prompt = explain(element("span", "", "prompt"), ROWS.prompt);
  list.append(explain(element("span", "", "steps \u2193 \xD7 positions \u2192"), ROWS.map), prompt, explain(element("span", "", "answer"), ROWS.answer));
  return {
    prompt,
    /**
     * @param {string} number
     * @param {string} rangeText
     */
    curve(number, rangeText) {
      name.textContent = `${number} over the steps`;
      range2.textContent = rangeText;
    },
    /**
     * What the rows are about, and what a screen reader says of each: the number of every column.
     *
     * @param {Numbered[]} columns
     * @param {number} step
     */
    paint(columns, step) {
      const { kind, heads } = unionOf(columns[0].slice);
      for (const { name: name2, text, row: row2 } of numbers) {
        const scope = scopeIn(SCOPE_OF[name2], kind);
        text.textContent = nameIn(name2, kind);
        row2.lastElementChild?.replaceWith(tagOf(row2, scope));
        explainNumber(row2, meaningIn(name2, kind, heads), scope);
        const values = columns.map(({ label, slice }) => `${label} ${NUMBERS[name2].write(slice[name2][step])}`);
        row2.dataset.said = `${text.textContent}, ${values.join(", ")}`;
      }
    }
  };
}

// find.js
var MEANING2 = "find text in the prompt (/); Enter: next match, Shift+Enter: previous match, Escape: clear";
function createFind(host, root2, { tokens, strips, onFound = () => {
} }) {
  const box = host.appendChild(element("span", "kv-find"));
  const field = box.appendChild(element("input"));
  Object.assign(field, {
    type: "search",
    placeholder: "find",
    autocomplete: "off",
    spellcheck: false
  });
  field.setAttribute("aria-label", "find text in the prompt");
  explain(field, MEANING2).setAttribute("aria-description", MEANING2);
  const moves = box.appendChild(element("span", "kv-buttons"));
  button(moves, "\u2039", "previous match (Shift+Enter)", () => go(-1));
  button(moves, "\u203A", "next match (Enter)", () => go(1));
  moves.hidden = true;
  const said = box.appendChild(element("span", "kv-found"));
  said.setAttribute("role", "status");
  let search = null;
  let matches2 = [];
  let found = [];
  let now = -1;
  function find() {
    search ??= searcher(tokens);
    matches2 = search(field.value);
    const [top] = strips()[0].inSight();
    now = matches2.findIndex(([, last]) => last >= top);
    if (now < 0) now = matches2.length ? 0 : -1;
    found = matches2.flatMap(range);
    for (const strip of strips()) strip.outline("found", found);
    show();
  }
  function show() {
    const match = matches2[now];
    moves.hidden = matches2.length < 2;
    for (const strip of strips()) {
      strip.outline("match", match ? range(match) : []);
      if (match) strip.focus(match[0], false);
    }
    onFound(found, match ? match[0] : -1);
    if (!field.value.trim()) said.textContent = "";
    else said.textContent = match ? `match ${now + 1} of ${matches2.length}, position ${match[0]}` : "no match";
  }
  function go(by) {
    if (matches2.length === 0) return;
    now = (now + by + matches2.length) % matches2.length;
    show();
  }
  field.addEventListener("input", find);
  field.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key === "Enter") go(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape") {
      field.value = "";
      find();
    } else return;
    event.preventDefault();
  });
  root2.addEventListener("keydown", (event) => {
    if (event.key !== "/" || hasModifier(event) || targetOf(event).matches("select, input:not([type=range])")) return;
    field.focus();
    field.select();
    event.preventDefault();
  });
}
function range([first, last]) {
  return Array.from({
    length: last - first + 1
  }, (_, at) => first + at);
}
var folded = (text) => text.replace(/\s/g, " ").toLowerCase();
function searcher(tokens) {
  const parts = tokens.map(folded), text = parts.join("");
  const starts = [];
  parts.reduce((length, part) => (starts.push(length), length + part.length), 0);
  const tokenAt = (place) => {
    let low = 0, high = starts.length;
    while (low < high) {
      const middle = low + high >> 1;
      if (starts[middle] > place) high = middle;
      else low = middle + 1;
    }
    return low - 1;
  };
  return (query) => {
    const wanted = folded(query);
    const matches2 = [];
    if (!wanted.trim()) return matches2;
    for (let at = text.indexOf(wanted); at >= 0; at = text.indexOf(wanted, at + wanted.length)) {
      matches2.push([
        tokenAt(at),
        tokenAt(at + wanted.length - 1)
      ]);
    }
    return matches2;
  };
}

// follow_text.js
function createFollowText(settings, heading, page, { strip, picked, focus = (to) => strip().focus(to, false) }) {
  const select = setting(settings, "the text follows", "the token that the text follows", MEANING.follow);
  if (page.span.length) select.append(new Option("the marked tokens", "span"));
  select.append(new Option("the strongest token", "strongest"), new Option("the missed token", "missed"), new Option("the picked token", "picked"), new Option("nothing", "nothing"));
  const words = heading.appendChild(explain(element("span", "kv-follow"), `${MEANING.follow}; Settings has others`));
  let frames = [];
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
    show(shown2, stay = false) {
      frames = shown2;
      if (!stay) move();
    },
    /** Where the text opens. */
    opening() {
      const position = target();
      return Math.max(0, position >= 0 ? position : heaviest(frames, (mark) => Boolean(mark & ATTENDED)));
    }
  };
}
function strongest(frames) {
  const sinks = /* @__PURE__ */ new Set();
  for (const { positions, marks } of frames) {
    positions.forEach((position, index) => marks[index] & SINK && sinks.add(position));
  }
  return heaviest(frames, (_, group2, position) => group2 >= 0 && !sinks.has(position));
}
function heaviest(frames, counts) {
  let heaviestToken = -1, heaviestWeight = -1;
  for (const { positions, marks, groups, weights } of frames) {
    for (let index = 0; index < positions.length; index++) {
      if (weights[index] > heaviestWeight && counts(marks[index], groups[index], positions[index])) {
        [heaviestToken, heaviestWeight] = [
          positions[index],
          weights[index]
        ];
      }
    }
  }
  return heaviestToken;
}

// host.js
function createHost(model) {
  const listeners = [];
  return {
    /** @param {string} name */
    get: (name) => model.get(name),
    /** @param {string} name */
    bytes: (name) => bytesOf(model.get(name)),
    /** @param {Record<string, unknown>} changes */
    tell(changes) {
      for (const [name, value] of Object.entries(changes)) model.set(name, value);
      model.save_changes();
    },
    /** @param {{ kind: string, [more: string]: unknown }} message */
    send: (message) => model.send(message),
    /**
     * @param {string} name
     * @param {() => void} react
     */
    on(name, react) {
      listeners.push([
        `change:${name}`,
        react
      ]);
      model.on(`change:${name}`, react);
    },
    /**
     * Asks for the widget as a page: the kernel makes it, and a page without a kernel is one itself.
     *
     * @param {(answer: PageAnswer) => void} react
     */
    askForPage(react) {
      if (model.page) return react({
        page: model.page()
      });
      const hear = ({ kind, refusal }, [page]) => {
        if (kind !== "page") return;
        model.off("msg:custom", hear);
        react({
          page,
          refusal
        });
      };
      model.on("msg:custom", hear);
      model.send({
        kind: "page"
      });
    },
    /** Whether the kernel is known to be at work: with what was asked, or with something before it. */
    isBusy: () => model.widget_manager?.kernel?.status === "busy",
    close() {
      for (const [event, react] of listeners) model.off(event, react);
    }
  };
}
function bytesOf(view) {
  return new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
}

// tip.js
function createTip(root2) {
  const tip = root2.appendChild(element("div", "kv-tip"));
  tip.setAttribute("role", "tooltip");
  tip.hidden = true;
  const spoken = root2.appendChild(element("p", "kv-spoken"));
  spoken.setAttribute("role", "status");
  let explains = false;
  document.addEventListener("pointerdown", elsewhere);
  document.addEventListener("keydown", escape, true);
  function elsewhere(event) {
    if (!root2.isConnected) document.removeEventListener("pointerdown", elsewhere);
    else if (event.pointerType === "touch") tip.hidden = true;
  }
  function escape(event) {
    if (!root2.isConnected) document.removeEventListener("keydown", escape, true);
    else if (event.key === "Escape" && !tip.hidden) {
      tip.hidden = true;
      if (!explains) event.stopPropagation();
    }
  }
  function place(content, at) {
    tip.replaceChildren(...content);
    tip.hidden = false;
    const box = root2.getBoundingClientRect();
    const [x, y] = [
      at.clientX - box.left,
      at.clientY - box.top
    ];
    tip.style.left = `${Math.max(4, Math.min(x + 14, box.width - tip.offsetWidth - 8))}px`;
    const [top, end] = [
      Math.max(0, -box.top),
      Math.min(box.height, innerHeight - box.top)
    ];
    const below = y + 18 + tip.offsetHeight < end;
    tip.style.top = `${below ? y + 18 : Math.max(top + 4, y - tip.offsetHeight - 10)}px`;
  }
  explainAll(root2, (node, at, said = "") => {
    if (!node || !at) {
      if (explains) tip.hidden = true;
      return;
    }
    explains = true;
    if (said) spoken.textContent = said;
    place([
      element("span", "kv-meaning", node.dataset.meaning)
    ], at);
  });
  return {
    /**
     * @param {Rows} rows
     * @param {Pointed} at
     */
    show(rows, at) {
      explains = false;
      if (at.spoken) spoken.textContent = rows.map(([term, value]) => `${term} ${value}`).join(", ");
      const cells = rows.flatMap(([term, value]) => [
        element("span", "kv-term", term),
        element("span", "kv-value", value)
      ]);
      place(cells, at);
    },
    hide() {
      tip.hidden = true;
    }
  };
}

// comparer.js
function createComparer(root2, host) {
  const page = host.get("page");
  const state = {
    step: host.get("step"),
    sort: host.get("sort"),
    token: host.get("token")
  };
  let shown2 = false;
  root2.classList.add("kvviz", "kv-comparer");
  keepKeys(root2);
  const controls = createComparerControls(root2, page, {
    go,
    pick: ask,
    sort: order,
    save
  });
  const wait = createWait(root2, paint);
  const tip = createTip(root2);
  const heads = createHeadPanel(root2, page, {
    tip,
    pick: ask,
    settings: controls.settings
  });
  const side = root2.appendChild(element("div", "kv-columns"));
  side.setAttribute("role", "group");
  side.setAttribute("aria-label", "recordings side by side");
  const labels = createLabels(side);
  const zoom = createZoom(page.prompt.length + page.steps, () => columns.forEach((column) => column.paintMap()));
  const about2 = (rows, event) => rows ? tip.show(rows, event) : tip.hide();
  const columns = page.methods.map((method) => createColumn(side, page, method, {
    go,
    choose,
    turn,
    point,
    about: about2,
    zoom
  }));
  const follow2 = createFollowText(controls.settings, labels.prompt, {
    span: page.span,
    prompt_length: page.prompt.length
  }, {
    strip: () => columns[0].prompt,
    focus: (position) => columns.forEach((column) => column.focus(position, false)),
    picked: () => state.token
  });
  createFind(controls.bar, root2, {
    tokens: page.prompt,
    strips: () => columns.map((column) => column.prompt)
  });
  controls.bar.append(createRange(zoom));
  const key = legend(page);
  root2.append(key.host, ...page.notes.map((note) => element("p", "kv-note", note)));
  scrollTogether(columns.map((column) => column.panel));
  const unwatch = watchTheme(root2, () => columns.forEach((column) => column.recolour()));
  function paint() {
    for (const column of columns) column.place(state.step);
    for (const column of columns) column.paint();
    arrange();
    labels.paint(columns, state.step);
    tip.hide();
    const [{ slice }] = columns, { kind } = unionOf(slice);
    heads.paint(slice.layer, slice.head, kind);
    key.say(kind !== "none");
    controls.paint(state, slice);
  }
  const frames = () => columns.map(({ slice }) => frameOf(slice, state.step));
  function arrange() {
    const key2 = sortKey(state.sort);
    const ranked = [
      ...columns
    ];
    if (key2) {
      const valueOf = ({ slice }) => key2.mean ? meanOf(slice[key2.name]) : slice[key2.name][state.step];
      ranked.sort((a, b) => NUMBERS[key2.name].more ? valueOf(b) - valueOf(a) : valueOf(a) - valueOf(b));
    }
    ranked.forEach((column, place) => column.element.style.order = String(place + 1));
  }
  function drawCurves2() {
    const name = sortKey(state.sort)?.name ?? NAMES[0];
    const all = columns.map((column) => column.slice[name]);
    const top = NUMBERS[name].share ? 1 : Math.max(1e-12, ...all.flatMap((values) => [
      ...values
    ]));
    columns.forEach((column, index) => column.curve(name, all, index, top));
    labels.curve(name, `0 to ${NUMBERS[name].share ? 1 : NUMBERS[name].write(top)}`);
  }
  function go(by, to = state.step) {
    const next = Math.max(0, Math.min(page.steps - 1, to + by));
    if (next === state.step || !shown2) return;
    state.step = next;
    paint();
    follow2.show(frames());
    host.tell({
      step: next
    });
  }
  function order(next) {
    if (next === state.sort || !shown2) return;
    state.sort = next;
    drawCurves2();
    paint();
    host.tell({
      sort: next
    });
  }
  function ask(layer, head, union) {
    if (root2.dataset.busy === void 0 && isShown(columns[0].slice, layer, head, union)) return;
    wait.begin(host);
    root2.dataset.busy = "";
    heads.paint(layer, head, union);
    host.tell({
      layer,
      head,
      union
    });
  }
  function choose(position) {
    if (position === state.token) return seek(position);
    state.token = position;
    seek(position);
    controls.paint(state, columns[0].slice);
    host.tell({
      token: position
    });
  }
  function seek(position, flash = true) {
    if (position >= 0) {
      for (const column of columns) column.focus(position, flash);
    }
    point(null);
  }
  function turn(direction) {
    for (const column of columns) column.prompt.turn(direction);
  }
  function point(position) {
    const outlined = position ?? state.token;
    for (const column of columns) column.light(outlined < 0 ? [] : [
      outlined
    ]);
  }
  function save(format2) {
    const { layer, head } = columns[0].slice;
    const shownHeads = unionOf(columns[0].slice).kind === "none" ? `head-${head}` : "union";
    const name = `method-comparer-step-${state.step}-layer-${layer}-${shownHeads}`;
    root2.style.width = `${root2.offsetWidth + side.scrollWidth - side.clientWidth}px`;
    saveAs(format2, controls.menu, root2, host, name);
    root2.style.width = "";
  }
  function open() {
    if (state.token >= 0) return seek(state.token, false);
    const position = follow2.opening();
    for (const column of columns) column.focus(position, false);
  }
  root2.addEventListener("keydown", (event) => {
    const move = stepKeys(page.steps)[event.key];
    if (hasModifier(event) || targetOf(event).tagName === "SELECT" || !move) return;
    go(...move);
    event.preventDefault();
  });
  function show() {
    const opening = !shown2;
    shown2 = true;
    const slices = host.get("slices");
    columns.forEach((column, index) => column.show(unpack(bytesOf(slices[index]))));
    columns.forEach((column) => column.describe());
    wait.end();
    drawCurves2();
    paint();
    follow2.show(frames(), opening);
    if (opening) requestAnimationFrame(open);
  }
  host.on("slices", show);
  host.on("step", () => go(0, host.get("step")));
  host.on("sort", () => order(host.get("sort")));
  host.on("token", () => host.get("token") !== state.token && choose(host.get("token")));
  show();
  return () => {
    wait.close();
    unwatch();
    columns.forEach((column) => column.destroy());
  };
}
function scrollTogether(panels) {
  const lastTops = /* @__PURE__ */ new Map();
  for (const leader of panels) {
    leader.addEventListener("scroll", () => {
      const top = leader.scrollTop;
      if (lastTops.get(leader) === top) return;
      lastTops.set(leader, top);
      for (const panel of panels) {
        if (panel === leader || panel.scrollTop === top) continue;
        panel.scrollTop = top;
        lastTops.set(panel, panel.scrollTop);
      }
    });
  }
}
function legend(page) {
  const map = "on the map, wasted tokens have a paler tint and missed tokens the colour of the text";
  const host = createLegend(marksOf(page.merges), "", "");
  const last = (
    /** @type {HTMLElement} */
    host.lastElementChild
  );
  return {
    host,
    /** @param {boolean} union */
    say(union) {
      last.textContent = `colour: method \xB7 strength: ${union ? "share of the heads" : "attention"}`;
      const strength = union ? STRENGTH : "the strength is logarithmic, from 0.0002 or less to 0.35 or more";
      explain(last, `${strength}; ${map}`);
    }
  };
}

// explorer_words.js
var MEANING3 = {
  budget: "budget: tokens that a head may attend to, including sinks and recent window; tokens fed after the prompt are extra",
  recall: `${MEANING.recall}; mean over the steps`,
  mass: `${MEANING.mass}; mean over the steps`,
  error: `output ${MEANING.error}, and over the steps`,
  attended: "attended: tokens and centroids that this head attends to at the last step, including those fed after the prompt",
  metadata: "metadata: bytes that the method keeps for this layer, all heads, in addition to keys and values",
  read: "read to choose: bytes that one step of this layer reads to choose, besides the keys and values attended to",
  curve: "each dot is a run of the method on the trace with that budget; the oracle attends to the tokens with the largest exact weights; click to set the nearest budget",
  ledger: "the tokens that this head attends to at the last step; all parts except the missed tokens add up to them",
  text: "the trace as text; point at a token to see its cluster, score and attention",
  map: "all positions from left to right; of the tokens in a column, the strongest is drawn; click to scroll the text there",
  tint: "tokens in no group are grey; the strength is logarithmic, from 0.0002 or less to 0.35 or more",
  sinks: "sinks: first tokens of the prompt, always attended, without being selected",
  recent: "recent: last tokens of the prompt, always attended, without being selected",
  agreed: "agreed: selected, and the oracle would select them too",
  wasted: "wasted: selected, although the oracle would not select them",
  merged: "centroids: merged tokens, each of which stands for several tokens",
  generated: "fed: attended tokens that were fed after the prompt",
  missed: "missed: the oracle would attend to them; the method does not, or their centroids give them less than half of their weight"
};
var OF_UNION2 = {
  attended: "attended: tokens that at least one of these heads attends to at the last step, each counted once, and their centroids; the budget is that of each head, so that these may be more",
  ledger: "the tokens that at least one of these heads attends to at the last step, each counted once; all parts except the missed tokens add up to them",
  text: "the trace as text; point at a token to see how many heads attend to it, and its mean attention",
  agreed: "agreed: a head attends to the token, and the oracle of a head would select it",
  wasted: "wasted: a head selected the token, and no oracle would",
  merged: "centroids: merged tokens of each of these heads, each of which stands for several tokens",
  missed: "missed: no head attends to the token, and the oracle of a head would",
  curve: `means over the heads, each with that budget; ${MEANING3.curve}`
};
function meaningOf(name, { kind, heads }) {
  if (kind === "none") return MEANING3[name];
  if (name === "recall" || name === "mass") return `${meaningIn(name, kind, heads)}; mean over the steps`;
  return OF_UNION2[name] ?? MEANING3[name];
}
var FIGURES = [
  {
    scopes: [
      "head",
      "steps"
    ],
    numbers: [
      [
        "recall",
        "recall"
      ],
      [
        "mass",
        "mass"
      ]
    ]
  },
  {
    scopes: [
      "layer",
      "steps"
    ],
    numbers: [
      [
        "error",
        "output error"
      ]
    ]
  },
  {
    scopes: [
      "head",
      "last"
    ],
    numbers: [
      [
        "attended",
        "attended"
      ]
    ]
  },
  {
    scopes: [
      "layer",
      "last"
    ],
    numbers: [
      [
        "metadata",
        "metadata"
      ],
      [
        "read",
        "read to choose"
      ]
    ]
  }
];
var MEASURES = [
  {
    name: "mass",
    label: "attention mass",
    title: "attention mass, by budget",
    place: 1
  },
  {
    name: "recall",
    label: "recall",
    title: "recall of the oracle's tokens, by budget",
    place: 2
  },
  {
    name: "error",
    label: "output error",
    title: "error of the attention output, by budget (lower is better)",
    place: 3
  }
];
function shortNumber(value) {
  if (value === null) return "\u221E";
  return value !== 0 && value < 0.1 ? value.toPrecision(2) : value.toFixed(3);
}

// explorer_controls.js
function createExplorerControls(root2, page, { change, measured, save }) {
  const head = root2.appendChild(element("div", "kv-head"));
  const title = head.appendChild(element("h2", "kv-title"));
  const grid = root2.appendChild(element("div", "kv-explorer-grid"));
  const left = grid.appendChild(element("div", "kv-explorer-left"));
  const budget = createSlider(left, "budget", page.budgets, MEANING3.budget, (value) => change({
    budget: value
  }));
  const sliders = page.sliders.map((slider) => createSlider(left, slider.label, slider.values, `${slider.name}: ${slider.meaning}`, (value) => change({
    settings: {
      [slider.name]: value
    }
  })));
  const refusal = left.appendChild(element("p", "kv-explorer-refusal"));
  refusal.setAttribute("role", "status");
  const list = explainTogether(left.appendChild(element("div", "kv-explorer-numbers")), "numbers of this budget");
  const figures = {};
  const groups = FIGURES.map(({ scopes, numbers }) => figureGroup(list, scopes, numbers, figures));
  let measure = MEASURES[0];
  const measures = MEASURES.map(({ name, label }) => [
    name,
    label
  ]);
  const measurePicker = picker(head, "measure", measures, "measure: the number that the curve shows", () => {
    measure = MEASURES[measurePicker.selectedIndex];
    measured();
  });
  measurePicker.value = measure.name;
  const pickers = createPlacePickers(head, page, (layer, row2) => change({
    layer,
    head: row2,
    union: "none"
  }));
  const settings = createSettings(head, root2);
  const menu = createSaveMenu(head, root2, save);
  function set(place) {
    budget.set(place.budget);
    page.sliders.forEach((slider, index) => sliders[index].set(place.settings[slider.name]));
    pickers(place.layer, place.head);
    markSelected(measurePicker);
  }
  return {
    grid,
    menu,
    settings,
    get measure() {
      return measure;
    },
    set,
    /**
     * Moves the slider whose input is `target`, or else the budget's, by some stops.
     *
     * @param {HTMLElement} target
     * @param {number} by
     */
    move(target, by) {
      ([
        budget,
        ...sliders
      ].find((slider) => slider.input === target) ?? budget).move(by);
    },
    /** @param {string} reason */
    refuse(reason) {
      refusal.textContent = reason ? `Nothing to show here. ${reason}. Move a slider back.` : "";
      grid.toggleAttribute("data-stale", Boolean(reason));
    },
    /**
     * @param {ExplorerNumbers} numbers
     * @param {{ kind: Union, heads: number }} union
     */
    paint(numbers, union) {
      set(numbers);
      for (const ofHeads of groups) ofHeads(union);
      const seed = page.seed === null ? "" : ` \xB7 seed ${page.seed}`;
      title.textContent = `${page.title} \xB7 budget ${format(numbers.budget)} \xB7 ${page.model} \xB7 ${format(page.prompt_length)} tokens${seed}`;
      for (const { name } of MEASURES) figures[name].textContent = shortNumber(numbers[name]);
      const { sinks, recent, agreed, wasted, merged, generated } = numbers.parts;
      figures.attended.textContent = format(sinks + recent + agreed + wasted + merged + generated);
      figures.metadata.textContent = bytes(numbers.metadata_bytes);
      figures.read.textContent = bytes(numbers.extra_bytes);
      menu.line.textContent = numbers.call;
    }
  };
}
function createSlider(host, name, stops, meaning, changed) {
  const values = [
    ...stops
  ];
  const label = host.appendChild(element("label", "kv-explorer-slider"));
  explain(label, meaning);
  label.append(element("span", "", name));
  const count = label.appendChild(element("output"));
  const input = label.appendChild(element("input"));
  Object.assign(input, {
    type: "range",
    min: 0,
    step: 1
  });
  input.setAttribute("aria-label", name);
  input.setAttribute("aria-description", meaning);
  input.addEventListener("input", () => changed(values[Number(input.value)]));
  function move(by) {
    const value = values[Math.max(0, Math.min(values.length - 1, Number(input.value) + by))];
    if (value !== values[Number(input.value)]) changed(value);
  }
  function set(value) {
    if (!values.includes(value)) {
      values.push(value);
      values.sort((first, second) => first - second);
    }
    input.max = String(values.length - 1);
    input.value = String(values.indexOf(value));
    input.setAttribute("value", input.value);
    input.setAttribute("aria-valuetext", format(value));
    count.textContent = format(value);
  }
  return {
    input,
    set,
    move
  };
}
function figureGroup(list, scopes, numbers, figures) {
  const group2 = list.appendChild(element("div", "kv-explorer-scope"));
  let tag = group2.appendChild(tagOf(group2, ...scopes));
  const rows = numbers.map(([name, label]) => {
    const row2 = group2.appendChild(element("div", "kv-explorer-number"));
    const term = row2.appendChild(element("span", "kv-name"));
    figures[name] = row2.appendChild(element("span", "kv-number"));
    return {
      name,
      label,
      row: row2,
      term
    };
  });
  return (union) => {
    const now = scopes.map((scope) => scopeIn(scope, union.kind));
    tag.replaceWith(tag = tagOf(group2, ...now));
    for (const { name, label, row: row2, term } of rows) {
      term.textContent = nameIn(name, union.kind, label);
      explainNumber(row2, meaningOf(name, union), ...now);
    }
  };
}

// explorer_curve.js
var CURVE_HEIGHT = 208;
var MARGIN = {
  left: 46,
  right: 14,
  top: 10,
  bottom: 34
};
function createCurve2(host, page, { tip, pick }) {
  const svg = host.appendChild(svgElement("svg", {
    role: "img",
    height: CURVE_HEIGHT
  }));
  let known = {
    points: [],
    oracle: [],
    done: false
  };
  let shown2 = null;
  let scale = null;
  function draw2() {
    const width = host.clientWidth;
    if (!shown2 || !width) return;
    const { measure, numbers } = shown2;
    const now = numbers[measure.name], best = numbers.oracle[measure.name];
    const points = curveOf(known.points, measure, numbers.budget, now);
    const oracle = curveOf(known.oracle, measure, numbers.budget, best);
    const drawn = scalesOf(width, page.budgets, [
      ...points,
      ...oracle
    ].map(([, value]) => value), measure);
    scale = drawn;
    svg.setAttribute("width", String(width));
    svg.setAttribute("viewBox", `0 0 ${width} ${CURVE_HEIGHT}`);
    const values = `${page.title} ${shortNumber(now)}, oracle ${shortNumber(best)}`;
    svg.setAttribute("aria-label", `${measure.title}: ${values} at a budget of ${numbers.budget}`);
    svg.replaceChildren(...axes(drawn, width), line(drawn, oracle, "kv-curve-oracle"), line(drawn, points, "kv-curve-own"));
    svg.append(...points.map(([x2, y2]) => circle(drawn.x(x2), drawn.y(y2), 2.5, "kv-curve-dot")));
    const x = drawn.x(numbers.budget), y = drawn.y(best);
    if (now !== null) {
      svg.append(svgElement("line", {
        class: "kv-curve-gap",
        x1: x,
        x2: x,
        y1: drawn.y(now),
        y2: y
      }));
      svg.append(circle(x, drawn.y(now), 6, "kv-curve-now"));
    }
    const turned = {
      width: 8,
      height: 8,
      transform: `rotate(45 ${x} ${y})`
    };
    svg.append(svgElement("rect", {
      class: "kv-curve-best",
      x: x - 4,
      y: y - 4,
      ...turned
    }));
    const top = measure.name === "error" ? MARGIN.top + 16 : CURVE_HEIGHT - MARGIN.bottom - 30;
    const end = {
      x: width - MARGIN.right - 6,
      "text-anchor": "end"
    };
    const methodLabel = {
      class: "kv-curve-label kv-curve-name",
      y: top + 18,
      ...end
    };
    svg.append(svgElement("text", {
      class: "kv-curve-label",
      y: top,
      ...end
    }, `\u25C6 oracle ${shortNumber(best)}`));
    svg.append(svgElement("text", methodLabel, `${page.title} ${shortNumber(now)}`));
  }
  function nearest2(scale2, event) {
    const pointed = scale2.budget(event.clientX - svg.getBoundingClientRect().left);
    const distance = (budget) => Math.abs(Math.log(budget / pointed));
    return page.budgets.reduce((best, budget) => distance(budget) < distance(best) ? budget : best);
  }
  svg.addEventListener("click", (event) => scale && pick(nearest2(scale, event)));
  svg.addEventListener("pointermove", (event) => {
    if (!scale || !shown2) return;
    const budget = nearest2(scale, event), { measure, numbers } = shown2;
    const valueIn = (points) => points.find(([stop]) => stop === budget)?.[measure.place];
    const value = budget === numbers.budget ? numbers[measure.name] : valueIn(known.points);
    const best = budget === numbers.budget ? numbers.oracle[measure.name] : valueIn(known.oracle);
    const rows = [
      [
        "budget",
        format(budget)
      ]
    ];
    if (value !== void 0) rows.push([
      page.title,
      shortNumber(value)
    ], [
      "oracle",
      shortNumber(best ?? null)
    ]);
    else rows.push([
      measure.label,
      known.done ? "click to compute it" : "not computed yet"
    ]);
    tip.show(rows, event);
  });
  svg.addEventListener("pointerleave", () => tip.hide());
  const resized = new ResizeObserver(draw2);
  resized.observe(host);
  return {
    /**
     * @param {Measure} measure
     * @param {ExplorerNumbers} numbers
     */
    paint(measure, numbers) {
      shown2 = {
        measure,
        numbers
      };
      draw2();
    },
    /** @param {Curve} newPoints */
    points(newPoints) {
      known = newPoints;
      draw2();
    },
    destroy: () => resized.disconnect()
  };
}
function curveOf(points, { place }, budget, now) {
  const curve = now === null ? [] : [
    [
      budget,
      now
    ]
  ];
  for (const point of points) {
    const value = point[place];
    if (value !== null && point[0] !== budget) curve.push([
      point[0],
      value
    ]);
  }
  return curve.sort((first, second) => first[0] - second[0]);
}
function line(scale, points, name) {
  const places = points.map(([x, y]) => `${scale.x(x)},${scale.y(y)}`);
  return svgElement("polyline", {
    class: name,
    points: places.join(" ")
  });
}
function circle(cx, cy, r, name) {
  return svgElement("circle", {
    class: name,
    cx,
    cy,
    r
  });
}
function scalesOf(width, budgets, values, measure) {
  const end = budgets[budgets.length - 1];
  const first = Math.log(budgets[0]), last = Math.max(Math.log(end), first + 1e-9);
  const error = measure.name === "error";
  const least = error ? 0 : Math.min(...values, 1), most = error ? Math.max(...values, 1e-6) : 1;
  const step = roundStep(Math.max(most - least, 1e-3) / 4);
  const low = Math.max(0, Math.floor(least / step) * step), high = error ? Math.ceil(most / step) * step : 1;
  const inner = width - MARGIN.left - MARGIN.right, tall = CURVE_HEIGHT - MARGIN.top - MARGIN.bottom;
  return {
    low,
    high,
    step,
    first: budgets[0],
    last: end,
    /** @param {number} budget */
    x: (budget) => MARGIN.left + inner * (Math.log(budget) - first) / (last - first),
    /** @param {number} value */
    y: (value) => MARGIN.top + tall * (high - value) / (high - low || 1),
    /** @param {number} x */
    budget: (x) => Math.exp(first + (last - first) * (x - MARGIN.left) / inner)
  };
}
function roundStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * ([
    1,
    2,
    5
  ].find((factor) => factor * power >= rough * 0.999) ?? 10);
}
function axes(scale, width) {
  const marks = [], bottom = CURVE_HEIGHT - MARGIN.bottom;
  const decimals2 = Math.max(0, -Math.floor(Math.log10(scale.step) + 1e-9));
  for (let value = scale.low; value <= scale.high + scale.step / 1e3; value += scale.step) {
    const y = scale.y(value);
    marks.push(svgElement("line", {
      class: "kv-curve-grid",
      x1: MARGIN.left,
      x2: width - MARGIN.right,
      y1: y,
      y2: y
    }));
    marks.push(svgElement("text", {
      class: "kv-curve-tick",
      x: MARGIN.left - 7,
      y: y + 4,
      "text-anchor": "end"
    }, value.toFixed(decimals2)));
  }
  const octaves = Math.log2(scale.last / scale.first), interval = octaves * 46 > width - 60 ? 2 : 1;
  for (let power = Math.ceil(Math.log2(scale.first)); 2 ** power <= scale.last; power += interval) {
    const x = scale.x(2 ** power);
    marks.push(svgElement("line", {
      class: "kv-curve-axis",
      x1: x,
      x2: x,
      y1: bottom,
      y2: bottom + 4
    }));
    marks.push(svgElement("text", {
      class: "kv-curve-tick",
      x,
      y: bottom + 16,
      "text-anchor": "middle"
    }, format(2 ** power)));
  }
  marks.push(svgElement("line", {
    class: "kv-curve-axis",
    x1: MARGIN.left,
    x2: width - MARGIN.right,
    y1: bottom,
    y2: bottom
  }));
  marks.push(svgElement("text", {
    class: "kv-curve-tick",
    x: width - MARGIN.right,
    y: bottom + 30,
    "text-anchor": "end"
  }, "budget, tokens"));
  return marks;
}

// explorer_ledger.js
var PARTS = [
  "sinks",
  "recent",
  "agreed",
  "wasted",
  "merged",
  "generated",
  "missed"
];
var PART_LABELS = {
  merged: "centroids",
  generated: "fed"
};
function createLedger(host) {
  const bar = host.appendChild(element("div", "kv-explorer-bar"));
  bar.setAttribute("role", "img");
  const list = explainTogether(host.appendChild(element("p", "kv-legend")), "where the tokens went");
  return {
    /**
     * @param {ExplorerNumbers} numbers
     * @param {{ kind: Union, heads: number }} union
     */
    paint({ parts }, union) {
      const shown2 = PARTS.filter((name) => parts[name] > 0);
      const attended = shown2.reduce((sum, name) => sum + (name === "missed" ? 0 : parts[name]), 0);
      bar.replaceChildren(...shown2.map((name) => {
        const segment = element("span", `kv-explorer-part kv-explorer-${name}`);
        segment.style.flexGrow = String(parts[name]);
        explain(segment, `${meaningOf(name, union)}: ${format(parts[name])}`);
        return segment;
      }));
      bar.setAttribute("aria-label", shown2.map((name) => `${PART_LABELS[name] ?? name} ${parts[name]}`).join(", "));
      list.replaceChildren(...shown2.map((name) => {
        const entry = element("span", "kv-entry");
        explain(entry, meaningOf(name, union));
        const share = name === "missed" ? "" : ` (${(100 * parts[name] / attended).toFixed(1)} %)`;
        const members = name === "merged" ? ` for ${format(parts.merged_tokens)} tokens` : "";
        entry.append(element("i", `kv-explorer-part kv-explorer-${name}`), element("span", "", PART_LABELS[name] ?? name));
        entry.append(element("b", "", format(parts[name])), element("span", "", `${members}${share}`.trim()));
        return entry;
      }));
    }
  };
}

// explorer_questions.js
var CURVE_WAIT_MS = 300;
function createQuestions(host, { show, grown }) {
  let underWay = null;
  let queued = null;
  let timer;
  function request(place) {
    underWay = "show";
    host.send({
      kind: "show",
      place
    });
  }
  function grow() {
    if (underWay || host.get("curve").done) return;
    underWay = "curve";
    host.send({
      kind: "curve"
    });
  }
  function answered(wait) {
    const place = queued;
    underWay = queued = null;
    clearTimeout(timer);
    if (place) request(place);
    else timer = setTimeout(grow, wait);
  }
  function shown2() {
    if (queued === null) show();
    grown(host.get("curve"));
    answered(CURVE_WAIT_MS);
  }
  host.on("numbers", shown2);
  host.on("curve", () => {
    grown(host.get("curve"));
    if (underWay === "curve") answered(0);
  });
  shown2();
  return {
    /** @param {Place} place */
    ask(place) {
      if (underWay) queued = place;
      else request(place);
    },
    /** Wait no longer for what is under way. What is queued is sent: a kernel that is only slow answers it later. */
    forget() {
      const place = queued;
      if (place) queueMicrotask(() => host.send({
        kind: "show",
        place
      }));
      underWay = queued = null;
    },
    close: () => clearTimeout(timer)
  };
}

// explorer.js
var STOPS = {
  ArrowLeft: -1,
  ArrowDown: -1,
  ArrowRight: 1,
  ArrowUp: 1,
  Home: -Infinity,
  End: Infinity
};
function createExplorer(root2, host) {
  const page = host.get("page");
  let place = null;
  let numbers;
  let slice = null;
  let frame2 = null;
  root2.classList.add("kvviz", "kv-explorer");
  keepKeys(root2);
  const controls = createExplorerControls(root2, page, {
    change,
    measured: paintCurve,
    save
  });
  const wait = createWait(root2, () => {
    questions.forget();
    place = placeOf(numbers);
    controls.set(place);
    heads.paint(place.layer, place.head, place.union);
  });
  controls.grid.before(wait.words);
  const tip = createTip(root2);
  const above = element("div");
  controls.grid.before(above);
  const heads = createHeadPanel(above, page, {
    tip,
    pick: (layer, head, union) => change({
      layer,
      head,
      union
    }),
    settings: controls.settings
  });
  const right = controls.grid.appendChild(element("div", "kv-explorer-pictures"));
  const [ledgerTitle, textTitle] = [
    "where the tokens went",
    "which tokens they are"
  ].map((title) => `${title}, at step ${page.steps - 1}`);
  const curvePanel = titledPanel(right, "", "kv-explorer-curve", MEANING3.curve);
  curvePanel.heading.tabIndex = 0;
  const { heading: ledgerHeading, panel: ledgerPanel } = titledPanel(right, `${ledgerTitle} `, "kv-explorer-ledger", MEANING3.ledger);
  const ledgerTag = ledgerHeading.appendChild(tagOf(ledgerPanel, "head", "last"));
  const { panel: textPanel, heading: textHeading } = titledPanel(right, textTitle, "kv-explorer-text", MEANING3.text);
  root2.append(...page.notes.map((note) => element("p", "kv-note", note)));
  const curve = createCurve2(curvePanel.panel, page, {
    tip,
    pick: (budget) => change({
      budget
    })
  });
  const ledger = createLedger(ledgerPanel);
  const about2 = (position, event) => {
    if (position === null || !slice || !frame2) tip.hide();
    else tip.show(about(page, slice, frame2, page.steps - 1, position, 0), event);
  };
  const mapHost = element("div", "kv-explorer-map");
  explain(mapHost, MEANING3.map);
  textPanel.before(mapHost);
  const map = createMatrix(mapHost, {
    label: "map of the attended tokens over all positions",
    palette: () => mapColours(root2),
    onHover: (cell2, event) => cell2 && slice ? about2(positionAt(slice, cell2), event) : tip.hide(),
    onPick: (row2, column) => slice && strip.focus(positionAt(slice, [
      row2,
      column
    ]))
  });
  const legend3 = createHeadsLegend(marksOf(page.merges), `hue: ${page.group_name} (${HUES}, then they repeat) \xB7 strength: attention`, MEANING3.tint);
  textPanel.after(legend3.host);
  const strip = createStrip(textPanel, {
    tokens: page.tokens,
    span: page.span,
    label: "text with the attended tokens",
    onHover: about2,
    onPick(position) {
      picked = picked === position ? -1 : position;
      strip.light(picked < 0 ? [] : [
        picked
      ]);
    }
  });
  let picked = -1;
  const text = {
    span: page.span,
    prompt_length: page.tokens.length
  };
  const follow2 = createFollowText(controls.settings, textHeading, text, {
    strip: () => strip,
    picked: () => picked
  });
  createFind(textHeading, root2, {
    tokens: page.tokens,
    strips: () => [
      strip
    ]
  });
  const unwatch = watchTheme(root2, () => {
    root2.style.setProperty("--kv-method", root2.dataset.theme === "dark" ? page.colours.dark : page.colours.light);
    map.recolour();
  });
  function change(changes) {
    if (!place) return;
    place = {
      ...place,
      ...changes,
      settings: {
        ...place.settings,
        ...changes.settings
      }
    };
    controls.set(place);
    heads.paint(place.layer, place.head, place.union);
    wait.begin(host);
    root2.dataset.busy = "";
    questions.ask(place);
  }
  function paintCurve() {
    if (!slice) return;
    const { measure } = controls, union = unionOf(slice);
    const scope = scopeIn(SCOPE_OF[measure.name], union.kind);
    const title = nameIn(measure.name, union.kind, measure.title);
    const about3 = scope === "layer" ? MEANING3.curve : meaningOf("curve", union);
    curvePanel.heading.replaceChildren(`${title} `, tagOf(curvePanel.panel, scope, "steps"));
    explainNumber(curvePanel.heading, `${meaningOf(measure.name, union)}. ${about3}`, scope, "steps");
    curve.paint({
      ...measure,
      title
    }, numbers);
  }
  function describe2(slice2) {
    const union = unionOf(slice2), scope = scopeIn("head", union.kind);
    ledgerTag.textContent = scopeText(scope, "last");
    ledgerPanel.dataset.scope = `${scope} last`;
    explain(ledgerHeading, meaningOf("ledger", union));
    explain(textHeading, meaningOf("text", union));
    legend3.say(slice2);
  }
  function save(format2) {
    const { budget, layer, head, union } = numbers;
    const heads2 = union === "none" ? `head-${head}` : "union";
    const name = `budget-explorer-${page.method}-${budget}-layer-${layer}-${heads2}`;
    return saveAs(format2, controls.menu, root2, host, name);
  }
  root2.addEventListener("keydown", (event) => {
    const target = targetOf(event), tag = target.tagName;
    const vertical = event.key === "ArrowUp" || event.key === "ArrowDown";
    if (hasModifier(event) || tag === "SELECT" || !(event.key in STOPS)) return;
    if (vertical && tag !== "INPUT") return;
    controls.move(target, STOPS[event.key]);
    event.preventDefault();
  });
  function show() {
    const answer = host.get("numbers");
    wait.end();
    controls.refuse(answer.refusal);
    if (answer.refusal) return;
    const opening = slice === null;
    numbers = answer;
    place = placeOf(answer);
    slice = /** @type {ExplorerSlice} */
    unpack(host.bytes("slice"));
    frame2 = frameOf(slice, 0);
    const union = unionOf(slice);
    strip.paint(frame2.positions, frame2.looks, frame2.marks);
    map.paint(slice.map_looks, slice.shapes.map_looks);
    ledger.paint(answer, union);
    controls.paint(answer, union);
    heads.paint(answer.layer, answer.head, answer.union);
    describe2(slice);
    paintCurve();
    follow2.show([
      frame2
    ], opening);
    tip.hide();
    if (opening) requestAnimationFrame(() => strip.focus(follow2.opening(), false));
  }
  const questions = createQuestions(host, {
    show,
    grown: curve.points
  });
  return () => {
    questions.close();
    wait.close();
    unwatch();
    map.destroy();
    curve.destroy();
  };
}
function placeOf({ budget, layer, head, union, settings }) {
  return {
    budget,
    layer,
    head,
    union,
    settings: {
      ...settings
    }
  };
}

// follow.js
function follow(inspector, other, { skipped, group: group2 }) {
  const { layers, steps: steps2, evidence } = inspector.get("page");
  const before = {};
  const moved = () => {
    const changes = {};
    const picked = {
      step: other.get("step") + skipped,
      layer: other.get("layer"),
      head: Math.floor(other.get("head") / group2),
      position: other.get("token")
    };
    for (const [name, value] of Object.entries(picked)) {
      if (before[name] !== value && known(name, value)) changes[name] = value;
      before[name] = value;
    }
    if (Object.keys(changes).length > 0) inspector.take(changes);
  };
  function known(name, value) {
    if (name === "step") return value < steps2;
    if (name === "layer") return layers.includes(value);
    return name === "head" || evidence.some((token) => token.position === value);
  }
  other.told(moved);
  moved();
}

// inspector_words.js
var MEANING4 = {
  count: "C: the number of clusters; ClusterKV's default is one per 80 tokens of the prompt",
  metric: "metric: how k-means finds the nearest centroid of a key: cosine, Euclidean distance (l2) or inner product (ip)",
  seed: "seed: draws the keys from which k-means starts, and the layout of t-SNE",
  layer: "layer: the captured layer that is shown",
  head: "KV head: the head of the layer that is shown",
  view: "groups: how the keys are grouped, by the method that does so",
  part: "part: PQCache cuts each key into parts and codes each part by its nearest centroid; this is the part shown",
  projection: "map: how the keys are placed in two dimensions",
  map: "the keys in two dimensions; what this map keeps and where it misleads is said below it; + and \u2212 zoom, 0 shows all, or Ctrl and the wheel; drag to move. The wheel alone scrolls the page.",
  text: "the prompt as the model reads it, tinted by group; dotted tokens are in no group; text that is found is outlined on the map too",
  ranking: "one bar per group, best score first, counted from the lowest one: a softmax depends on differences only; the budget also pays for sinks, recent and generated tokens; a bar is picked by a click, or by \u2190, \u2192 and Enter",
  size: "size: number of tokens in the group",
  spread: "spread: mean cosine of the group's keys to its centroid; 1 if all point in the same direction",
  recalled: "recalled by: number of steps that attended to at least one token of the group",
  central: "most central: the token whose key has the largest cosine to the centroid",
  mostly: "the most frequent texts of the group's tokens",
  nearest: "the groups whose centroids have the largest cosine to this group's centroid",
  steps: "one bar per step: the share of the group's tokens that the step attended to; the step shown is framed",
  rank: "rank: place among the groups by score at this step"
};
var VIEWS = {
  clusters: {
    name: "clusters (ClusterKV)",
    one: "cluster",
    many: "clusters",
    ring: "centroid: the mean of a cluster's keys",
    score: "q\xB7centroid",
    none: "a sink or recent token: always attended, in no cluster"
  },
  pages: {
    name: "pages (Quest)",
    one: "page",
    many: "pages",
    ring: "the mean of a page's keys",
    score: "upper bound of q\xB7k in the page",
    none: "after the last full page: always attended, in no page"
  },
  codes: {
    name: "codes (PQCache)",
    one: "code",
    many: "codes",
    ring: "centroid: stands for this part of all keys with its code",
    score: "q\xB7centroid in this part",
    none: "a sink: always attended, without codes"
  },
  lists: {
    name: "lists (CTkvr)",
    one: "list",
    many: "lists",
    ring: "query centroid: a query of the prompt, which lists the keys that it attends to most",
    score: "cosine of the query with the query centroid",
    none: "in no list: found only as a sink or recent token"
  }
};
var TSNE = 2;
var PROJECTIONS = {
  pca: {
    name: "PCA",
    about: "PCA keeps the two directions in which the keys differ most. What the other directions hold is not on the map: dots that are near here can be far apart, and near the star does not mean a high score."
  },
  query: {
    name: "along the query",
    about: "From left to right q\xB7k grows, for the mean query of the step: this order is exact. From top to bottom is the direction in which the keys differ most otherwise. Groups that overlap here can differ in all other directions."
  },
  tsne: {
    name: "t-SNE",
    about: "t-SNE keeps neighbours: keys that are near here have similar directions. Distances between groups, their sizes and the axes mean nothing. A ring is at the token nearest to its centroid, and the star only among its nearest keys."
  }
};
function countOf(count, view) {
  return `${format(count)} ${count === 1 ? VIEWS[view].one : VIEWS[view].many}`;
}
function rankingWords(ranks, cut2, about2, groups) {
  const { view, budget, parts, probes, title } = about2, { one, many } = VIEWS[view];
  if (groups === 0) return `The prompt is too short for ${many}.`;
  if (cut2 === void 0) return "The trace holds no query of this step: capture the prompt with the generated text.";
  const filled = ranks.filter(({ kind }) => kind !== "none").length, total2 = countOf(ranks.length, view);
  const tokens = `${format(budget)} tokens`;
  if (view === "codes") {
    return `${title} ranks single tokens by the sum of their codes' scores over ${parts} ${parts === 1 ? "part" : "parts"}, so that codes have no cut: ${format(filled)} of ${total2} have tokens that are attended to.`;
  }
  if (cut2 >= groups) return `The budget of ${tokens} covers all tokens: all ${many} are recalled, without a cut.`;
  const unranked = groups - ranks.length;
  if (view === "lists" && ranks.length === 0) {
    return "All lists of the prompt were replaced by the queries of earlier steps.";
  }
  if (view === "lists") {
    const gone = unranked ? ` ${format(unranked)} were replaced by the queries of earlier steps.` : "";
    return `The step probes the ${format(probes)} nearest lists, ${format(cut2)} of them of the prompt (left of the line); of their tokens, ranked again by exact attention, it attends to as many as the budget of ${tokens} allows.${gone}`;
  }
  const trimmed = ranks.find(({ kind }) => kind === "part");
  const last = trimmed ? `, ${one} #${trimmed.group} trimmed to ${format(trimmed.recalled)} of ${format(trimmed.size)} tokens` : "";
  const window2 = unranked ? ` ${countOf(unranked, view)} with sinks or recent tokens ${unranked === 1 ? "is" : "are"} not ranked.` : "";
  return `${format(filled - (trimmed ? 1 : 0))} of ${total2} recalled whole${last}: the line is where the budget of ${tokens} ends.${window2}`;
}
function frequent(tokens, members, most = 6) {
  const counts = /* @__PURE__ */ new Map();
  const positions = Array.from(members).sort((a, b) => a - b);
  for (const position of positions) counts.set(tokens[position], (counts.get(tokens[position]) ?? 0) + 1);
  const ranked = [
    ...counts
  ].sort(([, a], [, b]) => b - a).slice(0, most);
  return ranked.map(([text, count]) => `${quoted(text)}${count > 1 ? ` \xD7${format(count)}` : ""}`).join("  ");
}
function steps(taken) {
  return taken.filter((tokens) => tokens > 0).length;
}

// inspector_controls.js
var ALL2 = [
  "clusters",
  "pages",
  "codes",
  "lists"
];
function createInspectorControls(root2, page, { go, change, save }) {
  const head = root2.appendChild(element("div", "kv-head"));
  const title = head.appendChild(element("h2", "kv-title"));
  const bar = root2.appendChild(element("div", "kv-controls"));
  const stepper = createStepSlider(bar, page.steps, go);
  let counts = page.counts;
  const label = bar.appendChild(element("label", "kv-step kv-count"));
  label.append(element("span", "", "clusters"));
  const slider = label.appendChild(element("input"));
  Object.assign(slider, {
    type: "range",
    min: 0,
    max: counts.length - 1,
    step: 1
  });
  slider.setAttribute("aria-label", "number of clusters C");
  slider.setAttribute("aria-description", MEANING4.count);
  const count = label.appendChild(element("output"));
  slider.addEventListener("input", () => setCount(Number(slider.value)));
  const settings = createMenu(head, root2, "Settings", "groups, layer, head, map, metric and seed"), { sheet } = settings;
  settings.menu.classList.add("kv-settings");
  const fields = [];
  let partPicker;
  if (page.views.length > 1) {
    choose(sheet, "groups", page.views.map((view) => [
      view,
      VIEWS[view].name
    ]), MEANING4.view, ALL2, ({ view }) => view, (view) => ({
      view: (
        /** @type {ViewName} */
        view
      ),
      part: 0
    }));
  }
  if (!page.fixed) {
    choose(sheet, "layer", layerOptions(page), MEANING4.layer, ALL2, ({ layer }) => layer, (layer) => ({
      layer: Number(layer)
    }));
    choose(sheet, "KV head", page.heads, MEANING4.head, ALL2, (shown2) => shown2.head, (row2) => ({
      head: Number(row2)
    }));
  }
  if (page.projections.length > 1) {
    const names = page.projections.map((name) => (
      /** @type {[string, string]} */
      [
        name,
        PROJECTIONS[name].name
      ]
    ));
    choose(sheet, "map", names, MEANING4.projection, ALL2, ({ projection }) => projection, (projection) => ({
      projection: (
        /** @type {ProjectionName} */
        projection
      )
    }));
  }
  if (!page.fixed) {
    choose(sheet, "metric", page.metrics, MEANING4.metric, [
      "clusters"
    ], ({ metric }) => metric, (metric) => ({
      metric
    }));
    addSeed();
    for (const view of page.views) addFields(view);
  }
  if (page.views.includes("codes")) {
    partPicker = choose(bar, "part", [], MEANING4.part, [
      "codes"
    ], ({ part }) => part, (part) => ({
      part: Number(part)
    }));
  }
  function choose(host, name, values, meaning, shows, value, read) {
    const select = picker(host, name, values, meaning, (chosen) => change(read(chosen)));
    fields.push({
      control: select,
      shows,
      value
    });
    return select;
  }
  function addSeed() {
    const seedLabel = sheet.appendChild(element("label", "kv-picker"));
    explain(seedLabel, MEANING4.seed);
    seedLabel.append(element("span", "", "seed"));
    const seed = seedLabel.appendChild(element("input", "kv-seed"));
    Object.assign(seed, {
      type: "number",
      min: 0,
      max: 2 ** 31 - 1,
      step: 1
    });
    seed.setAttribute("aria-label", "seed");
    seed.setAttribute("aria-description", MEANING4.seed);
    const setSeed = () => {
      if (seed.checkValidity() && seed.value !== "") change({
        seed: Number(seed.value)
      });
    };
    seed.addEventListener("change", setSeed);
    seed.addEventListener("keydown", (event) => event.key === "Enter" && setSeed());
    fields.push({
      control: seed,
      shows: ALL2,
      value: (shown2) => shown2.seed
    });
  }
  function addFields(view) {
    page.sliders[view].forEach(({ name, label: text, values, meaning }, index) => {
      const host = index === 0 && view !== "codes" ? bar : sheet;
      choose(host, text, values, `${name}: ${meaning}`, [
        view
      ], ({ fields: shown2 }) => shown2[name], (value) => ({
        fields: {
          [name]: Number(value)
        }
      }));
    });
  }
  function setCount(index) {
    const valid = Math.max(0, Math.min(counts.length - 1, index));
    showCount(valid);
    change({
      n_clusters: counts[valid]
    });
  }
  function showCount(index) {
    slider.value = String(index);
    slider.setAttribute("value", slider.value);
    slider.setAttribute("aria-valuetext", `${counts[index]} clusters`);
    const isDefault = counts[index] === page.default;
    count.textContent = format(counts[index]);
    explain(label, isDefault ? `${MEANING4.count} (as here)` : `${MEANING4.count}, here ${page.default}`);
    count.style.minWidth = `${format(counts[counts.length - 1]).length}ch`;
  }
  const menu = createSaveMenu(head, root2, save);
  return {
    menu,
    /** Whether the keys of a focused control change C. */
    ownsKeys: (target) => target === slider,
    /** @param {number} by */
    count: (by, absolute = false) => setCount(absolute ? by : Number(slider.value) + by),
    /** @param {number[]} values */
    counts(values) {
      counts = values;
      slider.max = String(counts.length - 1);
    },
    /**
     * @param {number} step
     * @param {string} about
     */
    step(step, about2) {
      stepper.show(step, `, fed ${quoted(page.step_tokens[step] ?? "")}${about2}`);
    },
    /**
     * `waiting`: another number of clusters is on its way, and the slider stays where the user put it.
     *
     * @param {Settings} shown
     * @param {About} about
     * @param {number} groups
     * @param {{ token: number, step: number }} picked
     * @param {boolean} waiting
     */
    paint(shown2, about2, groups, { token, step }, waiting) {
      const { n_clusters: clusters, metric, seed, layer, head: row2, view, part, projection } = shown2;
      const of = view === "codes" ? ` of part ${part} (0 to ${about2.parts - 1})` : "";
      const size2 = `${format(page.tokens.length)} tokens in ${countOf(groups, view)}${of}`;
      const kmeans = view === "clusters" ? [
        metric,
        `seed ${seed}`
      ] : view === "codes" ? [
        `seed ${seed}`
      ] : [];
      const by = page.steps_by || `${about2.method} \xB7 budget ${format(about2.budget)}`;
      const parts = [
        page.model,
        size2,
        ...kmeans,
        `layer ${layer}, KV head ${row2}`,
        `recalled by ${by}`
      ];
      title.textContent = parts.join(" \xB7 ");
      label.hidden = view !== "clusters";
      if (!waiting) showCount(counts.indexOf(clusters));
      if (partPicker && partPicker.options.length !== about2.parts) {
        partPicker.replaceChildren(...Array.from({
          length: about2.parts
        }, (_, at) => new Option(String(at))));
      }
      for (const { control, shows, value } of fields) {
        const holder = control.closest("label");
        if (holder) holder.hidden = !shows.includes(view);
        if (!shows.includes(view) || control.type === "number" && control === document.activeElement) continue;
        control.value = String(value(shown2));
        control.setAttribute("value", control.value);
      }
      markSelected(...fields.map(({ control }) => control).filter((control) => control instanceof HTMLSelectElement));
      const more = [
        step === page.first_step ? "" : `, step=${step}`,
        view === page.first_view ? "" : `, view="${view}"`,
        view === "codes" && part ? `, part=${part}` : "",
        view === "clusters" ? "" : `, fields=${JSON.stringify(shown2.fields).replace(/([:,])/g, "$1 ")}`,
        projection === "pca" ? "" : `, projection="${projection}"`
      ].join("");
      const line2 = `layer=${layer}, head=${row2}, n_clusters=${clusters}, metric="${metric}", seed=${seed}, token=${token}`;
      menu.line.textContent = `${page.call}${line2}${more}${page.call_end}`;
    }
  };
}

// inspector_groups.js
function aboutOf(clusters) {
  return JSON.parse(new TextDecoder().decode(clusters.about));
}
function membersOf(clusters, group2) {
  return group2 < 0 ? new Int32Array() : clusters.order.subarray(clusters.offsets[group2], clusters.offsets[group2 + 1]);
}
function pickedOf(clusters, group2, token) {
  if (token < 0) return -1;
  return group2 < clusters.sizes.length && membersOf(clusters, group2).includes(token) ? group2 : clusters.labels[token];
}
function takenOf(clusters, cluster) {
  const [count, width] = clusters.shapes.taken;
  return Array.from({
    length: count
  }, (_, step) => clusters.taken[step * width + cluster]);
}
var projectionOf = (places) => places.map[0];
function starOf(places, step, known) {
  const at = known ? step : 0;
  return 2 * at < places.stars.length ? [
    places.stars[2 * at],
    places.stars[2 * at + 1]
  ] : null;
}
function ringsOf(places, clusters) {
  const { points, origin, axes: axes2 } = places, count = clusters.sizes.length, rings = new Float32Array(2 * count);
  const width = clusters.shapes.centroids[1], linear = projectionOf(places) !== TSNE;
  for (let group2 = 0; group2 < count; group2++) {
    if (linear) {
      let [x, y] = origin;
      for (let channel = 0; channel < width; channel++) {
        const value = clusters.centroids[group2 * width + channel];
        x += value * axes2[2 * channel];
        y += value * axes2[2 * channel + 1];
      }
      rings.set([
        x,
        y
      ], 2 * group2);
    } else {
      const token = membersOf(clusters, group2).find((member) => !Number.isNaN(points[2 * member]));
      rings.set(token === void 0 ? [
        NaN,
        NaN
      ] : [
        points[2 * token],
        points[2 * token + 1]
      ], 2 * group2);
    }
  }
  return rings;
}
function ranksOf(clusters, step) {
  const [count, width] = clusters.shapes.scores;
  if (step >= count) return [];
  const at = (group2) => step * width + group2;
  const ranked = [
    ...clusters.sizes.keys()
  ].filter((group2) => clusters.sizes[group2] > 0 && !Number.isNaN(clusters.scores[at(group2)]));
  ranked.sort((a, b) => clusters.scores[at(b)] - clusters.scores[at(a)] || clusters.recalled[at(b)] - clusters.recalled[at(a)] || a - b);
  const cut2 = clusters.cut[step], trims = clusters.told.view === "clusters";
  return ranked.map((group2, rank) => {
    const recalled = clusters.recalled[at(group2)], size2 = clusters.sizes[group2], part = recalled < size2;
    const before = cut2 < 0 ? recalled > 0 : rank < cut2;
    const kind = !before ? "none" : part && (trims || cut2 < 0) ? "part" : "whole";
    return {
      group: group2,
      score: clusters.scores[at(group2)],
      recalled,
      size: size2,
      kind
    };
  });
}

// inspector_details.js
function createDetails(host, page, { goTo, onList }) {
  const heading = host.appendChild(element("h3")), title = heading.appendChild(element("span"));
  heading.append(" ", tagOf(host, "head"));
  const body = host.appendChild(element("div", "kv-panel kv-about"));
  function link(parent, cluster, text, meaning, clusters) {
    const button2 = parent.appendChild(element("button", "kv-link"));
    button2.type = "button";
    explain(button2, meaning).setAttribute("aria-description", meaning);
    const swatch = button2.appendChild(element("span", "kv-swatch"));
    swatch.style.background = colourOf(clusters.hues[cluster]);
    button2.append(element("span", "kv-id", `#${cluster}`), element("span", "", text));
    button2.addEventListener("click", () => goTo(clusters.central[cluster], cluster));
    return button2;
  }
  function details(clusters, cluster, { step, rank, ranked }) {
    const members = membersOf(clusters, cluster), { one, many } = VIEWS[clusters.told.view];
    const taken = takenOf(clusters, cluster), central = clusters.central[cluster];
    const told = explainTogether(element("div"), `the picked ${one}`);
    const facts = told.appendChild(element("div", "kv-facts"));
    const swatch = facts.appendChild(element("span", "kv-swatch"));
    swatch.style.background = colourOf(clusters.hues[cluster]);
    facts.append(element("span", "kv-id", `#${cluster}`));
    const place = rank < 0 ? "not ranked" : `${format(rank + 1)} of ${format(ranked)}`;
    fact(facts, `rank at step ${format(step)}`, place, MEANING4.rank, "step");
    fact(facts, "size", format(members.length), MEANING4.size);
    fact(facts, "spread", clusters.spread[cluster].toFixed(2), MEANING4.spread);
    const recalled = taken.length ? `${steps(taken)} of ${format(taken.length)} steps` : "no recorded step";
    fact(facts, "recalled by", recalled, MEANING4.recalled, "steps");
    fact(facts, "most central", `${quoted(page.tokens[central])} at ${format(central)}`, MEANING4.central);
    const list = facts.appendChild(element("button", "", `All ${many}`));
    list.type = "button";
    explain(list, `clears the choice and lists all ${many} (Escape)`);
    list.addEventListener("click", onList);
    const rows = told.appendChild(element("dl", "kv-rows"));
    row(rows, "mostly", MEANING4.mostly).append(frequent(page.tokens, members));
    const nearest2 = row(rows, "nearest", MEANING4.nearest), width = clusters.shapes.nearest[1];
    for (let rank2 = 0; rank2 < width; rank2++) {
      const neighbour = clusters.nearest[cluster * width + rank2];
      if (neighbour < 0) continue;
      const cosine = clusters.nearest_cosine[cluster * width + rank2].toFixed(3);
      const meaning = `go to ${one} ${neighbour}: ${clusters.sizes[neighbour]} tokens, cosine of centroids ${cosine}`;
      link(nearest2, neighbour, cosine, meaning, clusters);
    }
    if (!nearest2.children.length) nearest2.append(`there is no other ${one}`);
    row(rows, "steps", MEANING4.steps).append(bars(clusters, cluster, taken, step));
    return [
      told
    ];
  }
  function bars(clusters, cluster, taken, now) {
    if (!taken.length) {
      const advice = "pick a recorded layer, or open the inspector without a recording";
      return element("span", "kv-empty", `Layer ${clusters.layer} was not recorded: ${advice}.`);
    }
    const chart = element("div", "kv-steps");
    chart.setAttribute("role", "img");
    chart.setAttribute("aria-label", `steps that attended to this ${VIEWS[clusters.told.view].one}: ${steps(taken)} of ${taken.length}`);
    taken.forEach((count, step) => {
      const bar = chart.appendChild(element("span", "kv-stepbar"));
      bar.toggleAttribute("data-now", step === now);
      const fed = `step ${step}, fed ${quoted(page.step_tokens[step] ?? "")} at position ${format(page.tokens.length + step)}`;
      explain(bar, `${fed}: attended to ${format(count)} of ${format(clusters.sizes[cluster])} tokens`);
      bar.dataset.said = format(count);
      const fill2 = bar.appendChild(element("span"));
      fill2.style.height = `${100 * count / clusters.sizes[cluster]}%`;
      fill2.style.background = colourOf(clusters.hues[cluster]);
    });
    return chart;
  }
  function all(clusters) {
    const list = element("ol", "kv-all"), count = clusters.sizes.length;
    const recalled = Array.from({
      length: count
    }, (_, cluster) => steps(takenOf(clusters, cluster)));
    const order = [
      ...recalled.keys()
    ].filter((cluster) => clusters.sizes[cluster] > 0);
    order.sort((a, b) => recalled[b] - recalled[a] || clusters.sizes[b] - clusters.sizes[a]);
    for (const cluster of order) {
      const text = `${format(clusters.sizes[cluster])} tokens \xB7 ${recalled[cluster]} steps`;
      const item = list.appendChild(element("li"));
      link(item, cluster, text, `${MEANING4.size}; ${MEANING4.recalled}`, clusters);
      item.append(element("span", "kv-first", frequent(page.tokens, membersOf(clusters, cluster), 4)));
    }
    return [
      list
    ];
  }
  return {
    /**
     * @param {Clustering} clusters
     * @param {number} token
     * @param {number} cluster
     * @param {Shown} shown
     */
    paint(clusters, token, cluster, shown2) {
      const { one, many, none } = VIEWS[clusters.told.view], empty = clusters.sizes.filter((size2) => !size2).length;
      const more = empty ? ` (${format(empty)} more are empty)` : "";
      title.textContent = cluster >= 0 ? `the picked ${one}` : `all ${format(clusters.sizes.length - empty)} ${many}, most often recalled first${more}`;
      body.replaceChildren(...cluster >= 0 ? details(clusters, cluster, shown2) : all(clusters));
      if (token < 0 || cluster >= 0) return;
      body.prepend(element("p", "kv-empty", `${quoted(page.tokens[token])} at ${format(token)} is ${none}.`));
    }
  };
}
function fact(parent, name, text, meaning, ...when) {
  const figure2 = parent.appendChild(explainNumber(element("span", "kv-figure"), meaning, "head", ...when));
  figure2.append(element("span", "kv-name", name), element("span", "kv-number", text));
}
function row(rows, name, meaning) {
  rows.append(explain(element("dt", "kv-name", name), meaning));
  return rows.appendChild(element("dd"));
}

// inspector_legend.js
function drawMapLegend(host, view, stepped) {
  const { one, ring } = VIEWS[view], scaled = "scaled to the keys' mean length";
  const star2 = stepped ? "query of the step" : "last query";
  const entries = [
    [
      "\u25CF token",
      `a key; its hue is that of its ${one}, as in the text`
    ],
    [
      "\u25CB centroid",
      ring
    ],
    [
      `\u2605 ${star2}`,
      `the mean over the KV head's query heads${stepped ? "" : " at the last position"}, ${scaled}`
    ]
  ];
  host.replaceChildren(...entries.map(([text, meaning]) => explain(element("span", "kv-entry", text), meaning)));
  const samples = [
    [
      "kv-attended kv-agreed",
      "--kv-h:250;--kv-a:1",
      `in the picked ${one}`
    ],
    [
      "kv-attended kv-kept",
      "--kv-c:0;--kv-a:0.4",
      `in no ${one}`
    ]
  ];
  for (const [mark, style, text] of samples) {
    const entry = host.appendChild(element("span", "kv-entry"));
    explain(entry, text.startsWith("in no") ? VIEWS[view].none : "tinted strongly and underlined in the text");
    entry.appendChild(element("span", mark, "text")).style.cssText = style;
    entry.append(element("span", "", text));
  }
}

// inspector_marks.js
function clear(canvas) {
  const context = contextOf(canvas);
  context.globalAlpha = 1;
  context.clearRect(0, 0, canvas.width, canvas.height);
  return context;
}
function disc(context, x, y, radius) {
  context.moveTo(x + radius, y);
  context.arc(x, y, radius, 0, 2 * Math.PI);
}
function circle2(context, [x, y], radius, stroke, width) {
  context.strokeStyle = stroke;
  context.lineWidth = width;
  context.beginPath();
  disc(context, x, y, radius);
  context.stroke();
}
function drawStar(context, [x, y], fill2, edge) {
  context.beginPath();
  for (let corner = 0; corner < 10; corner++) {
    const radius = corner % 2 ? 4.5 : 11, angle = corner * Math.PI / 5 - Math.PI / 2;
    context.lineTo(x + radius * Math.cos(angle), y + radius * Math.sin(angle));
  }
  context.closePath();
  context.lineWidth = 3;
  context.strokeStyle = edge;
  context.stroke();
  context.fillStyle = fill2;
  context.fill();
}

// inspector_places.js
var MARGIN2 = 18;
var CELL = 14;
function projector(points, stars, width, height) {
  let [left, right, low, high] = [
    Infinity,
    -Infinity,
    Infinity,
    -Infinity
  ];
  for (const places of [
    points,
    stars
  ]) {
    for (let i = 0; i < places.length; i += 2) {
      if (Number.isNaN(places[i])) continue;
      left = Math.min(left, places[i]);
      right = Math.max(right, places[i]);
      low = Math.min(low, places[i + 1]);
      high = Math.max(high, places[i + 1]);
    }
  }
  const unit = Math.min((width - 2 * MARGIN2) / Math.max(right - left, 1e-9), (height - 2 * MARGIN2) / Math.max(high - low, 1e-9));
  const [x0, y0] = [
    (width - unit * (right - left)) / 2,
    (height - unit * (high - low)) / 2
  ];
  return (x, y) => [
    x0 + unit * (x - left),
    y0 + unit * (high - y)
  ];
}
function indexOfPlaces(places, width) {
  const squares = /* @__PURE__ */ new Map();
  const columns = Math.ceil(width / CELL) + 2;
  const square = (x, y) => (Math.floor(y / CELL) + 1) * columns + Math.floor(x / CELL) + 1;
  for (let token = 0; 2 * token < places.length; token++) {
    const key = square(places[2 * token], places[2 * token + 1]);
    const tokens = squares.get(key);
    if (tokens) tokens.push(token);
    else squares.set(key, [
      token
    ]);
  }
  return {
    /**
     * @param {number} x
     * @param {number} y
     * @param {number} reach
     */
    nearest(x, y, reach) {
      let nearest2 = -1, least = reach * reach;
      for (const dy of [
        -CELL,
        0,
        CELL
      ]) {
        for (const dx of [
          -CELL,
          0,
          CELL
        ]) {
          for (const token of squares.get(square(x + dx, y + dy)) ?? []) {
            const distance = (places[2 * token] - x) ** 2 + (places[2 * token + 1] - y) ** 2;
            if (distance < least) [nearest2, least] = [
              token,
              distance
            ];
          }
        }
      }
      return nearest2;
    }
  };
}

// inspector_zoom.js
var MOST = 40;
var FACTOR = 1.5;
var STILL = 4;
function createZoom2(host, changed) {
  let scale = 1, left = 0, top = 0;
  let drag = null;
  let dragged = false;
  const buttons = host.appendChild(document.createElement("div"));
  buttons.className = "kv-buttons kv-zoom";
  button(buttons, "+", "zoom in (+, or Ctrl and the wheel)", () => by(FACTOR));
  const out = button(buttons, "\u2212", "zoom out (\u2212)", () => by(1 / FACTOR));
  const all = button(buttons, "\u2922", "show all keys (0)", reset);
  function update() {
    const width = host.clientWidth, height = host.clientHeight;
    left = Math.min(0, Math.max(width * (1 - scale), left));
    top = Math.min(0, Math.max(height * (1 - scale), top));
    out.disabled = all.disabled = scale === 1;
    host.style.touchAction = scale > 1 ? "none" : "";
    host.dataset.zoom = scale.toFixed(2);
    changed();
  }
  function by(factor, x = host.clientWidth / 2, y = host.clientHeight / 2) {
    const next = Math.min(MOST, Math.max(1, scale * factor)), grown = next / scale;
    [left, top, scale] = [
      x - grown * (x - left),
      y - grown * (y - top),
      next
    ];
    update();
  }
  function reset() {
    [scale, left, top] = [
      1,
      0,
      0
    ];
    update();
  }
  host.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const box = host.getBoundingClientRect();
    by(Math.exp(-event.deltaY / 300), event.clientX - box.left, event.clientY - box.top);
  }, {
    passive: false
  });
  host.addEventListener("pointerdown", (event) => {
    dragged = false;
    const onButton = event.target instanceof Node && buttons.contains(event.target);
    if (event.button !== 0 || scale === 1 || onButton) return;
    drag = {
      x: event.clientX,
      y: event.clientY,
      left,
      top,
      id: event.pointerId
    };
  });
  host.addEventListener("pointermove", (event) => {
    if (!drag || event.pointerId !== drag.id) return;
    const [right, down] = [
      event.clientX - drag.x,
      event.clientY - drag.y
    ];
    if (!dragged && Math.hypot(right, down) < STILL) return;
    if (!dragged) host.setPointerCapture(drag.id);
    dragged = true;
    [left, top] = [
      drag.left + right,
      drag.top + down
    ];
    update();
  });
  for (const end of [
    "pointerup",
    "pointercancel"
  ]) host.addEventListener(end, () => drag = null);
  return {
    buttons,
    by,
    reset,
    update,
    /** Whether the pointer moved the map since it was pressed: its click picks nothing. */
    moved: () => dragged,
    /**
     * From the place on the whole map to that on the zoomed one, in pixels.
     *
     * @type {(place: [x: number, y: number]) => [x: number, y: number]}
     */
    at: ([x, y]) => [
      left + scale * x,
      top + scale * y
    ],
    /**
     * Moves the map so that a place of the zoomed map is in sight.
     *
     * @param {[x: number, y: number]} place
     */
    reveal([x, y]) {
      const width = host.clientWidth, height = host.clientHeight;
      if (x >= 0 && y >= 0 && x <= width && y <= height) return;
      [left, top] = [
        left + width / 2 - x,
        top + height / 2 - y
      ];
      update();
    },
    /** @param {string} key */
    press(key) {
      if (key === "+" || key === "=") by(FACTOR);
      else if (key === "-") by(1 / FACTOR);
      else if (key === "0") reset();
      else return false;
      return true;
    }
  };
}

// inspector_map.js
var LOOK_LEVEL = 3;
var REACH = 9;
var NONE = -1;
var DIRECTIONS = {
  ArrowLeft: [
    -1,
    0
  ],
  ArrowRight: [
    1,
    0
  ],
  ArrowUp: [
    0,
    -1
  ],
  ArrowDown: [
    0,
    1
  ]
};
function createKeyMap(host, root2, { onHover, onPick, onCursor }) {
  host.classList.add("kv-keymap");
  host.tabIndex = 0;
  host.setAttribute("role", "application");
  host.setAttribute("aria-label", "map of the keys: arrow keys move between centroids, Enter picks one, Escape clears it, + and \u2212 zoom, 0 shows all");
  const [below, above] = [
    0,
    1
  ].map(() => host.appendChild(element("canvas")));
  let clusters;
  let toPixel = null;
  let index;
  let colours;
  let points = new Float32Array();
  let stars = points;
  let star2 = null;
  let found = [];
  let foundAt = NONE;
  let places = points, rings = points;
  let coloured = false, ink2 = "", muted = "", ground = "", hovered = NONE, picked = NONE, cursor = NONE;
  const zoom = createZoom2(host, () => {
    if (layOut()) drawBelow();
  });
  function fit() {
    const width = host.clientWidth, height = host.clientHeight, scale = window.devicePixelRatio || 1;
    if (!width || !points.length || !clusters) return false;
    for (const canvas of [
      below,
      above
    ]) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      canvas.style.cssText = `position:absolute;left:0;top:0;width:${width}px;height:${height}px`;
      contextOf(canvas).setTransform(scale, 0, 0, scale, 0, 0);
    }
    return layOut();
  }
  function layOut() {
    const width = host.clientWidth, height = host.clientHeight;
    if (!width || !points.length || !clusters) return false;
    const whole = projector(points, stars, width, height);
    toPixel = (x, y) => zoom.at(whole(x, y));
    places = new Float32Array(points.length);
    for (let i = 0; i < points.length; i += 2) places.set(toPixel(points[i], points[i + 1]), i);
    index = indexOfPlaces(places, width);
    return true;
  }
  function colour(cluster) {
    if (cluster < 0) return muted;
    const look = 4 * (clusters.hues[cluster] * LEVELS + LOOK_LEVEL);
    return `rgb(${colours[look]} ${colours[look + 1]} ${colours[look + 2]})`;
  }
  const ringAt = (toPixel2, cluster) => toPixel2(rings[2 * cluster], rings[2 * cluster + 1]);
  const dotSize = () => places.length > 4e4 ? 1.1 : places.length > 8e3 ? 1.7 : 2.4;
  const ringSize = () => clusters.sizes.length > 240 ? 3.5 : clusters.sizes.length > 80 ? 5 : 7;
  function drawBelow() {
    if (!toPixel) return;
    if (!coloured) {
      const style = getComputedStyle(root2);
      [coloured, colours, ink2, ground] = [
        true,
        mapColours(root2),
        style.color,
        style.backgroundColor
      ];
      muted = style.getPropertyValue("--kv-muted");
    }
    const context = clear(below), byHue = Array.from({
      length: HUES + 1
    }, () => (
      /** @type {number[]} */
      []
    ));
    for (let token = 0; token < clusters.labels.length; token++) {
      const cluster = clusters.labels[token];
      byHue[cluster < 0 ? HUES : clusters.hues[cluster]].push(token);
    }
    context.globalAlpha = picked < 0 ? 0.8 : 0.3;
    byHue.forEach((tokens) => {
      if (!tokens.length) return;
      context.fillStyle = colour(clusters.labels[tokens[0]]);
      context.beginPath();
      for (const token of tokens) disc(context, places[2 * token], places[2 * token + 1], dotSize());
      context.fill();
    });
    drawAbove();
  }
  function drawAbove() {
    if (!toPixel || !coloured) return;
    const context = clear(above);
    if (picked >= 0) drawPicked(context);
    for (let cluster = 0; cluster < clusters.sizes.length; cluster++) {
      if (clusters.sizes[cluster]) ring(context, ringAt(toPixel, cluster), cluster);
    }
    if (cursor >= 0) {
      context.setLineDash([
        3,
        3
      ]);
      circle2(context, ringAt(toPixel, cursor), ringSize() + 6, ink2, 1.5);
      context.setLineDash([]);
    }
    for (const token of found) {
      circle2(context, [
        places[2 * token],
        places[2 * token + 1]
      ], dotSize() + 2.5, ground, 4);
      circle2(context, [
        places[2 * token],
        places[2 * token + 1]
      ], dotSize() + 2.5, ink2, token === foundAt ? 3 : 1.5);
    }
    if (star2) drawStar(context, toPixel(...star2), ink2, ground);
    if (hovered >= 0) circle2(context, [
      places[2 * hovered],
      places[2 * hovered + 1]
    ], dotSize() + 4, ink2, 1.5);
  }
  function drawPicked(context) {
    context.fillStyle = colour(picked);
    context.strokeStyle = ink2;
    context.lineWidth = 1;
    context.beginPath();
    for (const token of membersOf(clusters, picked)) {
      disc(context, places[2 * token], places[2 * token + 1], dotSize() + 1.2);
    }
    context.fill();
    context.stroke();
  }
  function ring(context, place, cluster) {
    const [radius, width] = cluster === picked ? [
      ringSize() + 3,
      3
    ] : [
      ringSize(),
      1.75
    ];
    circle2(context, place, radius, ground, width + 2.5);
    circle2(context, place, radius, cluster === picked ? ink2 : colour(cluster), width);
  }
  function keyAt(event) {
    if (!toPixel) return null;
    const box = host.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    let nearest2 = NONE, least = (ringSize() + 2) ** 2;
    for (let cluster = 0; cluster < clusters.sizes.length; cluster++) {
      if (!clusters.sizes[cluster]) continue;
      const [a, b] = ringAt(toPixel, cluster), distance = (a - x) ** 2 + (b - y) ** 2;
      if (distance < least) [nearest2, least] = [
        cluster,
        distance
      ];
    }
    if (nearest2 >= 0) return {
      cluster: nearest2,
      token: NONE
    };
    const token = index.nearest(x, y, REACH);
    return token < 0 ? null : {
      cluster: clusters.labels[token],
      token
    };
  }
  host.addEventListener("pointermove", (event) => {
    if (zoom.moved()) return;
    const key = keyAt(event), token = key ? key.token : NONE;
    host.style.cursor = key ? "pointer" : "default";
    onHover(key, event);
    if (token === hovered) return;
    hovered = token;
    drawAbove();
  });
  host.addEventListener("pointerleave", (event) => {
    hovered = NONE;
    drawAbove();
    onHover(null, event);
  });
  host.addEventListener("click", (event) => {
    const key = zoom.buttons.contains(targetOf(event)) || zoom.moved() ? null : keyAt(event);
    if (key) onPick(key);
  });
  host.addEventListener("keydown", (event) => {
    const direction = DIRECTIONS[event.key];
    if (hasModifier(event) || !toPixel || event.target !== host) return;
    if (direction) moveTo(neighbour(toPixel, ...direction));
    else if ((event.key === "Enter" || event.key === " ") && cursor >= 0) onPick({
      cluster: cursor,
      token: NONE
    });
    else if (!zoom.press(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
  });
  host.addEventListener("blur", () => moveTo(NONE));
  function moveTo(cluster) {
    cursor = cluster;
    if (cursor >= 0 && toPixel) zoom.reveal(ringAt(toPixel, cursor));
    drawAbove();
    onCursor(cluster);
  }
  function neighbour(toPixel2, right, down) {
    const from = cursor >= 0 ? cursor : picked;
    if (from < 0) return clusters.sizes.findIndex((size2) => size2 > 0);
    const [x, y] = ringAt(toPixel2, from);
    let best = from, least = Infinity;
    for (let cluster = 0; cluster < clusters.sizes.length; cluster++) {
      const [a, b] = ringAt(toPixel2, cluster), along = (a - x) * right + (b - y) * down;
      const across = Math.abs((a - x) * down) + Math.abs((b - y) * right);
      if (cluster === from || !clusters.sizes[cluster] || along <= 0 || across > along) continue;
      if (along + across < least) [best, least] = [
        cluster,
        along + across
      ];
    }
    return best;
  }
  const resized = new ResizeObserver(() => fit() && drawBelow());
  resized.observe(host);
  return {
    /**
     * @param {Places} newPlaces
     * @param {Clustering} newClusters
     * @param {number} cluster
     */
    show(newPlaces, newClusters, cluster) {
      const moved = newPlaces.points !== points;
      ({ points, stars } = newPlaces);
      rings = ringsOf(newPlaces, newClusters);
      if (moved) zoom.reset();
      [clusters, picked, cursor, hovered] = [
        newClusters,
        cluster,
        NONE,
        NONE
      ];
      if ((moved || !toPixel) && !fit()) return;
      drawBelow();
    },
    /** @param {number} cluster */
    pick(cluster) {
      picked = cluster;
      drawBelow();
    },
    /** @param {[x: number, y: number] | null} place of the query */
    star(place) {
      star2 = place;
      drawAbove();
    },
    /**
     * Outlines tokens, one of them strongly.
     *
     * @param {number[]} tokens
     * @param {number} at
     */
    find(tokens, at) {
      [found, foundAt] = [
        tokens,
        at
      ];
      if (at >= 0 && 2 * at < places.length) zoom.reveal([
        places[2 * at],
        places[2 * at + 1]
      ]);
      drawAbove();
    },
    /** @param {number | null} token */
    hover(token) {
      hovered = token !== null && token < clusters.labels.length ? token : NONE;
      drawAbove();
    },
    recolour() {
      coloured = false;
      drawBelow();
    },
    destroy: () => resized.disconnect()
  };
}

// inspector_ranking.js
var LABELLED = 34;
var KINDS = {
  whole: "recalled",
  part: "recalled in part",
  none: "not recalled"
};
function createRanking(host, { tip, onHover, onPick }) {
  const heading = host.appendChild(explain(element("h3"), MEANING4.ranking));
  const title = heading.appendChild(element("span"));
  heading.append(" ", tagOf(host, "head", "step"));
  const words = host.appendChild(element("p", "kv-rankwords"));
  words.setAttribute("role", "status");
  const panel = host.appendChild(element("div", "kv-panel kv-ranking"));
  const list = panel.appendChild(element("div", "kv-rankbars"));
  list.tabIndex = 0;
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-description", "\u2190 and \u2192 read them, Enter picks one");
  const legend3 = host.appendChild(explainTogether(element("p", "kv-legend"), "legend of the bars"));
  let clusters;
  let ranks = [];
  let bars = [];
  let cursor = -1, picked = -1;
  function about2(rank) {
    const { group: group2, score, recalled, size: size2, kind } = ranks[rank], { one, score: meaning } = VIEWS[clusters.told.view];
    const rows = [
      [
        one,
        `#${group2}`
      ],
      [
        "rank",
        `${format(rank + 1)} of ${format(ranks.length)}`
      ],
      [
        meaning,
        decimals(score)
      ],
      [
        "state",
        KINDS[kind]
      ],
      [
        "attended to",
        `${format(recalled)} of ${format(size2)} tokens`
      ]
    ];
    return rows;
  }
  function bar(rank, most, least, every) {
    const { group: group2, score, kind } = ranks[rank], node = element("span", `kv-rankbar kv-rank-${kind}`);
    node.setAttribute("role", "option");
    node.setAttribute("aria-label", about2(rank).map(([term, value]) => `${term} ${value}`).join(", "));
    const room = node.appendChild(element("span", "kv-rankroom"));
    const fill2 = room.appendChild(element("span", "kv-rankfill"));
    fill2.style.height = `${100 * (score - least) / Math.max(most - least, 1e-9)}%`;
    fill2.style.setProperty("--kv-own", colourOf(clusters.hues[group2]));
    const label = rank % every === 0 ? `#${group2}` : "";
    node.appendChild(element("span", "kv-ranklabel", label)).setAttribute("aria-hidden", "true");
    node.addEventListener("pointerenter", (event) => {
      onHover(group2);
      tip.show(about2(rank), event);
    });
    node.addEventListener("pointerleave", () => leave());
    node.addEventListener("click", () => onPick(group2));
    return node;
  }
  function leave() {
    onHover(null);
    tip.hide();
  }
  function go(rank) {
    if (rank >= bars.length) return;
    bars[cursor]?.removeAttribute("data-cursor");
    cursor = rank;
    if (cursor < 0) return leave();
    bars[cursor].dataset.cursor = "";
    bars[cursor].scrollIntoView({
      block: "nearest",
      inline: "nearest"
    });
    onHover(ranks[cursor].group);
    tip.show(about2(cursor), pointOf(bars[cursor]));
  }
  onKeys(list, {
    ArrowLeft: () => go(Math.max(cursor - 1, 0)),
    ArrowRight: () => go(cursor + 1),
    Home: () => go(0),
    End: () => go(bars.length - 1),
    Enter: () => cursor >= 0 && onPick(ranks[cursor].group),
    " ": () => cursor >= 0 && onPick(ranks[cursor].group)
  });
  list.addEventListener("blur", () => cursor >= 0 && go(-1));
  function mark() {
    bars.forEach((node, rank) => {
      const here = ranks[rank].group === picked;
      node.toggleAttribute("data-picked", here);
      node.setAttribute("aria-selected", String(here));
    });
  }
  return {
    /** The rank of a group at the step shown, from 0; -1 if it is not ranked. */
    rankOf: (group2) => ranks.findIndex((rank) => rank.group === group2),
    get count() {
      return ranks.length;
    },
    /**
     * @param {Clustering} shown
     * @param {number} step
     */
    paint(shown2, step) {
      clusters = shown2;
      ranks = ranksOf(clusters, step);
      const { view } = clusters.told, cut2 = clusters.cut[step];
      const groups = clusters.sizes.reduce((count, size2) => count + (size2 > 0 ? 1 : 0), 0);
      words.textContent = rankingWords(ranks, cut2, clusters.told, groups);
      const [most, least] = [
        ranks[0]?.score ?? 0,
        ranks.at(-1)?.score ?? 0
      ];
      const width = Math.max(7, panel.clientWidth / Math.max(ranks.length, 1)), every = Math.ceil(LABELLED / width);
      bars = ranks.map((_, rank) => bar(rank, most, least, every));
      if (cut2 > 0 && cut2 < bars.length) bars[cut2 - 1].dataset.cut = "";
      list.replaceChildren(...bars);
      list.setAttribute("aria-label", `${VIEWS[view].many} by ${VIEWS[view].score}, best first`);
      panel.hidden = legend3.hidden = bars.length === 0;
      const scores = bars.length ? `, from ${decimals(least)} at the bottom to ${decimals(most)} at the top` : "";
      title.textContent = `step ${format(step)}: ${countOf(ranks.length, view)} by ${VIEWS[view].score}${scores}`;
      drawLegend(legend3, clusters);
      cursor = -1;
    },
    /** @param {number} group */
    pick(group2) {
      picked = group2;
      mark();
      const node = bars[ranks.findIndex((rank) => rank.group === group2)];
      if (node) {
        const from = node.offsetLeft, until = from + node.offsetWidth;
        if (from < panel.scrollLeft || until > panel.scrollLeft + panel.clientWidth) {
          panel.scrollLeft = from - panel.clientWidth / 2;
        }
      }
    }
  };
}
function drawLegend(host, { told: { view } }) {
  const { one } = VIEWS[view];
  const entries = [
    [
      "whole",
      view === "lists" ? "probed" : view === "codes" ? "all its tokens are attended to" : "recalled whole",
      view === "lists" ? "the step ranks the tokens of this list" : `the step attends to all tokens of this ${one}`
    ],
    [
      "part",
      view === "codes" ? "some of its tokens are attended to" : "trimmed by the budget",
      `the step attends to some tokens of this ${one}`
    ],
    [
      "none",
      view === "lists" ? "not probed" : "not recalled",
      view === "lists" ? "the step leaves this list out" : `the step selects no token of this ${one}`
    ]
  ];
  const used = view === "pages" || view === "lists" ? entries.filter(([kind]) => kind !== "part") : entries;
  host.replaceChildren(...used.map(([kind, text, meaning]) => {
    const entry = explain(element("span", "kv-entry"), meaning);
    const sample = entry.appendChild(element("span", `kv-ranksample kv-rank-${kind}`));
    const fill2 = sample.appendChild(element("span", "kv-rankfill"));
    fill2.style.setProperty("--kv-own", colourOf(16));
    entry.append(element("span", "", text));
    return entry;
  }));
}

// inspector.js
var NAMES2 = [
  "pca",
  "query",
  "tsne"
];
var SLOW_MS = 250;
var TSNE_PATIENCE_MS = 9e4;
var TINTED = ATTENDED | GENERATED;
var PICKED = TINTED | ORACLE;
var UNCLUSTERED = ATTENDED | SINK;
function createInspector(root2, host) {
  const page = host.get("page");
  let places;
  let clusters;
  let token = host.get("token");
  let group2 = host.get("group");
  let now = host.get("step");
  let requested = null;
  let queued = null;
  let slowTimer;
  let placesChanged = true, clustersChanged = true;
  root2.classList.add("kvviz", "kv-inspector");
  keepKeys(root2);
  const controls = createInspectorControls(root2, page, {
    go,
    change: ask,
    save
  });
  const wait = createWait(root2, giveUp);
  const tip = createTip(root2);
  const heads = createHeadPanel(root2, {
    ...page,
    head_name: "KV head"
  }, {
    tip,
    pick: (layer, head) => ask({
      layer,
      head
    })
  });
  const grid = root2.appendChild(element("div", "kv-grid"));
  const left = section(grid, "keys", "kv-keys", MEANING4.map);
  const right = section(grid, "prompt", "kv-prompt", MEANING4.text);
  const ranked = grid.appendChild(element("section", "kv-ranks"));
  const about2 = grid.appendChild(element("section", "kv-details"));
  const legend3 = root2.appendChild(explainTogether(element("p", "kv-legend"), "legend of the map and the text"));
  root2.append(...page.notes.map((note) => element("p", "kv-note", note)));
  const map = createKeyMap(left.appendChild(element("div")), root2, {
    onHover(key, event) {
      light(key && key.token >= 0 ? [
        key.token
      ] : []);
      if (key) tip.show(keyRows(key), event);
      else tip.hide();
    },
    onPick: (key) => choose(key.token >= 0 ? key.token : clusters.central[key.cluster], key.cluster),
    onCursor(cluster) {
      status.textContent = cluster < 0 ? "" : `at ${VIEWS[clusters.told.view].one} #${cluster}, ${format(clusters.sizes[cluster])} tokens: Enter picks it`;
    }
  });
  const axes2 = left.appendChild(element("div", "kv-axis"));
  const limits = left.appendChild(element("p", "kv-note kv-limits"));
  const status = left.appendChild(element("div", "kv-axis kv-cursor"));
  status.setAttribute("role", "status");
  const [heading] = right.children;
  createFind(heading, root2, {
    tokens: page.tokens,
    strips: () => [
      strip
    ],
    onFound: map.find
  });
  const strip = createStrip(right.appendChild(element("div", "kv-panel")), {
    tokens: page.tokens,
    span: page.span,
    label: "prompt",
    onHover(position, event) {
      map.hover(position);
      if (position === null) tip.hide();
      else tip.show(keyRows({
        cluster: pickedOf(clusters, group2, position),
        token: position
      }), event);
    },
    onPick: (position) => choose(position, group2, false)
  });
  const ranking = createRanking(ranked, {
    tip,
    onHover: (hovered) => light(hovered === null ? [] : [
      ...membersOf(clusters, hovered)
    ]),
    onPick: (picked2) => choose(clusters.central[picked2], picked2)
  });
  const details = createDetails(about2, page, {
    goTo: choose,
    onList: () => choose(-1)
  });
  const unwatch = watchTheme(root2, map.recolour);
  const picked = () => pickedOf(clusters, group2, token);
  const light = (tokens) => strip.light(tokens);
  function settings() {
    const { settings: [n_clusters, metric, seed], layer, head, told: { view, part, fields } } = clusters;
    const projection = NAMES2[projectionOf(places)];
    return {
      n_clusters,
      metric: page.metrics[metric],
      seed,
      layer,
      head,
      view,
      part,
      fields,
      projection
    };
  }
  function keyRows({ cluster, token: position }) {
    const { one, none } = VIEWS[clusters.told.view];
    const rows = position < 0 ? [] : [
      [
        "token",
        visible(page.tokens[position])
      ],
      [
        "position",
        format(position)
      ]
    ];
    if (cluster < 0) {
      rows.push([
        one,
        `none: ${none}`
      ]);
      return rows;
    }
    const taken = takenOf(clusters, cluster), rank = ranking.rankOf(cluster);
    rows.push([
      one,
      `#${cluster}`
    ], [
      "size",
      `${format(clusters.sizes[cluster])} tokens`
    ]);
    rows.push([
      "spread",
      decimals(clusters.spread[cluster])
    ]);
    if (rank >= 0) rows.push([
      "rank at this step",
      `${format(rank + 1)} of ${format(ranking.count)}`
    ]);
    if (taken.length) rows.push([
      "recalled by",
      `${steps(taken)} of ${format(taken.length)} steps`
    ]);
    return rows;
  }
  function paintText() {
    const count = clusters.labels.length, members = new Set(membersOf(clusters, picked()));
    const looks2 = new Uint8Array(count), marks = new Uint8Array(count);
    for (let position = 0; position < count; position++) {
      const cluster = clusters.labels[position], isPicked = members.has(position);
      looks2[position] = (cluster < 0 ? HUES : clusters.hues[cluster]) * LEVELS + (isPicked ? LEVELS - 1 : 0);
      marks[position] = cluster < 0 ? UNCLUSTERED : isPicked ? PICKED : TINTED;
    }
    strip.paint([
      ...clusters.labels.keys()
    ], looks2, marks);
  }
  function paintPicked() {
    const cluster = picked(), rank = ranking.rankOf(cluster);
    ranking.pick(cluster);
    details.paint(clusters, token, cluster, {
      step: now,
      rank,
      ranked: ranking.count
    });
    const place = rank < 0 ? "" : `, #${cluster} on rank ${rank + 1} of ${ranking.count}`;
    controls.step(now, place);
  }
  function paintControls(waiting = requested !== null) {
    controls.paint(settings(), clusters.told, clusters.sizes.length, {
      token,
      step: now
    }, waiting);
  }
  function paint(waiting = requested !== null) {
    ranking.paint(clusters, now);
    paintPicked();
    paintText();
    paintControls(waiting);
    heads.paint(clusters.layer, clusters.head);
    tip.hide();
  }
  function go(by, to = now) {
    const step = Math.max(0, Math.min(page.steps - 1, to + by));
    if (step === now) return;
    now = step;
    map.star(starOf(places, now, page.ranked > 0));
    ranking.paint(clusters, now);
    paintPicked();
    paintControls();
    tip.hide();
    host.tell({
      step
    });
  }
  function choose(position, named2 = -1, scroll = true) {
    token = position;
    group2 = position < 0 ? -1 : pickedOf(clusters, named2, position);
    map.pick(picked());
    paintText();
    paintPicked();
    paintControls();
    tip.hide();
    if (scroll && token >= 0) strip.focus(token, false);
    host.tell({
      token,
      group: group2
    });
  }
  function ask(change) {
    const before = queued ?? requested ?? settings();
    const next = {
      ...before,
      ...change,
      fields: {
        ...before.fields,
        ...change.fields
      }
    };
    if (requested) {
      queued = next;
      return;
    }
    if (JSON.stringify(next) === JSON.stringify(settings())) return;
    requested = next;
    const laidOut = next.projection === "tsne";
    wait.begin(host, laidOut ? TSNE_PATIENCE_MS : void 0);
    slowTimer = setTimeout(() => {
      root2.dataset.busy = "";
      const work = laidOut ? "laying out keys by t-SNE: some seconds" : `grouping ${format(page.tokens.length)} tokens`;
      status.textContent = `${work} \u2026`;
    }, SLOW_MS);
    host.tell({
      ...next,
      fields: {
        ...host.get("fields"),
        ...next.fields
      }
    });
  }
  function endWait() {
    clearTimeout(slowTimer);
    status.textContent = "";
    requested = queued = null;
  }
  function giveUp() {
    endWait();
    paint();
  }
  function show() {
    const opening = !clusters, next = queued;
    if (placesChanged) places = unpack(host.bytes("places"));
    if (clustersChanged) {
      clusters = unpack(host.bytes("clusters"));
      clusters.told = aboutOf(clusters);
    }
    placesChanged = clustersChanged = false;
    wait.end();
    endWait();
    const [across, up] = new TextDecoder().decode(places.titles).split("\n");
    axes2.replaceChildren(element("span", "", `\u2192 ${across}`), element("span", "", `\u2191 ${up}`));
    limits.textContent = PROJECTIONS[NAMES2[projectionOf(places)]].about;
    drawMapLegend(legend3, clusters.told.view, page.ranked > 0);
    map.show(places, clusters, picked());
    map.star(starOf(places, now, page.ranked > 0));
    paint(next !== null);
    if (opening && token >= 0) requestAnimationFrame(() => strip.focus(token, false));
    if (next) ask(next);
  }
  function showSoon() {
    if (!placesChanged && !clustersChanged) queueMicrotask(() => (placesChanged || clustersChanged) && show());
  }
  function save(format2) {
    const { layer, head, n_clusters: count, view } = settings();
    const size2 = view === "clusters" ? `clusters-${count}` : view;
    return saveAs(format2, controls.menu, root2, host, `cluster-inspector-layer-${layer}-head-${head}-${size2}`);
  }
  root2.addEventListener("keydown", (event) => {
    const target = targetOf(event), move = stepKeys(page.steps)[event.key];
    const typing = target.matches("select, input:not([type=range])");
    if (hasModifier(event) || typing) return;
    if (move && controls.ownsKeys(target)) {
      const ends = {
        Home: 0,
        End: Infinity
      }[event.key];
      controls.count(ends ?? move[0], ends !== void 0);
    } else if (move) go(...move);
    else if (event.key === "Escape" && token >= 0 && !controls.menu.menu.open) choose(-1);
    else return;
    event.preventDefault();
  });
  host.on("page", () => controls.counts(host.get("page").counts));
  host.on("places", () => {
    showSoon();
    placesChanged = true;
  });
  host.on("clusters", () => {
    showSoon();
    clustersChanged = true;
  });
  host.on("step", () => go(0, host.get("step")));
  host.on("token", () => host.get("token") !== token && choose(host.get("token"), host.get("group")));
  host.on("group", () => host.get("group") !== group2 && choose(host.get("token"), host.get("group")));
  show();
  return () => {
    clearTimeout(slowTimer);
    wait.close();
    unwatch();
    map.destroy();
  };
}

// mechanism_draw.js
function drawMark(context, mark, theme, hueOf) {
  const { x, y, w, h, shape } = mark, hue = hueOf(mark.group);
  const alpha = Math.max(0, Math.min(1, mark.alpha));
  const colour = hue === null ? theme.muted : `oklch(${theme.dark ? 0.72 : 0.62} 0.15 ${hue})`;
  context.globalAlpha = alpha;
  context.fillStyle = context.strokeStyle = colour;
  context.lineWidth = 1;
  context.textBaseline = "alphabetic";
  context.textAlign = "left";
  const write2 = (text, left, line2, small = true) => {
    context.font = `${small ? 11 : 12}px ${theme.family}`;
    context.fillText(text, left, line2);
  };
  if (shape === "dot") {
    context.beginPath();
    context.arc(x, y, w, 0, 2 * Math.PI);
    context.fill();
  } else if (shape === "ring") {
    context.lineWidth = 2;
    context.strokeStyle = theme.text;
    context.fillStyle = theme.ground;
    context.beginPath();
    context.arc(x, y, w, 0, 2 * Math.PI);
    context.globalAlpha = 0.75 * alpha;
    context.fill();
    context.globalAlpha = alpha;
    context.stroke();
    context.fillStyle = theme.text;
    context.font = `9px ${theme.family}`;
    context.textAlign = "center";
    context.fillText(mark.label || mark.id.split(":")[1], x, y + 3);
  } else if (shape === "star") {
    star(context, x, y, w, theme.text);
  } else if (shape === "ground") {
    context.fillStyle = theme.raised;
    context.globalAlpha = 0.6 * alpha;
    context.fillRect(x, y, w, h);
  } else if (shape === "box") {
    context.strokeStyle = theme.text;
    context.setLineDash([
      4,
      3
    ]);
    context.strokeRect(x, y, w, h);
    context.setLineDash([]);
    context.fillStyle = theme.text;
    write2(mark.label, x + 3, y - 3);
  } else if (shape === "title") {
    context.fillStyle = theme.muted;
    context.font = `600 12px ${theme.family}`;
    context.fillText(mark.label, x, y);
  } else if (shape === "note") {
    context.fillStyle = theme.muted;
    context.textAlign = w < 0 ? "right" : "left";
    write2(mark.label, x, y);
  } else if (shape === "cut") {
    context.strokeStyle = context.fillStyle = theme.text;
    context.lineWidth = 2;
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(x + w, y + h);
    context.stroke();
    context.textAlign = h ? "left" : "right";
    if (h) write2(mark.label, x + 4, y + h);
    else write2(mark.label, x + w, y - 3);
  } else {
    if (shape === "chip" && hue === null) context.globalAlpha = alpha / 4;
    context.fillRect(x, y, w, h);
    context.globalAlpha = 1;
    context.fillStyle = shape !== "bar" && hue !== null ? inkOn(theme, alpha) : theme.text;
    if (shape === "bar") {
      context.textAlign = "right";
      if (mark.label) write2(mark.label, x - 5, y + h / 2 + 4);
      context.textAlign = "left";
      if (mark.value !== null) write2(short(mark.value), x + w + 4, y + h / 2 + 4);
    } else if (shape === "segment") {
      context.strokeStyle = theme.ground;
      context.strokeRect(x, y, w, h);
      if (mark.label) write2(mark.label, x + 3, y + h / 2 + 4);
    } else if (shape === "chip" || shape === "cell") {
      if (shape === "chip") {
        context.globalAlpha = 0.4 + 0.6 * alpha;
        context.strokeStyle = theme.line;
        context.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
        context.globalAlpha = 1;
      }
      if (mark.label) write2(mark.label, x + 4, y + h / 2 + 4, false);
    }
  }
  context.globalAlpha = 1;
}
function drawLink(context, link, index, byObject, theme, alpha) {
  const start = byObject.get(link.start), end = byObject.get(link.end);
  if (!start || !end) return;
  const [a, b] = [
    start,
    end
  ].map(middleOf), down = a.y < b.y;
  const [top, bottom] = down ? [
    start,
    end
  ] : [
    end,
    start
  ], [high, low] = down ? [
    a,
    b
  ] : [
    b,
    a
  ];
  const round = (mark) => [
    "dot",
    "ring",
    "star"
  ].includes(mark.shape);
  const from = round(top) ? high.y : top.y + top.h, to = round(bottom) ? low.y : bottom.y;
  context.globalAlpha = alpha * Math.max(0.15, link.strength);
  context.strokeStyle = context.fillStyle = theme.text;
  context.lineWidth = 0.6 + 1.6 * link.strength;
  if (link.weak) context.setLineDash([
    3,
    3
  ]);
  context.beginPath();
  context.moveTo(high.x, from);
  context.lineTo(low.x, to);
  context.stroke();
  context.setLineDash([]);
  if (link.label) {
    context.globalAlpha = alpha;
    context.font = `10px ${theme.family}`;
    context.textAlign = "center";
    const away = index % 2 ? 0.38 : 0.2, near = down ? away : 1 - away;
    const half = context.measureText(link.label).width / 2 + 1, right = context.canvas.clientWidth - half;
    const x = Math.min(Math.max(high.x + (low.x - high.x) * near, half), right), y = from + (to - from) * near + 3;
    context.strokeStyle = theme.ground;
    context.lineWidth = 4;
    context.strokeText(link.label, x, y);
    context.fillText(link.label, x, y);
  }
  context.globalAlpha = 1;
}
function inkOn(theme, alpha) {
  return theme.dark && alpha < 0.65 ? theme.text : "#000";
}
function middleOf({ x, y, w, h, shape }) {
  return [
    "dot",
    "ring",
    "star"
  ].includes(shape) ? {
    x,
    y
  } : {
    x: x + w / 2,
    y: y + h / 2
  };
}
function outline(context, { x, y, w, h, shape }, colour, width) {
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.beginPath();
  if ([
    "dot",
    "ring",
    "star"
  ].includes(shape)) context.arc(x, y, w + 3, 0, 2 * Math.PI);
  else context.rect(x - 1.5, y - 1.5, w + 3, h + 3);
  context.stroke();
}
function star(context, x, y, radius, colour) {
  context.fillStyle = colour;
  context.beginPath();
  for (let point = 0; point < 10; point++) {
    const angle = point * Math.PI / 5 - Math.PI / 2, length = point % 2 ? radius * 0.45 : radius;
    context.lineTo(x + length * Math.cos(angle), y + length * Math.sin(angle));
  }
  context.fill();
}
function short(value) {
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return value.toLocaleString("en-US");
  return Math.abs(value) >= 1e3 || value !== 0 && Math.abs(value) < 0.01 ? value.toExponential(1) : String(Number(value.toPrecision(3)));
}

// mechanism_layout.js
var GAP = 18;
var TITLE = 20;
var SIDE = 270;
var NARROW = 560;
var RULER = 62;
var LINE = 24;
var NAME = 128;
var EDGE = 14;
var LINKED = 90;
var PLAIN = {
  id: "",
  w: 0,
  h: 0,
  group: -1,
  alpha: 1,
  label: "",
  value: null
};
function layoutOf(panels, map, width, measure) {
  const marks = [];
  const beside = panels.filter(({ type }) => type === "plane" || type === "bars");
  const below = panels.filter((panel) => !beside.includes(panel));
  const columns = width < NARROW ? 1 : Math.max(beside.length, 1), each = (width - GAP * (columns - 1)) / columns;
  let top = 0;
  beside.forEach((panel, index) => {
    const column = index % columns;
    if (index && !column) top += SIDE + GAP;
    const box = {
      x: column * (each + GAP),
      y: top + TITLE,
      w: each,
      h: SIDE - TITLE
    };
    marks.push(titleOf(panel, box));
    marks.push(...panel.type === "plane" ? planeMarks(panel, map, box) : barMarks(
      /** @type {Bars} */
      panel,
      box,
      measure
    ));
  });
  if (beside.length) top += SIDE + (below.length ? GAP : 0);
  below.forEach((panel, index) => {
    const box = {
      x: 0,
      y: top + TITLE,
      w: width,
      h: RULER - TITLE
    };
    marks.push(titleOf(panel, box));
    const made = panel.type === "ruler" ? rulerMarks(panel, box, measure) : rowMarks(
      /** @type {Rows} */
      panel,
      box,
      measure
    );
    marks.push(...made.marks);
    top += TITLE + made.height + (index < below.length - 1 ? GAP : 0);
  });
  return {
    marks: unique(marks),
    height: Math.max(top, 1)
  };
}
function titleOf({ title, type }, box) {
  return {
    ...PLAIN,
    key: `title ${type} ${title}`,
    shape: "title",
    x: box.x,
    y: box.y - 7,
    label: title
  };
}
function unique(marks) {
  const seen = /* @__PURE__ */ new Map();
  for (const mark of marks) {
    const count = seen.get(mark.key) ?? 0;
    seen.set(mark.key, count + 1);
    if (count) mark.key += ` (${count + 1})`;
  }
  return marks;
}
function objects({ kind, numbers, groups, labels, strength }) {
  return numbers.map((number, index) => ({
    ...PLAIN,
    id: `${kind}:${number}`,
    group: groups?.[index] ?? -1,
    alpha: strength?.[index] ?? 1,
    label: labels?.[index] ?? ""
  }));
}
function planeMarks(plane, map, box) {
  const inner = {
    x: box.x + EDGE,
    y: box.y + EDGE,
    w: box.w - 2 * EDGE,
    h: box.h - 2 * EDGE
  };
  const ground = {
    ...PLAIN,
    ...box,
    key: `ground ${box.x} ${box.y}`,
    shape: "ground",
    alpha: 1
  };
  const ranges = plane.dots.some(({ x }) => x) ? rangesOf2(plane) : {
    left: 0,
    right: 1,
    bottom: 0,
    top: 1
  };
  const place = (x, y) => ({
    x: inner.x + inner.w * (x - ranges.left) / (ranges.right - ranges.left || 1),
    y: inner.y + inner.h - inner.h * (y - ranges.bottom) / (ranges.top - ranges.bottom || 1)
  });
  const onMap = new Map(map.positions.map((position, index) => [
    position,
    index
  ]));
  const middles = /* @__PURE__ */ new Map();
  const dots = [];
  for (const each of plane.dots) {
    const shape = each.shape, size2 = shape === "dot" ? 2.6 : shape === "ring" ? 7 : 8;
    objects(each).forEach((object, index) => {
      const number = each.numbers[index];
      let at = null;
      if (each.x && each.y) at = [
        each.x[index],
        each.y[index]
      ];
      else {
        const token = each.kind === "token" ? number : each.at?.[index] ?? -1, found = onMap.get(token);
        if (found !== void 0) at = [
          map.x[found],
          map.y[found]
        ];
        else if (each.kind !== "token") {
          const [x, y, count] = middles.get(object.group) ?? [
            0,
            0,
            0
          ];
          if (count) at = [
            x / count,
            y / count
          ];
        }
        if (at && each.kind === "token") {
          const [x, y, count] = middles.get(object.group) ?? [
            0,
            0,
            0
          ];
          middles.set(object.group, [
            x + at[0],
            y + at[1],
            count + 1
          ]);
        }
      }
      if (at) dots.push({
        ...object,
        ...place(...at),
        key: `plane ${object.id}`,
        shape,
        w: size2,
        h: size2
      });
    });
  }
  const boxes = plane.boxes.map(([[left, bottom, right, top], label], index) => {
    const low = place(left, bottom), high = place(right, top);
    const size2 = {
      x: low.x,
      y: high.y,
      w: high.x - low.x,
      h: low.y - high.y
    };
    return {
      ...PLAIN,
      ...size2,
      key: `box ${index}`,
      shape: "box",
      label
    };
  });
  const [across, up] = plane.axes;
  const axes2 = [
    {
      ...PLAIN,
      key: `across ${across}`,
      shape: "note",
      x: box.x + box.w - 6,
      y: box.y + box.h - 5,
      w: -1,
      label: across
    },
    {
      ...PLAIN,
      key: `up ${up}`,
      shape: "note",
      x: box.x + 5,
      y: box.y + 12,
      label: up
    }
  ].filter(({ label }) => label);
  return [
    ground,
    ...boxes,
    ...dots,
    ...axes2
  ];
}
function rangesOf2({ dots, boxes }) {
  const xs = [
    ...dots.flatMap(({ x }) => x ?? []),
    ...boxes.flatMap(([[left2, , right2]]) => [
      left2,
      right2
    ])
  ];
  const ys = [
    ...dots.flatMap(({ y }) => y ?? []),
    ...boxes.flatMap(([[, bottom2, , top2]]) => [
      bottom2,
      top2
    ])
  ];
  const least = (values) => values.reduce((low, value) => Math.min(low, value), Infinity);
  const most = (values) => values.reduce((high, value) => Math.max(high, value), -Infinity);
  const [left, right, bottom, top] = [
    least(xs),
    most(xs),
    least(ys),
    most(ys)
  ];
  const beside = 0.08 * (right - left), above = 0.1 * (top - bottom);
  return {
    left: left - beside,
    right: right + beside,
    bottom: bottom - above,
    top: top + above
  };
}
function barMarks(bars, box, measure) {
  const all = objects(bars), height = box.h / Math.max(all.length, 1), readable = height >= 9;
  const room = readable ? Math.max(0, ...all.map(({ label }) => measure(label, true))) + 8 : 0;
  const values = bars.log ? bars.values.map(Math.log10) : bars.values;
  const least = values.reduce((low, value) => Math.min(low, value), Infinity);
  const most = values.reduce((high, value) => Math.max(high, value), -Infinity);
  const floats = bars.log || least < 0 && most <= 0;
  const from = floats ? least - 0.08 * (most - least || 1) : Math.min(least, 0);
  const to = floats ? most : Math.max(most, 0);
  const left = box.x + room, width = box.w - room - 44, at = (value) => left + width * (value - from) / (to - from || 1);
  const zero = Math.max(left, Math.min(left + width, at(floats ? from : 0)));
  const marks = all.map((object, index) => {
    const end = at(values[index]), x = Math.min(zero, end);
    const size2 = {
      x,
      y: box.y + index * height,
      w: Math.max(Math.abs(end - zero), 1),
      h: Math.max(height * 0.8, 1)
    };
    return {
      ...object,
      ...size2,
      key: `bars ${object.id}`,
      shape: readable ? "bar" : "sliver",
      value: bars.values[index]
    };
  });
  if (bars.cut === null) return marks;
  const cut2 = {
    x: box.x,
    y: box.y + bars.cut * height - 0.1 * height,
    w: box.w,
    h: 0
  };
  return [
    ...marks,
    {
      ...PLAIN,
      ...cut2,
      key: "cut of bars",
      shape: "cut",
      label: "cut"
    }
  ];
}
function rulerMarks(ruler, box, measure) {
  const all = objects(ruler), total2 = ruler.sizes.reduce((sum, size2) => sum + size2, 0);
  const shown2 = Math.max(1, ruler.cut === null ? total2 : Math.min(total2, ruler.cut * 2)), scale = box.w / shown2;
  let start = 0;
  const marks = [];
  all.forEach((object, index) => {
    const size2 = ruler.sizes[index];
    if (start < shown2) {
      const width = Math.min(size2, shown2 - start) * scale, place = {
        x: box.x + start * scale,
        y: box.y,
        w: width,
        h: LINE
      };
      const label = measure(object.label, true) + 6 < width ? object.label : "";
      marks.push({
        ...object,
        ...place,
        label,
        key: `ruler ${object.id}`,
        shape: "segment",
        value: size2
      });
      if (start + size2 <= shown2 && width > 26) {
        const text = (start + size2).toLocaleString("en-US");
        const at = {
          x: box.x + (start + size2) * scale,
          y: box.y + LINE + 13,
          w: -1
        };
        marks.push({
          ...PLAIN,
          ...at,
          key: `total ${index}`,
          shape: "note",
          label: text
        });
      }
    }
    start += size2;
  });
  if (ruler.cut !== null) {
    const x = box.x + ruler.cut * scale, label = `${ruler.cut.toLocaleString("en-US")} tokens`;
    const beyond = x + measure(label, true) + 4 > box.x + box.w;
    const line2 = {
      ...PLAIN,
      x,
      y: box.y - 4,
      h: LINE + 32
    };
    marks.push({
      ...line2,
      key: "cut of ruler",
      shape: "cut",
      label: beyond ? "" : label
    });
    if (beyond) {
      marks.push({
        ...PLAIN,
        x: x - 4,
        y: line2.y + line2.h,
        w: -1,
        key: "label of cut",
        shape: "note",
        label
      });
    }
  }
  return {
    marks,
    height: LINE + 36
  };
}
function rowMarks({ rows, linked }, box, measure) {
  const values = rows.flatMap(({ values: values2 }) => values2 ?? []);
  const low = values.reduce((least, value) => Math.min(least, value), Infinity);
  const high = values.reduce((most, value) => Math.max(most, value), -Infinity);
  const named2 = rows.some(({ name }) => name), narrow = box.w < NARROW;
  const left = box.x + (named2 && !narrow ? NAME : 0), right = box.x + box.w;
  let y = box.y;
  const marks = [];
  rows.forEach((row2, number) => {
    if (named2) {
      if (narrow && row2.name) y += 14;
      marks.push({
        ...PLAIN,
        key: `name ${number} ${row2.name}`,
        shape: "note",
        x: box.x,
        y: narrow ? y - 3 : y + 14,
        label: row2.name
      });
    }
    const all = objects(row2), lettered = all.some(({ label }) => label);
    const cell2 = lettered ? 0 : Math.max(1.5, Math.min(16, (right - left) / Math.max(all.length, 1)));
    const widths = all.map(({ label }) => lettered ? Math.max(16, measure(label) + 9) : cell2);
    const spare = right - left - widths.reduce((sum, width) => sum + width, 0);
    const apart = linked ? Math.max(0, spare / Math.max(all.length, 1)) : 0;
    let x = left;
    all.forEach((object, index) => {
      const width = widths[index];
      if (x > left && x + width > right + 0.5) {
        x = left;
        y += LINE;
      }
      const value = row2.values?.[index] ?? null;
      const alpha = value === null ? object.alpha : object.alpha * (0.12 + 0.88 * (value - low) / (high - low || 1));
      const place = {
        x,
        y,
        w: width - (cell2 && cell2 < 5 ? 0 : 2),
        h: LINE - 5
      };
      marks.push({
        ...object,
        ...place,
        alpha,
        value,
        key: `row ${object.id}`,
        shape: value === null ? "chip" : "cell"
      });
      x += width + apart;
    });
    y += LINE + (linked && number < rows.length - 1 ? LINKED : 3);
  });
  return {
    marks,
    height: y - box.y
  };
}

// mechanism_canvas.js
var MOVE_MS = 800;
var REACH2 = 7;
var smooth = (t) => t * t * (3 - 2 * t);
function createPicture(host, { colours, hueOf, onHover, onPick }) {
  const canvas = host.appendChild(element("canvas", "kv-picture"));
  canvas.setAttribute("role", "img");
  const context = contextOf(canvas);
  let marks = [];
  let origins = /* @__PURE__ */ new Map();
  let gone = [];
  let picture = {
    panels: [],
    links: [],
    focus: []
  };
  let map = {
    positions: [],
    x: [],
    y: []
  };
  let lit = /* @__PURE__ */ new Set();
  let followed = /* @__PURE__ */ new Set();
  let height = 1, from = 1, progress = 1, running = 0;
  let arrived = () => {
  };
  function measure(text, small = false) {
    context.font = `${small ? 11 : 12}px ${colours().family}`;
    return context.measureText(text).width;
  }
  function show(next, keys, moving, done) {
    cancelAnimationFrame(running);
    const before = marks.map((mark) => between(mark));
    [picture, map, from] = [
      next,
      keys,
      height
    ];
    ({ marks, height } = layoutOf(picture.panels, map, host.clientWidth || 640, measure));
    const byKey = new Map(before.map((mark) => [
      mark.key,
      mark
    ]));
    const byObject = new Map(before.filter(({ id }) => id).map((mark) => [
      mark.id,
      mark
    ]));
    origins = new Map(marks.flatMap((mark) => {
      const origin = byKey.get(mark.key) ?? (mark.id ? byObject.get(mark.id) : void 0);
      return origin ? [
        [
          mark.key,
          origin
        ]
      ] : [];
    }));
    const kept = new Set(marks.map(({ key }) => key));
    gone = before.filter(({ key }) => !kept.has(key));
    arrived = done;
    if (!moving || !before.length) return end();
    const started = performance.now();
    const step = () => {
      progress = Math.min(1, (performance.now() - started) / MOVE_MS);
      if (progress >= 1) return end();
      paint();
      running = requestAnimationFrame(step);
    };
    progress = 0;
    step();
  }
  function end() {
    progress = 1;
    gone = [];
    paint();
    const done = arrived;
    arrived = () => {
    };
    done();
  }
  function between(mark) {
    if (progress >= 1) return mark;
    const origin = origins.get(mark.key), t = smooth(progress);
    if (!origin) return {
      ...mark,
      alpha: mark.alpha * t
    };
    const mix = (name) => origin[name] + (mark[name] - origin[name]) * t;
    const place = {
      x: mix("x"),
      y: mix("y"),
      w: mix("w"),
      h: mix("h"),
      alpha: mix("alpha")
    };
    return {
      ...mark,
      ...place,
      group: t < 0.5 ? origin.group : mark.group
    };
  }
  function paint() {
    const theme = colours(), ratio = devicePixelRatio || 1, width = host.clientWidth || 640;
    const shownHeight = from + (height - from) * smooth(progress);
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(shownHeight * ratio);
    canvas.style.height = `${shownHeight}px`;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, shownHeight);
    const fade = 1 - Math.min(1, progress * 2);
    for (const mark of gone) if (fade > 0) drawMark(context, {
      ...mark,
      alpha: mark.alpha * fade
    }, theme, hueOf);
    const now = marks.map(between);
    const byObject = new Map(now.filter(({ id }) => id).map((mark) => [
      mark.id,
      mark
    ]));
    for (const mark of now) if (mark.shape === "ground") drawMark(context, mark, theme, hueOf);
    picture.links.forEach((link, index) => drawLink(context, link, index, byObject, theme, smooth(progress)));
    for (const mark of now) if (mark.shape !== "ground") drawMark(context, mark, theme, hueOf);
    const focus = new Set(picture.focus);
    for (const mark of now) {
      if (lit.has(mark.id)) outline(context, mark, theme.text, 2);
      else if (followed.has(mark.id)) outline(context, mark, theme.brand, 2.5);
      else if (focus.has(mark.id)) outline(context, mark, theme.text, 1.5);
    }
  }
  function markAt(event) {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    let best = null, least = REACH2;
    for (const mark of marks) {
      if (!mark.id) continue;
      const dot = mark.shape === "dot" || mark.shape === "ring" || mark.shape === "star";
      const away = dot ? Math.max(0, Math.hypot(x - mark.x, y - mark.y) - mark.w) : Math.hypot(Math.max(mark.x - x, 0, x - mark.x - mark.w), Math.max(mark.y - y, 0, y - mark.y - mark.h));
      if (away < least || away === least && mark.shape === "ring") [best, least] = [
        mark,
        away
      ];
    }
    return best;
  }
  canvas.addEventListener("pointermove", (event) => onHover(markAt(event), event));
  canvas.addEventListener("pointerleave", (event) => isTouch(event) || onHover(null, event));
  canvas.addEventListener("click", (event) => {
    const mark = markAt(event);
    if (mark) onPick(mark);
    onHover(mark, event);
  });
  const resized = new ResizeObserver(() => {
    if (!picture.panels.length && !marks.length) return;
    const { marks: laidOut, height: high } = layoutOf(picture.panels, map, host.clientWidth || 640, measure);
    [marks, height, from] = [
      laidOut,
      high,
      high
    ];
    if (progress >= 1) paint();
  });
  resized.observe(host);
  return {
    canvas,
    show,
    paint,
    marks: () => marks,
    /** @param {Iterable<string>} ids */
    light(ids) {
      lit = new Set(ids);
      paint();
    },
    /** @param {Iterable<string>} ids */
    follow(ids) {
      followed = new Set(ids);
      paint();
    },
    close() {
      cancelAnimationFrame(running);
      resized.disconnect();
    }
  };
}

// mechanism_words.js
var REFERENCE = /\[\[(.*?)\|(.*?)\]\]/gs;
var SPEAK_MS = 1100;
var MEANING5 = {
  frame: "frame: one picture of the method at work, counted from 1; \u2190 and \u2192 go on and back",
  step: "decode step, counted from 0: the text's last tokens play the steps",
  play: "play or pause the frames (space)",
  motion: "whether things move to their new places, or are there at once",
  chapters: "the method's stages; press one to go to its first frame",
  picture: "the picture of this frame: point at something to read what it is; click a token to follow it",
  prompt: "the prompt, then the tokens that the steps feed; click a token of the prompt to follow it through all frames",
  follow: "followed: the token whose way through the method is shown, outlined in the picture"
};
function createWords(host, light) {
  const before = host.appendChild(element("p", "kv-told")), after = host.appendChild(element("p", "kv-told"));
  let references = [];
  let timer;
  function write2(line2, text) {
    line2.replaceChildren();
    let end = 0;
    for (const match of text.matchAll(REFERENCE)) {
      line2.append(text.slice(end, match.index));
      const node = line2.appendChild(element("span", "kv-refer", match[1])), objects2 = match[2].split(",");
      node.tabIndex = 0;
      node.addEventListener("pointerenter", () => speak(node, objects2));
      node.addEventListener("focus", () => speak(node, objects2));
      for (const end2 of [
        "pointerleave",
        "blur"
      ]) node.addEventListener(end2, () => speak(null, []));
      node.dataset.objects = match[2];
      references.push(node);
      end = match.index + match[0].length;
    }
    line2.append(text.slice(end));
  }
  function speak(node, objects2) {
    clearTimeout(timer);
    for (const each of references) each.toggleAttribute("data-spoken", each === node);
    light(objects2);
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
      write2(before, text);
      write2(after, result);
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
    close: () => clearTimeout(timer)
  };
}
function describe(panels) {
  const count = (number, kind) => `${number.toLocaleString("en-US")} ${kind.replace(/\d+$/, "")}${number === 1 ? "" : "s"}`;
  return panels.map((panel) => {
    if (panel.type === "plane") {
      return `Map, ${panel.title}: ${panel.dots.map(({ kind, numbers }) => count(numbers.length, kind)).join(", ")}`;
    }
    if (panel.type === "rows") {
      const rows = panel.rows.map(({ name, labels, numbers, kind }) => `${name ? `${name} ` : ""}${labels ? labels.slice(0, 12).join(" ") : count(numbers.length, kind)}`);
      return `Rows, ${panel.title}: ${rows.join("; ")}`;
    }
    const values = panel.type === "bars" ? panel.values : panel.sizes;
    const first = values.slice(0, 5).map((value, index) => `${panel.labels?.[index] ?? panel.numbers[index]} ${Number(value.toPrecision(3))}`);
    const cut2 = panel.cut === null ? "" : `, cut after ${Math.floor(panel.cut).toLocaleString("en-US")}`;
    return `${panel.type === "bars" ? "Bars" : "Ruler"}, ${panel.title}: ${first.join(", ")}${values.length > 5 ? ", \u2026" : ""}${cut2}`;
  }).join(". ");
}

// mechanism_controls.js
function createControls(root2, page, { go, toggle, step: pickStep, save }) {
  const top = root2.appendChild(element("div", "kv-head"));
  top.appendChild(element("h2", "kv-title", page.title));
  const menu = createSaveMenu(top, root2, save);
  const bar = root2.appendChild(element("div", "kv-controls"));
  const buttons = bar.appendChild(element("span", "kv-buttons"));
  const previous = button(buttons, "\u2039", "previous frame (\u2190)", () => go(-1));
  const next = button(buttons, "\u203A", "next frame (\u2192)", () => go(1));
  const play = button(buttons, "\u25B6", MEANING5.play, toggle);
  const label = bar.appendChild(element("label", "kv-step"));
  label.append(element("span", "", "frame"));
  explain(label, MEANING5.frame);
  const slider = label.appendChild(element("input"));
  Object.assign(slider, {
    type: "range",
    min: 1,
    step: 1
  });
  slider.setAttribute("aria-label", "frame");
  slider.setAttribute("aria-description", MEANING5.frame);
  slider.addEventListener("input", () => go(0, Number(slider.value) - 1));
  const count = label.appendChild(element("output"));
  const step = picker(bar, "step", page.steps, MEANING5.step, (value) => pickStep(Number(value)));
  let moves = !matchMedia("(prefers-reduced-motion: reduce)").matches;
  const motion = button(bar, "motion", MEANING5.motion, () => move(!moves));
  move(moves);
  const chapters = root2.appendChild(element("div", "kv-chapters"));
  chapters.setAttribute("role", "group");
  chapters.setAttribute("aria-label", "chapters");
  function move(on) {
    moves = on;
    motion.textContent = on ? "motion on" : "motion off";
    motion.setAttribute("aria-pressed", String(on));
  }
  function showChapters(scene) {
    const shown2 = [
      ...chapters.children
    ].map(({ textContent }) => textContent);
    if (shown2.join("\n") === scene.chapters.join("\n")) return;
    chapters.replaceChildren();
    for (const name of scene.chapters) {
      button(chapters, name, `chapter: ${name}`, () => go(0, scene.frames.findIndex(({ chapter }) => chapter === name)));
    }
  }
  return {
    bar,
    menu,
    moves: () => moves,
    /** @param {boolean} on */
    playing(on) {
      play.textContent = on ? "\u275A\u275A" : "\u25B6";
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
      slider.setAttribute("value", slider.value);
      slider.setAttribute("aria-valuetext", `frame ${now + 1} of ${last + 1}, ${chapter}`);
      count.textContent = `${now + 1} / ${last + 1}`;
      step.value = String(shownStep);
      markSelected(step);
      showChapters(scene);
      for (const each of chapters.children) {
        if (each.textContent === chapter) each.setAttribute("aria-current", "step");
        else each.removeAttribute("aria-current");
      }
    }
  };
}

// mechanism.js
var WORD_MS = 300;
var LEAST_MS = 2200;
function createMechanism(root2, host) {
  const page = host.get("page");
  let scene = JSON.parse(new TextDecoder().decode(host.bytes("content")));
  let now = Math.min(host.get("frame"), scene.frames.length - 1);
  let followed = host.get("token");
  let timer = null;
  root2.classList.add("kvviz", "kv-mechanism");
  keepKeys(root2);
  const controls = createControls(root2, page, {
    go,
    toggle,
    step: (step) => ask({
      step
    }),
    save
  });
  const wait = createWait(root2, back);
  const tip = createTip(root2);
  const heads = createHeadPanel(root2, page, {
    tip,
    pick: (layer, head) => ask({
      layer,
      head
    })
  });
  const pickers = createPlacePickers(controls.bar, page, (layer, head) => ask({
    layer,
    head
  }));
  const grid = root2.appendChild(element("div", "kv-grid"));
  const { panel: pictured, heading } = titledPanel(grid, "", "kv-stage-picture", MEANING5.picture);
  const chapter = heading.appendChild(element("span"));
  const picture = createPicture(pictured, {
    colours,
    hueOf: (group2) => group2 < 0 || group2 >= scene.hues.length ? null : scene.hues[group2] * 360 / HUES,
    onHover: (mark, at) => mark ? tip.show(about2(mark), at) : tip.hide(),
    onPick(mark) {
      const [kind, number] = mark.id.split(":");
      if (kind === "token") pick(Number(number));
    }
  });
  const words = createWords(pictured.appendChild(element("div", "kv-words")), picture.light);
  const spoken = root2.appendChild(element("p", "kv-spoken"));
  spoken.setAttribute("role", "status");
  const { panel: promptPanel, heading: promptHeading } = titledPanel(grid, "text", "kv-prompt", MEANING5.prompt);
  const strip = createStrip(promptPanel, {
    tokens: page.tokens,
    span: page.span,
    label: "text",
    onHover: (position, at) => position === null ? tip.hide() : tip.show(aboutToken2(position), at),
    onPick: pick
  });
  createFind(promptHeading, root2, {
    tokens: page.tokens,
    strips: () => [
      strip
    ]
  });
  const legend3 = createLegend(marksOf(page.merges), `hue: group (${HUES}, then they repeat) \xB7 outlined: followed`, MEANING5.follow);
  root2.append(legend3, ...page.notes.filter(Boolean).map((note) => element("p", "kv-note", note)));
  const unwatch = watchTheme(root2, picture.paint);
  function colours() {
    const style = getComputedStyle(root2), read = (name) => style.getPropertyValue(name).trim();
    return {
      text: read("--kv-text"),
      muted: read("--kv-muted"),
      line: read("--kv-line"),
      brand: read("--kv-brand"),
      ground: read("--kv-ground"),
      raised: read("--kv-raised"),
      dark: root2.dataset.theme === "dark",
      family: style.fontFamily
    };
  }
  function paint(moving) {
    const frame2 = scene.frames[now];
    chapter.textContent = frame2.chapter;
    words.show(frame2.text, frame2.result, moving);
    picture.show(frame2, scene.map, moving, () => {
      words.arrive(controls.moves());
      if (timer !== null) next();
    });
    const described = describe(frame2.panels);
    picture.canvas.setAttribute("aria-label", described || "no picture: see the text");
    picture.canvas.hidden = !frame2.panels.length;
    const { positions = [], looks: looks2 = [], marks = [] } = frame2.lit ?? {};
    strip.paint(positions, looks2, marks);
    follow2();
    const { layer, head, step } = scene.where;
    heads.paint(layer, head);
    pickers(layer, head);
    controls.paint(now, scene, step);
    tip.hide();
    const place = Object.entries({
      layer,
      head,
      step
    }).map(([name, value]) => `${name}=${value}`).join(", ");
    const played = page.queries === null ? "" : `, queries=${page.queries}`;
    controls.menu.line.textContent = `${page.call}, ${place}, token=${followed}, frame=${now}${played})`;
  }
  function follow2() {
    const owners = Object.entries(scene.members).flatMap(([kind, numbers]) => (numbers[followed] ?? -1) >= 0 ? [
      `${kind}:${numbers[followed]}`
    ] : []);
    const token = `token:${followed}`, shown2 = picture.marks().some(({ id }) => id === token);
    picture.follow(shown2 ? [
      token
    ] : owners);
    strip.light(followed >= 0 ? [
      followed
    ] : []);
  }
  function aboutToken2(position) {
    const rows = [
      [
        "token",
        visible(page.tokens[position])
      ],
      [
        "position",
        format(position)
      ]
    ];
    for (const [kind, numbers] of Object.entries(scene.members)) {
      if ((numbers[position] ?? -1) >= 0) rows.push([
        kind,
        `#${numbers[position]}`
      ]);
    }
    return rows;
  }
  function about2(mark) {
    const [kind, text] = mark.id.split(":"), number = Number(text);
    const rows = kind === "token" && number < page.tokens.length ? aboutToken2(number) : [
      [
        kind,
        `#${text}`
      ]
    ];
    if (kind !== "token" && mark.label && mark.label !== `#${text}`) rows.push([
      "shown as",
      visible(mark.label)
    ]);
    if (mark.value !== null) rows.push([
      "value",
      decimals(mark.value)
    ]);
    return rows;
  }
  function pick(position) {
    if (position >= page.prompt_length) return;
    followed = position;
    follow2();
    host.tell({
      token: position
    });
  }
  function go(by, to = now) {
    const frame2 = Math.max(0, Math.min(scene.frames.length - 1, to + by));
    if (frame2 === now) return;
    now = frame2;
    paint(controls.moves());
    spoken.textContent = `${scene.frames[now].chapter}, frame ${now + 1} of ${scene.frames.length}. ${scene.frames[now].words}`;
    host.tell({
      frame: frame2
    });
  }
  function next() {
    const reading = scene.frames[now].words.split(/\s+/).length * WORD_MS;
    timer = setTimeout(() => {
      if (now === scene.frames.length - 1) return stop();
      go(1);
      if (!controls.moves() && timer !== null) next();
    }, Math.max(LEAST_MS, reading));
  }
  function toggle() {
    if (timer !== null) return stop();
    if (now === scene.frames.length - 1) go(0, 0);
    controls.playing(true);
    next();
  }
  function stop() {
    if (timer !== null) clearTimeout(timer);
    timer = null;
    controls.playing(false);
  }
  function ask(place) {
    stop();
    wait.begin(host);
    root2.dataset.busy = "";
    host.tell(place);
  }
  function back() {
    const { layer, head, step } = scene.where;
    heads.paint(layer, head);
    pickers(layer, head);
    controls.paint(now, scene, step);
  }
  function save(format2) {
    const { layer, head, step } = scene.where;
    const name = `mechanism-${scene.title.toLowerCase().replace(/\W+/g, "-")}-layer-${layer}-head-${head}-step-${step}`;
    return saveAs(format2, controls.menu, root2, host, `${name}-frame-${now + 1}`);
  }
  root2.addEventListener("keydown", (event) => {
    const { tagName: tag } = targetOf(event), move = stepKeys(scene.frames.length)[event.key];
    if (hasModifier(event) || tag === "SELECT") return;
    if (event.key === " " && tag !== "BUTTON" && tag !== "SUMMARY" && tag !== "INPUT") toggle();
    else if (move && !(tag === "INPUT" && targetOf(event).getAttribute("type") !== "range")) {
      stop();
      go(...move);
    } else return;
    event.preventDefault();
  });
  host.on("content", () => {
    wait.end();
    scene = JSON.parse(new TextDecoder().decode(host.bytes("content")));
    now = Math.min(now, scene.frames.length - 1);
    followed = host.get("token");
    paint(false);
  });
  host.on("frame", () => go(0, host.get("frame")));
  paint(false);
  requestAnimationFrame(() => followed >= 0 && strip.focus(followed, false));
  return () => {
    stop();
    wait.close();
    words.close();
    picture.close();
    unwatch();
  };
}

// misses_words.js
var MEANING6 = {
  evidence: "the prompt; tinted are the tokens without which full attention gives the answer a lower log-probability, the more the stronger; click one to follow it",
  heads: "one column per layer, one row per KV head: the log-probability that comes back if this head alone attends to the oracle's tokens, in one pass in which all other heads keep their choices; framed: the heads that bring the answer back together; hollow: restoring it makes the answer less likely",
  journey: "where this head lost the picked token: each stage of the method's choice, with its numbers at this step; the bar has one mark per step",
  answers: "what is written, and the log-probability of the answer: the sum over its tokens, in nats; 0 would be certain",
  logprob: "the log-probability of the answer: the sum over its tokens, in nats; 0 would be certain",
  score: "the method's score of the token, its rank among the tokens ranked, and the lowest score attended to",
  stage: "a stage of the method's choice, and what it did with the token",
  causes: "what each cause took from the answer's log-probability, in nats",
  verdict: "what became of the token in this head, at this step",
  changes: "other changes: pin or drop the picked token, or take all changes back",
  restore: "let the picked head attend to the oracle's tokens, as many as the method attends to, and decode again",
  pin: "let every head attend to the picked token, on top of the budget, and decode again",
  drop: "let no head attend to the picked token, and decode again",
  reset: "take all changes back",
  exact: "exact: the token's weight and rank in this head's exact attention, averaged over its query heads",
  here: "here: the weight that the method gives the token; a merged token has a part of its centroid's"
};
var OUTCOME = {
  "attended": "attended",
  "not wanted": "not wanted: this head's exact attention does not use it either",
  "not kept": "not kept: it was evicted, or merged into a centroid",
  "badly grouped": "badly grouped: alone it is among the best, its group is not",
  "badly scored": "badly scored: by exact scores it would have been taken",
  "trimmed": "trimmed: its group was chosen and cut before it",
  "crowded out": "crowded out: sinks, recent window and generated tokens left no room for it"
};
var MARK = {
  "attended": "\u25CF",
  "not wanted": "\xB7",
  "not kept": "\u2205",
  "badly grouped": "G",
  "badly scored": "S",
  "trimmed": "T",
  "crowded out": "C"
};
function nats(value, sign = true) {
  const digits = Math.abs(value) < 9.95 ? 2 : 1;
  const text = Math.abs(value).toFixed(digits);
  const minus = value < 0 && Number(text) !== 0;
  return `${minus ? "\u2212" : sign && Number(text) !== 0 ? "+" : ""}${text}`;
}
function total(value) {
  return nats(value, false);
}

// misses_answers.js
function createAnswers(host, page) {
  const box = explainTogether(host.appendChild(element("div")), "answers and their log-probabilities");
  const list = box.appendChild(element("dl", "kv-answerlist"));
  line2("full attention", `${quoted(page.answer)} \xB7 ${total(page.full)}`);
  line2(page.method, `${quoted(page.texts.method)} \xB7 ${total(page.here)}`);
  if (page.texts.pinned !== void 0) line2("all evidence pinned", quoted(page.texts.pinned));
  if (page.smallest === null) line2("heads restored", "even all heads do not bring the answer back at this budget");
  else if (page.smallest.length && page.restored_answer !== null) {
    const heads = page.smallest.length === 1 ? "1 head" : `${page.smallest.length} heads`;
    line2(`${heads} restored`, `${quoted(page.answer)} \xB7 ${total(page.restored_answer)}`);
    const right = page.control.filter(({ answered }) => answered).length;
    const sums = page.control.map(({ logprob }) => total(page.here + logprob)).join(", ");
    if (page.control.length) line2(`${heads} at random`, `${right} of ${page.control.length} give the answer \xB7 ${sums}`);
  }
  const changed = line2("your changes", "").appendChild(element("span"));
  changed.setAttribute("role", "status");
  function line2(name, text) {
    list.append(element("dt", "kv-name", name));
    return list.appendChild(explainNumber(element("dd", "", text), MEANING6.logprob, "layers", "answer"));
  }
  function nameOf2({ kind, layer, head, position }) {
    if (kind === "restore") return `layer ${layer}, head ${head} restored`;
    const token = quoted(page.tokens[position ?? 0]);
    return `${token} at ${position} ${kind === "pin" ? "pinned" : "dropped"}`;
  }
  return {
    /**
     * @param {Change[]} changes
     * @param {Result} result
     */
    paint(changes, result) {
      if (!changes.length) {
        changed.textContent = "none yet: restore the picked head, or pin or drop the picked token (in Changes)";
        return;
      }
      const names = changes.map(nameOf2).join(", ");
      const whose = !page.live && changes[0].kind === "drop" ? "with full attention" : "";
      const numbers = result.refusal ? result.refusal : result.logprob === void 0 ? "the diagnosis does not know" : [
        result.text === void 0 ? "" : quoted(result.text),
        total(result.logprob),
        whose,
        result.answered ? "the answer is back" : ""
      ].filter(Boolean).join(" \xB7 ");
      changed.textContent = `${names}: ${numbers}`;
    }
  };
}

// misses_heads.js
function createHeads(host, page, { tip, pick }) {
  const all = page.restored.filter(([, , stage]) => stage === "all");
  const gainOf = ({ layer, head }) => all.find((row2) => row2[0] === layer && row2[1] === head)?.[3] ?? 0;
  const map = createHeadMap(host, {
    layers: page.layers,
    heads: Array.from({
      length: page.heads
    }, (_, head) => head),
    headName: "KV head",
    label: "layers and KV heads: the log-probability that restoring each brings back",
    about: about2,
    pick,
    tip
  });
  map.draw(gainOf, Math.max(1e-9, ...all.map(([, , , gained]) => Math.abs(gained))));
  const smallest = new Set((page.smallest ?? []).map(String));
  map.mark("data-smallest", ({ layer, head }) => smallest.has(String([
    layer,
    head
  ])));
  function about2({ layer, head }) {
    const stages = page.restored.filter(([l, h, stage]) => l === layer && h === head && stage !== "all");
    return [
      [
        "restored",
        `${nats(gainOf({
          layer,
          head
        }))} nats`
      ],
      ...stages.map(([, , stage, gained]) => (
        /** @type {[string, string]} */
        [
          `${stage} exact`,
          `${nats(gained)}`
        ]
      ))
    ];
  }
  return {
    paint: map.paint,
    /** @param {Change[]} changes */
    changed(changes) {
      map.mark("data-restored", (place) => changes.some(({ kind, layer, head }) => kind === "restore" && layer === place.layer && head === place.head));
    }
  };
}

// misses_journey.js
function createJourney({ heading, panel }, page, losses, { pick }) {
  const steps2 = panel.appendChild(element("div", "kv-steprow"));
  steps2.setAttribute("role", "group");
  steps2.setAttribute("aria-label", "steps: where the token was lost");
  const stagesBox = explainTogether(panel.appendChild(element("div")), "stages of the choice");
  const stages = stagesBox.appendChild(element("ol", "kv-stages"));
  const causesBox = explainTogether(panel.appendChild(element("div")), "what each cause took");
  const waterfall = causesBox.appendChild(element("ol", "kv-causes"));
  for (const [name, value] of [
    [
      "full attention",
      page.full
    ],
    ...page.causes,
    [
      "here",
      page.here
    ]
  ]) {
    const item = waterfall.appendChild(element("li"));
    const end = name === "full attention" || name === "here";
    item.append(element("span", "kv-name", String(name)), element("span", "kv-number", nats(Number(value), !end)));
    explainNumber(item, end ? MEANING6.logprob : MEANING6.causes, "layers", "answer");
  }
  waterfall.appendChild(element("li")).append(tagOf(waterfall, "layers", "answer"));
  function indexOf2({ layer, head, position }, step, row2) {
    const [, layers, rows, tokens] = losses.shapes.stage;
    const token = page.evidence.findIndex((entry) => entry.position === position);
    const line2 = head * page.rows_per_head + row2;
    return ((step * layers + page.layers.indexOf(layer)) * rows + line2) * tokens + token;
  }
  function outcomesAt(picked, step) {
    const rows = Array.from({
      length: page.rows_per_head
    }, (_, row2) => indexOf2(picked, step, row2));
    return rows.map((index) => page.outcomes[losses.stage[index]]);
  }
  function paintSteps(picked) {
    steps2.replaceChildren(...Array.from({
      length: page.steps
    }, (_, step) => {
      const [outcome] = outcomesAt(picked, step).toSorted((a, b) => Number(b === "attended") - Number(a === "attended"));
      const node = element("button", "", MARK[outcome]);
      node.type = "button";
      node.tabIndex = -1;
      node.dataset.outcome = outcome;
      const told = `step ${step}, feeds ${quoted(page.fed[step])}: ${OUTCOME[outcome]}`;
      explain(node, told).setAttribute("aria-label", told);
      if (step >= page.asked) node.dataset.answer = "";
      if (step === picked.step) node.dataset.picked = "";
      node.addEventListener("click", () => pick({
        step
      }));
      return node;
    }));
    reveal();
    requestAnimationFrame(reveal);
  }
  function reveal() {
    const picked = (
      /** @type {HTMLElement | null} */
      steps2.querySelector("[data-picked]")
    );
    if (picked) steps2.scrollLeft = picked.offsetLeft - steps2.offsetLeft - (steps2.clientWidth - picked.offsetWidth) / 2;
  }
  function linesOf2(index) {
    const outcome = page.outcomes[losses.stage[index]];
    const exact = `weight ${decimals(losses.exact_weight[index])}, rank ${format(losses.exact_rank[index])}`;
    if (outcome === "not wanted") return [
      [
        "lost",
        "exact attention",
        `${exact}: not wanted by this head`
      ]
    ];
    const lines = [
      [
        "passed",
        "exact attention",
        `${exact}: wanted`
      ]
    ];
    if (outcome === "crowded out") return [
      ...lines,
      [
        "lost",
        "room",
        OUTCOME[outcome]
      ]
    ];
    let lost = false;
    for (const { name, verdict: verdict3 } of page.stages) {
      const here = verdict3 === outcome;
      lines.push([
        here ? "lost" : lost ? "after" : "passed",
        name,
        here ? verdict3 : lost ? "" : "\u2713"
      ]);
      lost ||= here;
    }
    const numbers = numbersOf(index);
    if (numbers) lines.push([
      outcome === "attended" ? "passed" : "lost",
      "its score",
      numbers
    ]);
    lines.push([
      outcome === "attended" ? "passed" : "lost",
      "given",
      `weight ${decimals(losses.weight[index])}`
    ]);
    return lines;
  }
  function numbersOf(index) {
    if (Number.isNaN(losses.score[index])) return "";
    const parts = [
      `${decimals(losses.score[index])}, rank ${format(losses.rank[index])}`
    ];
    if (losses.group[index] >= 0) {
      const cut2 = losses.group_cut[index] >= 0 ? `, last taken ${format(losses.group_cut[index])}` : "";
      parts.push(`${page.group_name} #${losses.group[index]}: rank ${format(losses.group_rank[index])}${cut2}`);
    }
    if (!Number.isNaN(losses.cut[index])) parts.push(`cut at ${decimals(losses.cut[index])}`);
    return parts.join(" \xB7 ");
  }
  return {
    /** @param {Picked} picked */
    paint(picked) {
      const { layer, head, position, step } = picked;
      const place = `${quoted(page.tokens[position])} at ${format(position)}, in layer ${layer}, KV head ${head} `;
      heading.replaceChildren(place, tagOf(stages, "head", "step"));
      paintSteps(picked);
      stages.replaceChildren();
      for (let row2 = 0; row2 < page.rows_per_head; row2++) {
        const index = indexOf2(picked, step, row2), outcome = page.outcomes[losses.stage[index]];
        const verdict3 = stages.appendChild(element("li", "kv-verdict"));
        const of = page.rows_per_head > 1 ? `query head ${head * page.rows_per_head + row2}: ` : "";
        explainNumber(verdict3, MEANING6.verdict, "head", "step");
        verdict3.append(element("span", "kv-mark", MARK[outcome]), element("strong", "", `${of}${OUTCOME[outcome] ?? outcome}`));
        for (const [state, name, numbers] of linesOf2(index)) {
          const item = stages.appendChild(element("li", "kv-stage"));
          item.dataset.state = state;
          explainNumber(item, meaningOf2(name), "head", "step");
          item.append(element("span", "kv-name", name), element("span", "", numbers));
        }
      }
    }
  };
}
function meaningOf2(name) {
  const named2 = {
    "exact attention": MEANING6.exact,
    given: MEANING6.here,
    "its score": MEANING6.score
  };
  return named2[
    /** @type {keyof typeof named} */
    name
  ] ?? MEANING6.stage;
}

// misses.js
var DECODED_MS = 3e4;
function createMisses(root2, host) {
  const page = host.get("page");
  const losses = (
    /** @type {Losses} */
    unpack(host.bytes("losses"))
  );
  const picked = () => ({
    layer: host.get("layer"),
    head: host.get("head"),
    position: host.get("position"),
    step: host.get("step")
  });
  root2.classList.add("kvviz", "kv-misses");
  keepKeys(root2);
  const top = root2.appendChild(element("div", "kv-head"));
  const lost = `log-probability of ${quoted(page.answer)}: full attention ${total(page.full)}, here ${total(page.here)}`;
  const title = top.appendChild(element("h2", "kv-title", `${page.title} \xB7 ${lost} `));
  explainNumber(tagged(title, "layers", "answer"), MEANING6.logprob, "layers", "answer");
  const { sheet, close } = createMenu(top, root2, "Changes", MEANING6.changes);
  const menu = createSaveMenu(top, root2, save);
  const bar = root2.appendChild(element("div", "kv-controls"));
  const slider = createStepSlider(bar, page.steps, (by, to) => pick({
    step: clamp(to ?? picked().step + by)
  }));
  const fed = bar.appendChild(element("span", "kv-fed"));
  button(bar, "Restore", MEANING6.restore, () => {
    const { layer, head } = picked();
    change({
      kind: "restore",
      layer,
      head
    });
  });
  inSheet("Pin the picked token", MEANING6.pin, () => change({
    kind: "pin",
    position: picked().position
  }));
  inSheet("Drop the picked token", MEANING6.drop, () => change({
    kind: "drop",
    position: picked().position
  }));
  const reset = inSheet("Take back all changes", MEANING6.reset, () => tellChanges([]));
  let requested = host.get("changes");
  let painted = requested;
  const wait = createWait(root2, () => requested = painted, DECODED_MS);
  const grid = root2.appendChild(element("div", "kv-grid"));
  const text = titledPanel(grid, "evidence in the text", "kv-prompt", MEANING6.evidence);
  const heads = titledPanel(grid, "layers \xD7 KV heads: what restoring one brings back ", "kv-heads", MEANING6.heads);
  const journey = titledPanel(grid, "", "kv-journey", MEANING6.journey);
  const answers = titledPanel(grid, "answers ", "kv-answers", MEANING6.answers);
  for (const { heading, panel } of [
    heads,
    answers
  ]) heading.append(tagOf(panel, "layers", "answer"));
  root2.append(...page.notes.map((note) => element("p", "kv-note", note)));
  const tip = createTip(root2);
  const byPosition = new Map(page.evidence.map((token) => [
    token.position,
    token
  ]));
  const strip = createStrip(text.panel, {
    tokens: page.tokens,
    label: "prompt with the tokens that the answer needs",
    onHover: (position, event) => {
      const token = byPosition.get(position ?? -1);
      if (position === null) tip.hide();
      else {
        tip.show([
          [
            "token",
            visible(page.tokens[position])
          ],
          [
            "position",
            format(position)
          ],
          [
            "full attention",
            token ? `loses ${nats(token.logprob, false)} without it` : "hardly needs it"
          ],
          ...token ? [
            /** @type {[string, string]} */
            [
              "pinned",
              `brings back ${nats(token.pinned)}`
            ]
          ] : [],
          [
            "numbers",
            `of ${scopeText("layers", "answer")}`
          ]
        ], event);
      }
    },
    onPick: (position) => byPosition.has(position) && pick({
      position
    })
  });
  strip.paint(page.evidence.map(({ position }) => position), page.evidence.map(({ look }) => look), page.evidence.map(() => ATTENDED | ORACLE));
  createFind(text.heading, root2, {
    tokens: page.tokens,
    strips: () => [
      strip
    ]
  });
  const map = createHeads(heads.panel, page, {
    tip,
    pick
  });
  const way = createJourney(journey, page, losses, {
    pick
  });
  const shown2 = createAnswers(answers.panel, page);
  const unwatch = watchTheme(root2);
  function inSheet(text2, meaning, pressed) {
    return button(sheet, text2, meaning, () => {
      close();
      pressed();
    });
  }
  function clamp(step) {
    return Math.max(0, Math.min(page.steps - 1, step));
  }
  function pick(changes) {
    host.tell(changes);
    show();
  }
  function change(made) {
    const before = page.live ? requested : [];
    const others = before.filter((other) => place(other) !== place(made));
    const again = before.some((other) => place(other) === place(made) && other.kind === made.kind);
    tellChanges(again ? others : [
      ...others,
      made
    ]);
  }
  function tellChanges(changes) {
    requested = changes;
    if (page.live) {
      wait.begin(host);
      root2.dataset.busy = "";
    }
    host.tell({
      changes
    });
    if (!page.live) paintAnswers();
  }
  function place({ layer, head, position }) {
    return position === void 0 ? `head ${layer} ${head}` : `token ${position}`;
  }
  function save(format2) {
    const { layer, head } = picked();
    return saveAs(format2, menu, root2, host, `miss-inspector-layer-${layer}-head-${head}`);
  }
  function paintAnswers() {
    wait.end();
    const changes = requested = painted = host.get("changes");
    reset.disabled = changes.length === 0;
    shown2.paint(changes, page.live ? host.get("result") : stored(page, changes));
    map.changed(changes);
  }
  function show() {
    const now = picked();
    strip.light([
      now.position
    ]);
    const about2 = now.step < page.asked ? "of the question" : "of the answer";
    fed.textContent = `feeds ${quoted(page.fed[now.step])}`;
    explain(fed, `this step feeds a token ${about2}`);
    slider.show(now.step, `, feeds ${page.fed[now.step]}`);
    map.paint(now);
    way.paint(now);
    const { layer, head, position, step } = now;
    menu.line.textContent = `${page.call}layer=${layer}, head=${head}, position=${position}, step=${step})`;
  }
  root2.addEventListener("keydown", (event) => {
    const [by, to] = stepKeys(page.steps)[event.key] ?? [];
    if (by === void 0 || hasModifier(event) || [
      "SELECT",
      "INPUT"
    ].includes(targetOf(event).tagName)) return;
    if (heads.panel.contains(targetOf(event))) return;
    pick({
      step: clamp(to ?? picked().step + by)
    });
    event.preventDefault();
  });
  for (const name of [
    "layer",
    "head",
    "position",
    "step"
  ]) host.on(name, show);
  host.on("changes", () => page.live || paintAnswers());
  host.on("result", paintAnswers);
  show();
  paintAnswers();
  requestAnimationFrame(() => strip.focus(picked().position, false));
  return () => {
    wait.close();
    unwatch();
  };
}
function stored(page, [change]) {
  if (!change) return {};
  if (change.kind === "restore") {
    const row2 = page.restored.find(([layer, head, stage]) => layer === change.layer && head === change.head && stage === "all");
    return row2 ? {
      logprob: page.here + row2[3],
      answered: row2[4]
    } : {};
  }
  const token = page.evidence.find(({ position }) => position === change.position);
  if (!token) return {};
  return {
    logprob: change.kind === "pin" ? page.here + token.pinned : page.full - token.logprob
  };
}

// page.js
var shown = [];
async function pageModel({ state, answers }) {
  const values = {};
  shown.push(values);
  Object.assign(values, await withBytes(state));
  const events = new EventTarget();
  let current = [];
  async function answer(again = false) {
    const matching = answers.filter(({ when }) => matches(values, when));
    const same = matching.length === current.length && matching.every((each, index) => each === current[index]);
    if (same && !again) return;
    current = matching;
    const changes = await withBytes(Object.assign({}, ...matching.map(({ then }) => then)));
    if (current !== matching) return;
    Object.assign(values, changes);
    for (const name of Object.keys(changes)) events.dispatchEvent(new Event(`change:${name}`));
  }
  await answer();
  return {
    page: savedPage,
    get: (name) => values[name],
    set(name, value) {
      values[name] = value;
    },
    save_changes() {
      answer();
      events.dispatchEvent(new Event("told"));
    },
    send({ place }) {
      Object.assign(values, place);
      answer(true);
    },
    /** Call `react` after each change by the widget itself. */
    told: (react) => events.addEventListener("told", react),
    /** Take over values, as if a kernel had sent them. */
    take(changes) {
      Object.assign(values, changes);
      for (const name of Object.keys(changes)) events.dispatchEvent(new Event(`change:${name}`));
    },
    on: (event, react) => events.addEventListener(event, react),
    off: (event, react) => events.removeEventListener(event, react)
  };
}
function savedPage() {
  const page = (
    /** @type {HTMLElement} */
    document.documentElement.cloneNode(true)
  );
  page.querySelector("#kvviz-root")?.replaceChildren();
  for (const node of [
    page,
    ...page.querySelectorAll("body")
  ]) {
    for (const { name } of [
      ...node.attributes
    ]) if (name !== "lang") node.removeAttribute(name);
  }
  const data2 = (
    /** @type {HTMLElement} */
    page.querySelector("#kvviz-page")
  ), content = JSON.parse(data2.textContent);
  content.widgets.forEach(({ state }, index) => {
    for (const name of Object.keys(state)) if (!hasBytes(shown[index][name])) state[name] = shown[index][name];
  });
  data2.textContent = JSON.stringify(content).replace(/[<>&]/g, (sign) => `\\u00${sign.charCodeAt(0).toString(16)}`);
  page.querySelectorAll("body > iframe").forEach((frame2) => frame2.remove());
  return `<!doctype html>
${page.outerHTML}`;
}
function hasBytes(value) {
  return Array.isArray(value) ? value.some(hasBytes) : value instanceof Uint8Array;
}
function matches(values, when) {
  return Object.entries(when).every(([name, value]) => value instanceof Object ? matches(values[name], value) : values[name] === value);
}
async function withBytes(values) {
  const read = (value) => Array.isArray(value) ? Promise.all(value.map(read)) : value?.blob === void 0 ? value : readBlob(value.blob);
  const entries = Object.entries(values).map(async ([name, value]) => [
    name,
    await read(value)
  ]);
  return Object.fromEntries(await Promise.all(entries));
}
async function readBlob(key) {
  const text = document.querySelector(`script[data-slice="${key}"]`)?.textContent;
  if (!text) throw new Error(`this page does not contain the bytes of ${key}`);
  const bytes2 = Uint8Array.fromBase64?.(text) ?? Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([
    bytes2
  ]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// prediction_choice.js
function createChoice(host, { text, measured, options }, changed) {
  const group2 = host.appendChild(element("div", "kv-options"));
  group2.setAttribute("role", "radiogroup");
  group2.setAttribute("aria-label", text);
  const name = `kv-choice-${Math.random().toString(36).slice(2)}`;
  const rows = options.map((option) => {
    const row2 = group2.appendChild(element("label", "kv-option"));
    const button2 = row2.appendChild(element("input"));
    Object.assign(button2, {
      type: "radio",
      name
    });
    row2.append(element("span", "", option));
    button2.addEventListener("change", () => {
      said = option;
      paint();
      changed(option, option);
    });
    return {
      option,
      row: row2,
      button: button2
    };
  });
  let said;
  function paint() {
    for (const { option, button: button2 } of rows) {
      button2.checked = option === said;
      button2.toggleAttribute("checked", button2.checked);
    }
    host.toggleAttribute("data-open", said === void 0);
  }
  paint();
  return {
    set(value) {
      said = value;
      paint();
    },
    lock(locked) {
      for (const { button: button2 } of rows) button2.disabled = locked;
    },
    reveal() {
      const right = rows.find(({ option }) => option === measured)?.row;
      right?.setAttribute("data-measured", "");
      right?.append(element("span", "kv-tag", "\u25C6 measured"));
      return said === measured ? `You said ${said}, and that was measured.` : `You said ${said}, measured ${measured}.`;
    },
    hide() {
      for (const { row: row2 } of rows) {
        row2.removeAttribute("data-measured");
        row2.querySelector(".kv-tag")?.remove();
      }
    }
  };
}

// prediction_words.js
var OPEN = "not answered yet";
var HINT = {
  value: "Move the slider, or press Enter where it is.",
  choice: "Pick one.",
  order: "The lowest first; at first they are in alphabetical order. Drag a name, or use its buttons.",
  curve: "Drag the points, or draw across them. Keys: \u2191 and \u2193 move a point (with Shift, further), \u2190 and \u2192 go to the next."
};
function fixed(value, digits) {
  const text = value.toLocaleString("en-US", {
    minimumFractionDigits: digits,
    maximumFractionDigits: digits
  });
  return /[1-9]/.test(text) ? text : text.replace("-", "");
}
function measuredText(value, digits = 0) {
  const needed = value ? 1 - Math.floor(Math.log10(Math.abs(value))) : 0;
  return value.toLocaleString("en-US", {
    minimumFractionDigits: Math.min(digits, 6),
    maximumFractionDigits: Math.max(digits, Math.min(needed, 8))
  });
}
function axisText(value) {
  return Number.isInteger(value) ? format(value) : String(Number(value.toPrecision(3)));
}
function distanceText(said, measured, digits, log) {
  if (log) {
    const ratio = said / measured, times = measuredText(Math.max(ratio, 1 / ratio));
    if (times === "1") return "just as measured";
    return ratio > 1 ? `${times} times what was measured` : `what was measured is ${times} times as much`;
  }
  const apart = measuredText(Math.abs(said - measured), digits);
  if (!/[1-9]/.test(apart)) return "just as measured";
  return `${apart} ${said > measured ? "more" : "less"} than was measured`;
}
function pairsText(names, measured) {
  const numbers = new Map(measured);
  let right = 0, all = 0;
  names.forEach((name, place) => {
    for (const after of names.slice(place + 1)) {
      const by = Number(numbers.get(after)) - Number(numbers.get(name));
      all += Number(by !== 0);
      right += Number(by > 0);
    }
  });
  return `You ordered ${right} of ${all} ${all === 1 ? "pair" : "pairs"} as measured.`;
}
function curveText(drawn, measured, name) {
  const apart = drawn.map((value, index) => value - measured[index]);
  const mean = apart.reduce((sum, each) => sum + Math.abs(each), 0) / apart.length;
  const which = name === "measured" ? "the measured curve" : `the measured curve of ${name}`;
  const above = apart.filter((each) => each > 0).length, below = apart.filter((each) => each < 0).length;
  if (!above && !below) return `You drew ${which}.`;
  const side = above >= below ? `above it at ${above}` : `below it at ${below}`;
  return `On average you are ${measuredText(mean)} away from ${which}: ${side} of ${apart.length} points.`;
}

// prediction_axes.js
var TALL2 = 232;
var MARGIN3 = {
  left: 50,
  right: 18,
  top: 12,
  bottom: 38
};
var STEPS = 4;
var LETTER = 7;
var DASHES = {
  dash: "8 5",
  dot: "2 4",
  dashdot: "8 4 2 4",
  longdash: "13 5",
  longdashdot: "13 4 2 4"
};
var SYMBOLS = {
  square: "M-4-4h8v8h-8z",
  diamond: "M0-6 6 0 0 6-6 0z",
  "diamond-tall": "M0-7 4 0 0 7-4 0z",
  "triangle-up": "M0-5.5 5.5 4.5h-11z",
  "triangle-down": "M0 5.5 5.5-4.5h-11z",
  x: "M-5-3-3-5 0-2 3-5 5-3 2 0 5 3 3 5 0 2-3 5-5 3-2 0z",
  cross: "M-1.6-5.5h3.2v3.9h3.9v3.2h-3.9v3.9h-3.2v-3.9h-3.9v-3.2h3.9z",
  star: "M0-6 1.6-2h4.2L2.5.7 3.7 5 0 2.4-3.7 5-2.5.7-5.8-2h4.2z",
  "line-ew": "M-6-1h12v2h-12z",
  pentagon: "M0-5.5 5.4-1.6 3.4 4.6h-6.8L-5.4-1.6z",
  hexagon: "M-5.5 0-2.7-4.8h5.4L5.5 0 2.7 4.8h-5.4z",
  hourglass: "M-4.5-5h9L-4.5 5h9z",
  bowtie: "M-5-4.5v9L5-4.5v9z"
};
var CIRCLE = "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0z";
function scalesOf2({ x, low, high, log_x: log }, width) {
  const at = (value) => log ? Math.log(value) : value;
  const first = at(x[0]), last = at(x[x.length - 1]);
  const inner = width - MARGIN3.left - MARGIN3.right - 16, tall = TALL2 - MARGIN3.top - MARGIN3.bottom;
  return {
    width,
    /** @param {number} value */
    x: (value) => MARGIN3.left + 8 + inner * (at(value) - first) / (last - first),
    /** @param {number} value */
    y: (value) => MARGIN3.top + tall * (high - value) / (high - low),
    /** @param {number} top */
    value: (top) => Math.min(high, Math.max(low, high - (high - low) * (top - MARGIN3.top) / tall))
  };
}
function axesOf({ x, low, high, x_title: title }, scales) {
  const marks = [], bottom = TALL2 - MARGIN3.bottom, right = scales.width - MARGIN3.right;
  for (let step = 0; step <= STEPS; step++) {
    const value = low + (high - low) * step / STEPS, y = scales.y(value);
    const line2 = {
      x1: MARGIN3.left,
      x2: right,
      y1: y,
      y2: y
    };
    marks.push(svgElement("line", {
      class: step ? "kv-curve-grid" : "kv-curve-axis",
      ...line2
    }));
    const place2 = {
      class: "kv-curve-tick",
      x: MARGIN3.left - 7,
      y: y + 4,
      "text-anchor": "end"
    };
    marks.push(svgElement("text", place2, axisText(value)));
  }
  let free = 0;
  for (const value of x) {
    const text = axisText(value), at = scales.x(value), half = text.length * LETTER / 2;
    marks.push(svgElement("line", {
      class: "kv-curve-axis",
      x1: at,
      x2: at,
      y1: bottom,
      y2: bottom + 4
    }));
    if (at - half < free) continue;
    free = at + half + LETTER;
    marks.push(svgElement("text", {
      class: "kv-curve-tick",
      x: at,
      y: bottom + 17,
      "text-anchor": "middle"
    }, text));
  }
  const place = {
    class: "kv-curve-tick",
    x: right,
    y: bottom + 33,
    "text-anchor": "end"
  };
  marks.push(svgElement("text", place, title));
  return marks;
}
function seriesOf({ dash, symbol }, colour, points) {
  const group2 = svgElement("g", {
    class: "kv-series"
  });
  if (colour) group2.style.setProperty("--kv-own", colour);
  const path = points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L");
  const line2 = group2.appendChild(svgElement("path", {
    class: "kv-series-line",
    d: `M${path}`
  }));
  if (DASHES[dash]) line2.setAttribute("stroke-dasharray", DASHES[dash]);
  const open = symbol.endsWith("-open"), shape = SYMBOLS[symbol.replace(/-open$/, "")] ?? CIRCLE;
  for (const [x, y] of points) {
    const place = {
      d: shape,
      transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`
    };
    group2.append(svgElement("path", {
      class: open ? "kv-series-open" : "kv-series-mark",
      ...place
    }));
  }
  return group2;
}
function sampleOf(series, colour, name) {
  const svg = svgElement("svg", {
    width: 40,
    height: 14,
    "aria-hidden": "true",
    class: name
  });
  const sample = seriesOf(series, colour, [
    [
      2,
      7
    ],
    [
      38,
      7
    ]
  ]);
  for (const mark of [
    ...sample.children
  ].slice(1)) mark.setAttribute("transform", "translate(20 7)");
  sample.lastElementChild?.remove();
  svg.append(sample);
  return svg;
}

// prediction_pen.js
var REACH3 = 18;
function createPen(svg, x, { scales, heights, grab, put, tell }) {
  function placeOf2(event, drawn) {
    const { left, top } = svg.getBoundingClientRect(), across = event.clientX - left, down = event.clientY - top;
    const apart = x.map((value) => Math.abs(drawn.x(value) - across));
    return {
      across,
      down,
      index: apart.indexOf(Math.min(...apart))
    };
  }
  function stroke(from, to, drawn) {
    const by = Math.sign(to.index - from.index) || 1;
    for (let index = from.index; index !== to.index; index += by) {
      const share = (drawn.x(x[index]) - from.across) / (to.across - from.across || 1);
      if (share > 0) put(index, drawn.value(from.down + (to.down - from.down) * Math.min(1, share)));
    }
    put(to.index, drawn.value(to.down));
  }
  let holds = false;
  svg.addEventListener("pointerdown", (event) => {
    const drawn = scales();
    if (!drawn || event.button) return;
    event.preventDefault();
    const start = placeOf2(event, drawn), { index } = start;
    const near = Math.hypot(start.across - drawn.x(x[index]), start.down - drawn.y(heights()[index])) < REACH3;
    holds = near;
    let last = start;
    const follow2 = (moved) => {
      const now = placeOf2(moved, drawn);
      if (near) put(index, drawn.value(now.down));
      else stroke(last, now, drawn);
      last = now;
      tell(moved);
    };
    svg.setPointerCapture(event.pointerId);
    grab(index);
    if (!near) follow2(event);
    svg.addEventListener("pointermove", follow2);
    const end = () => {
      holds = false;
      svg.removeEventListener("pointermove", follow2);
    };
    for (const name of [
      "pointerup",
      "pointercancel"
    ]) svg.addEventListener(name, end, {
      once: true
    });
  });
  svg.addEventListener("touchstart", (event) => holds && event.preventDefault(), {
    passive: false
  });
  return {
    /**
     * @param {PointerEvent} event
     * @param {Scales} drawn
     */
    nearest: (event, drawn) => placeOf2(event, drawn).index
  };
}

// prediction_curve.js
var STEPS2 = 50;
var FAR = 5;
var OWN = {
  name: "your prediction",
  values: [],
  dash: "dot",
  symbol: "circle-open",
  light: "",
  dark: ""
};
function createCurve3(host, question, tip, changed) {
  const { text, x, low, high, known, measured } = question, step = (high - low) / STEPS2;
  const digits = Math.min(6, Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
  host.append(element("p", "kv-axis-title", question.y_title));
  const svg = host.appendChild(svgElement("svg", {
    height: TALL2,
    role: "group",
    "aria-label": text
  }));
  const [axes2, before, line2, points, after] = [
    "",
    "",
    "kv-yours-line",
    "",
    ""
  ].map((name) => svg.appendChild(svgElement(name ? "path" : "g", name ? {
    class: name
  } : {})));
  const legend3 = host.appendChild(element("p", "kv-legend"));
  let set = x.map(() => void 0);
  let current = 0, locked = false, shown2 = false;
  let scales = null;
  const handles = x.map((place, index) => {
    const handle = points.appendChild(svgElement("g", {
      class: "kv-point",
      role: "slider"
    }));
    handle.append(svgElement("circle", {
      class: "kv-reach",
      r: REACH3
    }), svgElement("circle", {
      r: 7
    }));
    const name = `${question.x_title || "x"} ${axisText(place)}`;
    const range2 = {
      "aria-valuemin": low,
      "aria-valuemax": high,
      "aria-orientation": "vertical",
      "aria-label": name
    };
    for (const [key, value] of Object.entries(range2)) handle.setAttribute(key, String(value));
    handle.addEventListener("focus", () => {
      current = index;
      paint();
      const { left, bottom } = handle.getBoundingClientRect();
      if (handle.matches(":focus-visible")) tip.show(rowsOf(index), {
        clientX: left,
        clientY: bottom
      });
    });
    handle.addEventListener("blur", () => tip.hide());
    handle.addEventListener("keydown", (event) => press(event, index));
    return handle;
  });
  const isOpen = () => set.every((value) => value === void 0);
  function heights() {
    const places = [
      ...set.keys()
    ].filter((index) => set[index] !== void 0);
    if (!places.length) return x.map(() => (low + high) / 2);
    const along = scales ? x.map(scales.x) : x;
    return x.map((_, index) => {
      const right = places.find((place) => place >= index), left = places.findLast((place) => place <= index);
      const one = Number(set[left ?? Number(right)]), other = Number(set[right ?? Number(left)]);
      if (left === void 0 || right === void 0 || left === right) return rounded2(one);
      return rounded2(one + (other - one) * (along[index] - along[left]) / (along[right] - along[left]));
    });
  }
  function rounded2(value) {
    return Math.min(high, Math.max(low, Number(value.toFixed(digits))));
  }
  function colourOf2(series) {
    return host.closest(".kvviz")?.getAttribute("data-theme") === "dark" ? series.dark : series.light;
  }
  function draw2(moving = false) {
    const width = host.clientWidth;
    if (!width) return;
    const drawn = scales = scalesOf2(question, width);
    svg.setAttribute("width", String(width));
    svg.setAttribute("viewBox", `0 0 ${width} ${TALL2}`);
    axes2.replaceChildren(...axesOf(question, drawn));
    const lineOf = (series) => {
      const node = seriesOf(series, colourOf2(series), x.map((place, at) => [
        drawn.x(place),
        drawn.y(series.values[at])
      ]));
      return node;
    };
    const measuredNow = shown2 ? measured : [];
    before.replaceChildren(...known.map(lineOf));
    after.replaceChildren(...measuredNow.map(lineOf));
    after.setAttribute("class", `kv-measured-lines${moving ? " kv-moving" : ""}`);
    legend3.replaceChildren(keyOf(OWN, "", "kv-yours"), ...known.map((series) => keyOf(series, colourOf2(series))), ...measuredNow.map((series) => keyOf({
      ...series,
      name: nameOf(series)
    }, colourOf2(series), "kv-measured-lines")));
    paint();
  }
  function paint() {
    const drawn = scales, values = heights();
    host.toggleAttribute("data-open", isOpen());
    if (drawn) {
      line2.setAttribute("d", `M${x.map((place, at) => `${drawn.x(place)} ${drawn.y(values[at])}`).join("L")}`);
    }
    handles.forEach((handle, index) => {
      if (drawn) handle.setAttribute("transform", `translate(${drawn.x(x[index])} ${drawn.y(values[index])})`);
      handle.setAttribute("tabindex", index === current ? "0" : "-1");
      handle.setAttribute("aria-valuenow", String(values[index]));
      handle.setAttribute("aria-valuetext", saidOf2(index, values[index]));
      handle.toggleAttribute("data-unset", set[index] === void 0);
      if (locked) handle.setAttribute("aria-disabled", "true");
      else handle.removeAttribute("aria-disabled");
    });
  }
  function saidOf2(index, value) {
    if (isOpen()) return OPEN;
    const own = fixed(value, digits);
    if (!shown2) return own;
    return [
      `you ${own}`,
      ...measured.map((each) => `${nameOf(each)} ${measuredText(each.values[index])}`)
    ].join(", ");
  }
  function rowsOf(index) {
    const rows = [
      [
        question.x_title || "x",
        axisText(x[index])
      ]
    ];
    rows.push([
      "you",
      isOpen() ? OPEN : fixed(heights()[index], digits)
    ]);
    for (const each of known) rows.push([
      each.name,
      measuredText(each.values[index])
    ]);
    if (shown2) {
      for (const each of measured) rows.push([
        nameOf(each),
        measuredText(each.values[index])
      ]);
    }
    return rows;
  }
  function put(index, value) {
    set[index] = rounded2(value);
    current = index;
    paint();
  }
  function tell() {
    const values = heights();
    changed(values, `${question.x_title || "x"} ${axisText(x[current])}: ${fixed(values[current], digits)}`);
  }
  function press(event, index) {
    const last = x.length - 1;
    const to = {
      ArrowLeft: Math.max(0, index - 1),
      ArrowRight: Math.min(last, index + 1),
      Home: 0,
      End: last
    };
    const by = {
      ArrowUp: 1,
      ArrowDown: -1,
      Enter: 0,
      " ": 0
    };
    if (hasModifier(event)) return;
    if (event.key in to) handles[to[event.key]].focus();
    else if (event.key in by) {
      if (!locked) {
        put(index, heights()[index] + by[event.key] * step * (event.shiftKey ? FAR : 1));
        tell();
        const { left, bottom } = handles[index].getBoundingClientRect();
        tip.show(rowsOf(index), {
          clientX: left,
          clientY: bottom
        });
      }
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }
  const pen = createPen(svg, x, {
    scales: () => locked ? null : scales,
    heights,
    grab: (index) => handles[index].focus({
      preventScroll: true
    }),
    put,
    tell(event) {
      tell();
      tip.show(rowsOf(current), event);
    }
  });
  svg.addEventListener("pointermove", (event) => {
    if (scales && event.pointerType === "mouse") tip.show(rowsOf(pen.nearest(event, scales)), event);
  });
  svg.addEventListener("pointerleave", () => tip.hide());
  const resized = new ResizeObserver(() => host.clientWidth !== scales?.width && draw2());
  resized.observe(host);
  return {
    /** @param {number[] | undefined} values */
    set(values) {
      set = values ? [
        ...values
      ] : x.map(() => void 0);
      paint();
    },
    lock(isLocked) {
      locked = isLocked;
      paint();
    },
    reveal() {
      shown2 = true;
      draw2(true);
      return curveText(heights(), measured[0].values, measured[0].name);
    },
    hide() {
      shown2 = false;
      draw2();
      if (!scales) paint();
    },
    recolour: () => draw2(),
    close: () => resized.disconnect()
  };
}
function nameOf({ name }) {
  return name === "measured" ? name : `measured ${name}`;
}
function keyOf(series, colour, className = "") {
  const entry = element("span", "kv-key");
  entry.append(sampleOf(series, colour, className), element("span", "", series.name));
  return entry;
}

// prediction_order.js
function createOrder(host, { text, names, measured }, changed) {
  const columns = host.appendChild(element("div", "kv-orders"));
  const own = columns.appendChild(element("div"));
  own.append(element("p", "kv-columnname", "your order, the lowest first"));
  const list = own.appendChild(element("ol", "kv-order"));
  list.setAttribute("aria-label", `${text} The lowest first`);
  const keep = own.appendChild(element("button", "kv-keep", "Keep this order"));
  keep.type = "button";
  let said;
  let now = [
    ...names
  ], locked = false;
  const items = new Map(names.map((name) => {
    const row2 = element("li");
    const grip = row2.appendChild(element("span", "kv-grip", "\u283F"));
    grip.setAttribute("aria-hidden", "true");
    row2.append(element("span", "kv-ordered", name));
    const [up, down] = (
      /** @type {const} */
      [
        [
          "\u2191",
          -1,
          "up"
        ],
        [
          "\u2193",
          1,
          "down"
        ]
      ].map(([sign, by, way]) => {
        const button2 = row2.appendChild(element("button", "", sign));
        button2.type = "button";
        button2.setAttribute("aria-label", `move ${name} ${way}`);
        button2.addEventListener("click", () => {
          move(name, now.indexOf(name) + by);
          (button2.disabled ? by < 0 ? down : up : button2).focus();
        });
        return button2;
      })
    );
    row2.addEventListener("pointerdown", (event) => startDrag(event, name, row2, grip));
    return [
      name,
      {
        row: row2,
        up,
        down
      }
    ];
  }));
  keep.addEventListener("click", () => {
    answer();
    items.get(now[0])?.down.focus();
  });
  function move(name, to) {
    const place = Math.max(0, Math.min(now.length - 1, to));
    now = now.filter((each) => each !== name);
    now.splice(place, 0, name);
    answer(`${name}, place ${place + 1} of ${now.length}`);
  }
  function answer(words = now.join(", ")) {
    said = [
      ...now
    ];
    paint();
    changed(said, words);
  }
  function paint() {
    const rows = now.map((name) => (
      /** @type {NonNullable<ReturnType<typeof items.get>>} */
      items.get(name)
    ));
    const focused = document.activeElement;
    rows.forEach(({ row: row2, up, down }, place) => {
      if (list.children[place] !== row2) list.insertBefore(row2, list.children[place] ?? null);
      up.disabled = locked || place === 0;
      down.disabled = locked || place === rows.length - 1;
    });
    if (focused instanceof HTMLElement && list.contains(focused)) focused.focus();
    host.toggleAttribute("data-open", said === void 0);
  }
  function startDrag(event, name, row2, grip) {
    const target = targetOf(event);
    if (locked || event.button || target.tagName === "BUTTON") return;
    if (event.pointerType !== "mouse" && target !== grip) return;
    event.preventDefault();
    row2.dataset.dragged = "";
    const follow2 = (moved) => {
      const others = [
        ...list.children
      ].filter((each) => each !== row2);
      const place = others.filter((each) => middleOf2(each) < moved.clientY).length;
      if (place !== now.indexOf(name)) move(name, place);
    };
    const end = () => {
      delete row2.dataset.dragged;
      document.removeEventListener("pointermove", follow2);
    };
    document.addEventListener("pointermove", follow2);
    for (const name2 of [
      "pointerup",
      "pointercancel"
    ]) document.addEventListener(name2, end, {
      once: true
    });
  }
  paint();
  return {
    set(value) {
      said = value;
      now = [
        ...value ?? names
      ];
      paint();
    },
    lock(isLocked) {
      locked = isLocked;
      paint();
    },
    reveal() {
      const column = columns.appendChild(element("div", "kv-right"));
      column.append(element("p", "kv-columnname", "\u25C6 measured, the lowest first"));
      const right = column.appendChild(element("ol", "kv-order"));
      for (const [name, number] of measured) {
        const row2 = right.appendChild(element("li"));
        row2.append(element("span", "kv-ordered", name), element("span", "kv-measured", measuredText(number)));
      }
      return pairsText(now, measured);
    },
    hide: () => columns.querySelector(".kv-right")?.remove()
  };
}
function middleOf2(node) {
  const { top, bottom } = node.getBoundingClientRect();
  return (top + bottom) / 2;
}

// prediction_value.js
var MOST_STOPS = 1e3;
var LOG_STOPS = 200;
function createValue(host, question, changed) {
  const { measured, low, high, unit, digits, log } = question, stops = stopsOf(question), last = stops.length - 1;
  const track = host.appendChild(element("div", "kv-track"));
  const slider = track.appendChild(element("input"));
  Object.assign(slider, {
    type: "range",
    min: 0,
    max: last,
    step: 1
  });
  slider.setAttribute("aria-label", question.text);
  const shown2 = host.appendChild(element("output"));
  const scale = track.appendChild(element("div", "kv-scale"));
  scale.append(element("span", "", fixed(low, digits)), element("span", "", fixed(high, digits)));
  const line2 = track.appendChild(element("div", "kv-line"));
  let said;
  const withUnit = (text) => unit ? `${text} ${unit}` : text;
  const words = () => said === void 0 ? OPEN : withUnit(fixed(said, digits));
  function paint() {
    const place = said === void 0 ? Math.floor(last / 2) : nearest(stops, said);
    slider.value = String(place);
    slider.setAttribute("value", slider.value);
    slider.setAttribute("aria-valuetext", words());
    shown2.textContent = said === void 0 ? "?" : words();
    host.toggleAttribute("data-open", said === void 0);
  }
  function answer() {
    said = stops[Number(slider.value)];
    paint();
    changed(said, words());
  }
  slider.addEventListener("input", answer);
  slider.addEventListener("click", () => said === void 0 && answer());
  slider.addEventListener("keydown", (event) => event.key === "Enter" && answer());
  paint();
  return {
    set(value) {
      said = value;
      paint();
    },
    lock: (locked) => slider.disabled = locked,
    reveal() {
      const at = log ? Math.log(measured / low) / Math.log(high / low) : (measured - low) / (high - low);
      const mark = line2.appendChild(element("span", "kv-diamond", "\u25C6"));
      const label = line2.appendChild(element("span", "kv-label", `measured ${withUnit(measuredText(measured, digits))}`));
      line2.style.setProperty("--kv-at", String(at));
      mark.setAttribute("aria-hidden", "true");
      label.setAttribute("aria-hidden", "true");
      const value = Number(said), both = withUnit(`You said ${fixed(value, digits)}, measured ${measuredText(measured, digits)}`);
      const shown3 = Number(measuredText(measured, digits).replaceAll(",", ""));
      return `${both}: ${distanceText(value, shown3, digits, log)}.`;
    },
    hide: () => line2.replaceChildren()
  };
}
function stopsOf({ low, high, digits, log }) {
  const unit = 10 ** digits, count = log ? LOG_STOPS : Math.min(MOST_STOPS, Math.max(1, Math.round((high - low) * unit)));
  const stops = Array.from({
    length: count + 1
  }, (_, at) => {
    const value = log ? low * (high / low) ** (at / count) : low + (high - low) * at / count;
    return Math.min(high, Math.max(low, Math.round(value * unit) / unit));
  });
  return [
    ...new Set(stops)
  ];
}
function nearest(stops, value) {
  const apart = stops.map((stop) => Math.abs(stop - value));
  return apart.indexOf(Math.min(...apart));
}

// prediction.js
function createPrediction(root2, host) {
  const page = host.get("page");
  let answers = host.get("answers");
  let revealed = false;
  root2.classList.add("kvviz", "kv-prediction");
  keepKeys(root2);
  const head = root2.appendChild(element("div", "kv-head"));
  head.appendChild(element("h2", "kv-title", page.title));
  const menu = createSaveMenu(head, root2, (format2) => saveAs(format2, menu, root2, host, "prediction"));
  const tip = createTip(root2);
  const list = root2.appendChild(element("div", "kv-questions"));
  const asked = page.questions.map((question, index) => {
    const section2 = list.appendChild(element("section", "kv-question"));
    const heading = section2.appendChild(element("h3"));
    heading.append(element("span", "", page.questions.length > 1 ? `${index + 1}. ${question.text}` : question.text));
    const state = section2.appendChild(element("p", "kv-state"));
    const hint = section2.appendChild(element("p", "kv-hint", HINT[question.kind]));
    const body = section2.appendChild(element("div", `kv-asked-${question.kind}`));
    const result = section2.appendChild(element("p", "kv-result"));
    const controls = create(body, question, tip, (answer, words) => {
      answers = {
        ...answers,
        [question.text]: answer
      };
      paint();
      spoken.textContent = `${question.text} ${words}. ${progress()}`;
      host.tell({
        answers
      });
    });
    return {
      question,
      controls,
      state,
      hint,
      result
    };
  });
  const foot = root2.appendChild(element("div", "kv-foot"));
  const button2 = foot.appendChild(element("button", "kv-compare"));
  button2.type = "button";
  button2.addEventListener("click", () => {
    show(!revealed);
    spoken.textContent = revealed ? asked.map(({ question, result }) => `${question.text} ${result.textContent}`).join(" ") : `The measurement is hidden. ${progress()}`;
    host.tell({
      revealed
    });
  });
  const count = foot.appendChild(element("span", "kv-count"));
  const spoken = root2.appendChild(element("p", "kv-spoken"));
  spoken.setAttribute("role", "status");
  const isOpen = ({ text }) => answers[text] === void 0;
  const progress = () => {
    const all = page.questions.length;
    return `${all - page.questions.filter(isOpen).length} of ${all} answered.`;
  };
  function show(now) {
    if (now && page.questions.some(isOpen)) return;
    revealed = now;
    for (const { controls, result } of asked) {
      controls.hide();
      controls.lock(now);
      result.textContent = now ? controls.reveal() : "";
    }
    if (!now) {
      tip.show([], {
        clientX: 0,
        clientY: 0
      });
      tip.hide();
      spoken.textContent = "";
    }
    paint();
  }
  function paint() {
    for (const { question, state, hint } of asked) {
      state.textContent = isOpen(question) ? OPEN : "\u2713 answered";
      state.hidden = hint.hidden = revealed;
    }
    button2.disabled = page.questions.some(isOpen);
    button2.textContent = revealed ? "Try again" : "Compare with the measurement";
    count.textContent = revealed ? "\u201CTry again\u201D hides the measurement; your answers stay." : progress();
    const given = Object.keys(answers).length ? `, answers=${JSON.stringify(answers)}` : "";
    menu.line.textContent = `kvviz.widgets.Prediction(*questions${given}${revealed ? ", revealed=True" : ""})`;
  }
  function takeAnswers() {
    const told = host.get("answers");
    for (const { question: { text }, controls } of asked) {
      if (JSON.stringify(told[text]) !== JSON.stringify(answers[text])) controls.set(told[text]);
    }
    answers = told;
    show(revealed && !page.questions.some(isOpen));
  }
  for (const { question, controls } of asked) if (!isOpen(question)) controls.set(answers[question.text]);
  show(host.get("revealed"));
  paint();
  host.on("answers", () => JSON.stringify(host.get("answers")) !== JSON.stringify(answers) && takeAnswers());
  host.on("revealed", () => host.get("revealed") !== revealed && show(host.get("revealed")));
  const unwatch = watchTheme(root2, () => asked.forEach(({ controls }) => controls.recolour?.()));
  return () => {
    unwatch();
    asked.forEach(({ controls }) => controls.close?.());
  };
}
function create(body, question, tip, changed) {
  if (question.kind === "value") return createValue(body, question, changed);
  if (question.kind === "choice") return createChoice(body, question, changed);
  if (question.kind === "order") return createOrder(body, question, changed);
  return createCurve3(body, question, tip, changed);
}

// stepper_axis.js
function createAxis(mapPanel, page, zoom) {
  const bar = explain(element("div", "kv-sight"), "the visible part of the prompt, the end of the prompt, and the marked tokens");
  const inSight = bar.appendChild(element("span", "kv-seen"));
  const marks = [
    placed("kv-end", page.prompt_length, "the end of the prompt"),
    ...page.span.map((position) => placed("kv-asked", position + 0.5, "a marked token"))
  ];
  mapPanel.before(bar);
  const axis = element("div", "kv-axis");
  const first = axis.appendChild(element("span"));
  axis.append(element("span", "", `position; steps 0 to ${format(page.steps - 1)} from top to bottom`));
  const last = axis.appendChild(element("span"));
  mapPanel.after(axis, createRange(zoom));
  let strip = null;
  function placed(name, position, meaning) {
    return {
      position,
      node: bar.appendChild(explain(element("span", name), meaning))
    };
  }
  function shareOf(position) {
    const [from, until] = zoom.range;
    return (position - from) / (until - from);
  }
  function sight() {
    if (!strip) return;
    const ends = strip.inSight().map((position) => shareOf(Math.min(position, page.prompt_length)));
    const [from, until] = ends.map((share) => Math.max(0, Math.min(1, share)));
    inSight.hidden = until <= from;
    inSight.style.left = `${100 * from}%`;
    inSight.style.width = `${100 * (until - from)}%`;
  }
  function paint() {
    const [from, until] = zoom.range;
    first.textContent = format(from);
    last.textContent = format(until - 1);
    for (const { position, node } of marks) {
      const share = shareOf(position);
      node.hidden = share < 0 || share > 1;
      node.style.left = `${100 * share}%`;
    }
    sight();
  }
  zoom.told((_, choosing) => choosing || paint());
  paint();
  return {
    sight,
    /** @param {Strip} prompt */
    follow(prompt) {
      strip = prompt;
      sight();
    }
  };
}

// stepper_clusters.js
var FIRST_WORDS = 48;
function createClusters(host, page, { tip, onHover, onPick }) {
  const list = host.appendChild(element("ol", "kv-clusters"));
  list.tabIndex = 0;
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", `${page.group_name}s recalled, best score first`);
  list.setAttribute("aria-description", "\u2191 and \u2193 read them, Enter goes to one");
  let rows = [];
  let cursor = -1;
  const emptyNote = host.appendChild(element("p", "kv-empty"));
  function item(clusters, index, frame2, widest) {
    const group2 = clusters.group_ids[index], count = clusters.group_counts[index], known = clusters.group_known[index];
    const members = [
      ...frame2.positions
    ].filter((_, token) => frame2.groups[token] === group2);
    const entry = element("li");
    const bar = entry.appendChild(element("span", "kv-bar"));
    const fill2 = bar.appendChild(element("span"));
    fill2.style.width = `${100 * clusters.group_masses[index] / widest}%`;
    fill2.style.background = colourOf(clusters.group_hues[index]);
    const score = element("span", "kv-score", page.lists_centroids ? "" : decimals(clusters.group_scores[index]));
    const rank = element("span", "kv-rank", `${index + 1}.`), id = element("span", "kv-id", `#${group2}`);
    entry.prepend(rank, id, score);
    explain(rank, page.lists_centroids ? "rank by the attention on its tokens" : "rank by score at this step");
    explain(score, `score: ${MEANING.score}`);
    const share = entry.appendChild(element("span", "kv-share", clusters.group_masses[index].toFixed(3)));
    const size2 = entry.appendChild(element("span", "kv-size", `${format(count)} ${known > count ? `of \u2265 ${format(known)}` : "tokens"}`));
    entry.append(element("span", "kv-first", firstWords(members)));
    const counted = known > count ? `trimmed: ${count} tokens were attended to; the recording shows that the ${page.group_name} had at least ${known}` : page.lists_centroids ? "tokens whose mean is this centroid" : `tokens of this ${page.group_name} that were attended to at this step`;
    explain(size2, counted);
    for (const node of [
      bar,
      share
    ]) explain(node, `${MEANING.share}; the scale of the bars is the same at all steps`);
    if (known > count && index === clusters.group_ids.length - 1 && !page.lists_centroids) {
      entry.dataset.cut = "";
      size2.textContent = `${format(count)} of \u2265 ${format(known)}, cut`;
      explain(size2, `the budget ended in this ${page.group_name}: ${counted}`);
    }
    explain(id, `${page.group_name} ${group2}; ${MEANING.hues}`);
    entry.addEventListener("pointerenter", () => onHover(members));
    entry.addEventListener("pointerleave", () => onHover([]));
    entry.addEventListener("click", () => onPick(members[0]));
    entry.setAttribute("role", "option");
    entry.setAttribute("aria-selected", "false");
    const about2 = [
      [
        page.group_name,
        `#${group2}`
      ],
      [
        "rank",
        `${index + 1} of those recalled`
      ],
      [
        "score",
        decimals(clusters.group_scores[index])
      ],
      [
        "share of the attention",
        share.textContent
      ],
      [
        "tokens",
        size2.textContent
      ],
      [
        "first words",
        firstWords(members)
      ]
    ];
    return {
      node: entry,
      members,
      about: about2
    };
  }
  function go(place) {
    if (place >= rows.length) return;
    for (const [index, { node }] of rows.entries()) {
      node.toggleAttribute("data-cursor", index === place);
      node.setAttribute("aria-selected", String(index === place));
    }
    cursor = place;
    if (cursor < 0) {
      tip.hide();
      return onHover([]);
    }
    rows[cursor].node.scrollIntoView({
      block: "nearest"
    });
    onHover(rows[cursor].members);
    tip.show(rows[cursor].about, pointOf(rows[cursor].node));
  }
  onKeys(list, {
    ArrowUp: () => go(Math.max(cursor - 1, 0)),
    ArrowDown: () => go(cursor + 1),
    Enter: () => cursor >= 0 && onPick(rows[cursor].members[0])
  });
  list.addEventListener("blur", () => cursor >= 0 && go(-1));
  const firstWords = (members) => {
    let text = "";
    for (let index = 0; index < members.length && text.length < FIRST_WORDS; index++) {
      const ellipsis = index && members[index] !== members[index - 1] + 1 ? " \u2026 " : "";
      text += ellipsis + page.tokens[members[index]];
    }
    const readable = named(text.replace(/\s+/g, " ").replace(/(… )+/g, "\u2026 ").trim());
    return /[^…\s]/.test(readable) ? readable : visible(text);
  };
  return {
    /**
     * @param {StepperSlice} slice
     * @param {number} step
     * @param {Frame} frame
     */
    paint(slice, step, frame2) {
      const clusters = clustersOf(slice, step);
      const widest = slice.group_masses.reduce((most, mass) => Math.max(most, mass), 1e-9);
      rows = Array.from(clusters.group_ids, (_, index) => item(clusters, index, frame2, widest));
      cursor = -1;
      list.replaceChildren(...rows.map(({ node }) => node));
      list.hidden = rows.length === 0;
      emptyNote.hidden = clusters.group_ids.length > 0;
      const kinds = `a sink, recent, generated, or attended without ${page.group_name}s`;
      emptyNote.textContent = `Nothing was recalled by score at this step: every attended token is ${kinds}.`;
      return clusters.group_ids.length;
    }
  };
}

// stepper_follow.js
function createFollow(settings, heading, page, strip) {
  let picked = -1;
  const text = createFollowText(settings, heading, page, {
    strip,
    picked: () => picked
  });
  const line2 = element("p", "kv-note kv-picked");
  heading.after(line2);
  line2.hidden = true;
  let shown2 = null;
  function tell() {
    line2.hidden = picked < 0 || !shown2;
    strip().light(picked < 0 ? [] : [
      picked
    ]);
    if (!shown2 || picked < 0) return;
    const counts = {
      agreed: 0,
      wasted: 0,
      merged: 0,
      missed: 0
    };
    for (let step = 0; step < page.steps; step++) {
      const frame2 = frameOf(shown2, step), index = indexOf(frame2, picked);
      const mark = index < 0 ? 0 : frame2.marks[index];
      if (mark & ATTENDED) counts[mark & ORACLE ? "agreed" : "wasted"]++;
      else if (mark & MERGED) counts.merged++;
      else if (mark) counts.missed++;
    }
    const found = Object.entries(counts).filter(([, count]) => count).map(([name, count]) => `${name} in ${count}`);
    const { kind, heads } = unionOf(shown2);
    line2.textContent = `${quoted(page.tokens[picked])} at ${picked}: ${found.join(", ") || "neither attended nor wanted"} of ${page.steps} steps, in ${kind === "none" ? "this head" : `the union of ${heads} heads`}`;
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
    light: () => strip().light(picked < 0 ? [] : [
      picked
    ]),
    /**
     * @param {StepperSlice} slice
     * @param {Frame} frame
     * @param {boolean} stay
     */
    paint(slice, frame2, stay) {
      shown2 = slice;
      tell();
      text.show([
        frame2
      ], stay);
    },
    opening: text.opening
  };
}

// stepper_controls.js
function createControls2(root2, page, { go, toggle, pick, save }) {
  const head = root2.appendChild(element("div", "kv-head"));
  head.append(element("h2", "kv-title", page.description));
  const place = createPlacePickers(head, page, (layer, row2) => pick(layer, row2, "none"));
  const bar = root2.appendChild(element("div", "kv-controls"));
  const slider = createStepSlider(bar, page.steps, go);
  const play = button(slider.buttons, "\u25B6", "play (space)", toggle);
  const stats = explainTogether(bar.appendChild(element("span", "kv-stats")), "numbers of this step");
  const fed = stats.appendChild(explain(element("span", "kv-fed"), MEANING.fed));
  const ofHead = stats.appendChild(element("span", "kv-scoped"));
  ofHead.append(tagOf(ofHead, "head", "step"));
  const ofLayer = stats.appendChild(tagged(element("span", "kv-scoped"), "layer", "step"));
  const figures = {
    recall: figure(ofHead, "recall"),
    mass: figure(ofHead, "mass"),
    attended: figure(ofHead, "attended"),
    read: figure(ofLayer, "read"),
    moved: figure(ofLayer, "moved")
  };
  const settings = createSettings(head, root2);
  const menu = createSaveMenu(head, root2, save);
  return {
    menu,
    settings,
    /** @param {boolean} running */
    playing(running) {
      play.textContent = running ? "\u275A\u275A" : "\u25B6";
      const meaning = running ? "pause (space)" : "play (space)";
      explain(play, meaning).setAttribute("aria-label", meaning);
      play.setAttribute("aria-pressed", String(running));
    },
    /**
     * @param {number} step
     * @param {StepperSlice} slice
     * @param {number} attended
     */
    paint(step, slice, attended) {
      const token = quoted(page.tokens[page.prompt_length + step]);
      slider.show(step, `, fed ${token}, recall ${slice.recall[step].toFixed(2)}`);
      fed.textContent = `fed ${token}`;
      figures.recall.number.textContent = slice.recall[step].toFixed(2);
      figures.mass.number.textContent = slice.mass[step].toFixed(2);
      figures.attended.number.textContent = format(attended);
      figures.read.inBytes(slice.read_bytes[step]);
      figures.moved.inBytes(slice.moved_bytes[step]);
      place(slice.layer, slice.head);
      const { kind, heads } = unionOf(slice);
      ofHead.firstElementChild?.replaceWith(tagOf(ofHead, scopeIn("head", kind), "step"));
      for (const { ofHeads } of Object.values(figures)) ofHeads(kind, heads);
      const union = kind === "none" ? "" : `, union="${kind}"`;
      menu.line.textContent = `${page.call}step=${step}, layer=${slice.layer}, head=${slice.head}${union})`;
    }
  };
}
function figure(host, name) {
  const item = host.appendChild(element("span", "kv-figure"));
  const label = item.appendChild(element("span", "kv-name", name));
  const number = item.appendChild(element("span", "kv-number"));
  let about2 = "";
  return {
    number,
    /**
     * @param {Union} union
     * @param {number} heads
     */
    ofHeads(union, heads) {
      label.textContent = nameIn(name, union);
      explainNumber(item, `${meaningIn(name, union, heads)}${about2}`, scopeIn(SCOPE_OF[name], union), "step");
    },
    /** @param {number} count */
    inBytes(count) {
      number.textContent = bytes(count);
      about2 = `: ${format(count)} bytes`;
    }
  };
}

// stepper.js
var STEP_MS = 700;
function createStepper(root2, host) {
  const page = host.get("page");
  let now = host.get("step");
  let slice = null;
  let drawn;
  let frame2 = null;
  let timer = null;
  root2.classList.add("kvviz", "kv-stepper");
  keepKeys(root2);
  const controls = createControls2(root2, page, {
    go,
    toggle,
    pick: ask,
    save
  });
  const wait = createWait(root2, () => slice && paint(slice));
  const tip = createTip(root2);
  const heads = createHeadPanel(root2, page, {
    tip,
    pick: ask,
    settings: controls.settings
  });
  const grid = root2.appendChild(element("div", "kv-grid"));
  const { panel: promptPanel, heading } = titledPanel(grid, "prompt", "kv-prompt", MEANING.prompt);
  const follow2 = createFollow(controls.settings, heading, page, () => prompt);
  createFind(heading, root2, {
    tokens: page.tokens.slice(0, page.prompt_length),
    strips: () => [
      prompt
    ]
  });
  const { panel: mapPanel } = titledPanel(grid, "steps \u2193 \xD7 positions \u2192", "kv-map", MEANING.map);
  const zoom = createZoom(page.tokens.length, paintMap);
  const axis = createAxis(mapPanel, page, zoom);
  const recalledPanel = titledPanel(grid, "", "kv-recalled", MEANING.recalled);
  const recalledTitle = recalledPanel.heading.appendChild(element("span"));
  const recalledTag = tagOf(recalledPanel.panel, "head", "step");
  recalledPanel.heading.append(" ", recalledTag);
  const { panel: writtenPanel } = titledPanel(grid, "written so far", "kv-written", MEANING.written);
  const key = legend2(page);
  root2.append(key.host, ...page.notes.map((note) => element("p", "kv-note", note)));
  const about2 = (position, event) => {
    if (position === null || !frame2 || !slice) tip.hide();
    else tip.show(about(page, slice, frame2, now, position), event);
  };
  const prompt = createStrip(promptPanel, {
    tokens: page.tokens.slice(0, page.prompt_length),
    span: page.span,
    label: "prompt",
    onHover: about2,
    onPick: (token) => host.tell({
      token: follow2.pick(token)
    }),
    onScroll: axis.sight
  });
  const written = createStrip(writtenPanel, {
    tokens: page.tokens.slice(page.prompt_length),
    start: page.prompt_length,
    label: "written so far",
    onHover: about2
  });
  const next = writtenPanel.appendChild(element("span", "kv-next"));
  explain(next, MEANING.next);
  writtenPanel.querySelectorAll("[data-position]").forEach((span, index) => span.toggleAttribute("data-question", index < page.question_length));
  const map = createMatrix(mapPanel, {
    label: "map of the attended tokens: one row per step, one column per position",
    palette: () => mapColours(root2),
    zoom,
    onHover(cell2, event) {
      if (!cell2 || !slice) return tip.hide();
      const [row2] = cell2, position = positionAt(drawn, cell2);
      tip.show([
        [
          "step",
          format(row2)
        ],
        ...about(page, slice, frameOf(slice, row2), row2, position)
      ], event);
    },
    onPick(row2, column) {
      if (!slice) return;
      const position = positionAt(drawn, [
        row2,
        column
      ]);
      go(0, row2);
      (position < page.prompt_length ? prompt : written).focus(position);
    }
  });
  const clusters = createClusters(recalledPanel.panel, page, {
    tip,
    onHover: (members) => members.length ? prompt.light(members) : follow2.light(),
    onPick: (member) => prompt.focus(member)
  });
  const unwatch = watchTheme(root2, map.recolour);
  function paint(slice2, opening = false) {
    frame2 = frameOf(slice2, now);
    const { positions, looks: looks2, marks } = frame2;
    prompt.paint(positions, looks2, marks);
    written.paint(positions, looks2, marks);
    written.reveal(now + 1);
    const predicted = now >= page.question_length - 1;
    next.hidden = !predicted;
    next.textContent = page.next_tokens[now];
    writtenPanel.scrollTop = writtenPanel.scrollHeight;
    map.frame(now);
    const recalled = clusters.paint(slice2, now, frame2), { kind } = unionOf(slice2);
    recalledPanel.panel.hidden = kind !== "none";
    recalledTag.hidden = kind !== "none";
    recalledTitle.textContent = kind !== "none" ? `${page.group_name}s belong to one head: pick a head in the map to see those it recalled` : page.lists_centroids ? "centroids whose tokens have the most attention (bar: exact attention)" : `${format(recalled)} ${page.group_name}${recalled === 1 ? "" : "s"} recalled, by score (bar: exact attention)`;
    follow2.paint(slice2, frame2, opening);
    heads.paint(slice2.layer, slice2.head, kind);
    key.say(slice2);
    controls.paint(now, slice2, marks.reduce((count, mark) => count + (mark & ATTENDED), 0));
    tip.hide();
  }
  function paintMap() {
    if (!slice) return;
    drawn = mapOf(slice, zoom, true);
    map.paint(drawn.map_looks, drawn.shapes.map_looks);
  }
  function go(by, to = now) {
    const step = Math.max(0, Math.min(page.steps - 1, to + by));
    if (step === now || !slice) return;
    now = step;
    paint(slice);
    host.tell({
      step
    });
  }
  function toggle() {
    if (timer) stop();
    else {
      if (now === page.steps - 1) go(0, 0);
      timer = setInterval(() => now < page.steps - 1 ? go(1) : stop(), STEP_MS);
    }
    controls.playing(timer !== null);
  }
  function stop() {
    if (timer) clearInterval(timer);
    timer = null;
    controls.playing(false);
  }
  function ask(layer, head, union) {
    if (slice && root2.dataset.busy === void 0 && isShown(slice, layer, head, union)) return;
    wait.begin(host);
    root2.dataset.busy = "";
    heads.paint(layer, head, union);
    host.tell({
      layer,
      head,
      union
    });
  }
  function save(format2) {
    const head = slice && unionOf(slice).kind !== "none" ? "union" : `head-${slice?.head}`;
    return saveAs(format2, controls.menu, root2, host, `decode-stepper-step-${now}-layer-${slice?.layer}-${head}`);
  }
  root2.addEventListener("keydown", (event) => {
    const tag = targetOf(event).tagName, move = stepKeys(page.steps)[event.key];
    if (hasModifier(event) || tag === "SELECT") return;
    if (event.key === " " && tag !== "BUTTON" && tag !== "SUMMARY") toggle();
    else if (move) go(...move);
    else return;
    event.preventDefault();
  });
  axis.follow(prompt);
  const resized = new ResizeObserver(axis.sight);
  resized.observe(promptPanel);
  controls.playing(false);
  function show() {
    const opening = slice === null;
    slice = /** @type {StepperSlice} */
    unpack(host.bytes("slice"));
    paintMap();
    wait.end();
    paint(slice, opening);
    if (opening) requestAnimationFrame(() => frame2 && prompt.focus(follow2.opening(), false));
  }
  host.on("slice", show);
  host.on("step", () => go(0, host.get("step")));
  show();
  return () => {
    stop();
    wait.close();
    unwatch();
    resized.disconnect();
    map.destroy();
  };
}
function legend2(page) {
  const tint = `a ${page.group_name} keeps its hue over all steps; the strength is logarithmic, from 0.0002 or less to 0.35 or more`;
  const words = `hue: ${page.group_name} (${HUES}, then they repeat) \xB7 strength: attention`;
  return createHeadsLegend(marksOf(page.merges), words, tint);
}

// kvviz.js
var VIEWS2 = {
  comparer: createComparer,
  explorer: createExplorer,
  inspector: createInspector,
  matrix: createCanvasMatrix,
  mechanism: createMechanism,
  misses: createMisses,
  prediction: createPrediction,
  stepper: createStepper,
  strip: createTokenStrip
};
function draw(model, root2) {
  const host = createHost(model);
  const close = VIEWS2[model.get("_kvviz_view")](root2, host);
  return () => {
    host.close();
    close();
  };
}
async function drawPage(page, root2) {
  const models = await Promise.all(page.widgets.map((widget) => pageModel(widget)));
  for (const model of models) draw(model, root2.appendChild(element("div")));
  if (page.follow) follow(models[1], models[0], page.follow);
}
var [data, root] = ["kvviz-page", "kvviz-root"].map((id) => document.getElementById(id));
if (data && root && !root.hasChildNodes()) drawPage(JSON.parse(data.textContent), root);
var kvviz_default = {
  /** @param {{ model: Model, el: HTMLElement }} context */
  render({ model, el }) {
    el.dataset.kvvizLive = model.get("_kvviz_key");
    return draw(model, el.appendChild(element("div")));
  }
};
export {
  kvviz_default as default
};
