import { watchTheme } from "./theme.js";
import { SINK, element } from "./strip.js";
import { frameOf, unpack } from "./slice.js";
import { createTip } from "./tip.js";
import { pictureOf } from "./picture.js";
import { createLegend, keepKeys, savePicture } from "./panel.js";
import { createColumn } from "./comparer_column.js";
import { createComparerControls } from "./comparer_controls.js";
import { NAMES, NUMBERS, ROWS, meanOf, sortKey } from "./comparer_words.js";

// Draws several recordings into `root`, a column each. `request(layer, head)` asks the host for bytes, a block a
// method, which it hands to `show`; `stepped(step)`, `sorted(sort)` and `picked(token)` tell it of changes. Both hosts
// use this alone.
export function createComparer(root, page, { step, sort, token, css, request, stepped, sorted, picked }) {
  const state = { step, sort, token };
  let shown = false;
  root.classList.add("kvviz", "kv-comparer");
  keepKeys(root);
  const controls = createComparerControls(root, page, { go, pick: ask, sort: order, save });
  const host = root.appendChild(element("div", "kv-columns"));
  host.setAttribute("role", "group");
  host.setAttribute("aria-label", "recordings side by side");
  const curveLabel = labels(host);
  const tip = createTip(root);
  const about = (rows, event) => (rows ? tip.show(rows, event) : tip.hide());
  const columns = page.methods.map((method) => createColumn(host, page, method, { go, choose, turn, point, about }));
  root.append(legend(page), ...page.notes.map((note) => element("p", "kv-note", note)));
  scrollTogether(columns.map((column) => column.panel));
  const unwatch = watchTheme(root, () => columns.forEach((column) => column.recolour()));

  function paint() {
    for (const column of columns) column.place(state.step);
    for (const column of columns) column.paint();
    arrange();
    tip.hide();
    controls.paint(state, columns[0].slice);
  }

  // The columns in order. Their elements stay where they are: moving one would lay its whole text out again.
  function arrange() {
    const key = sortKey(state.sort);
    const value = (column) => (key.mean ? meanOf(column.slice[key.name]) : column.slice[key.name][state.step]);
    const ranked = [...columns];
    if (key) ranked.sort((a, b) => (NUMBERS[key.name].more ? value(b) - value(a) : value(a) - value(b)));
    ranked.forEach((column, place) => (column.element.style.order = place + 1));
  }

  // The curves are of the number that sorts, or of recall.
  function drawCurves() {
    const name = sortKey(state.sort)?.name ?? NAMES[0];
    const all = columns.map((column) => column.slice[name]);
    const top = NUMBERS[name].share ? 1 : Math.max(1e-12, ...all.flatMap((values) => [...values]));
    columns.forEach((column, index) => column.curve(name, all, index, top));
    curveLabel(name, `0 to ${NUMBERS[name].share ? 1 : NUMBERS[name].write(top)}`);
  }

  function go(by, to = state.step) {
    const next = Math.max(0, Math.min(page.steps - 1, to + by));
    if (next === state.step || !shown) return;
    state.step = next;
    paint();
    stepped(next);
  }

  function order(next) {
    if (next === state.sort || !shown) return;
    state.sort = next;
    drawCurves();
    paint();
    sorted(next);
  }

  function ask(layer, head) {
    root.dataset.busy = "";
    request(layer, head);
  }

  // The token that the texts are at; -1 lets go of it.
  function choose(position) {
    if (position === state.token) return seek(position);
    state.token = position;
    seek(position);
    controls.paint(state, columns[0].slice);
    picked(position);
  }

  function seek(position, flash = true) {
    if (position >= 0) for (const column of columns) column.focus(position, flash);
    point(null);
  }

  function turn(way) {
    for (const column of columns) column.prompt.turn(way);
  }

  // Outlines a token in every text; without one, the token that the texts are at.
  function point(position) {
    const lit = position ?? state.token;
    for (const column of columns) column.light(lit < 0 ? [] : [lit]);
  }

  function save() {
    const { layer, head } = columns[0].slice;
    const name = `method-comparer-step-${state.step}-layer-${layer}-head-${head}.png`;
    return savePicture(controls.menu, root, css, name, null, () => {
      root.style.width = `${root.offsetWidth + host.scrollWidth - host.clientWidth}px`; // columns out of sight too
      const picture = pictureOf(root, css); // has taken its copy when it returns
      root.style.width = "";
      return picture;
    });
  }

  function open() {
    if (state.token >= 0) return seek(state.token, false);
    const position = heaviest(columns, state.step);
    for (const column of columns) column.focus(position, false);
  }

  root.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [-1], ArrowRight: [1], Home: [0, 0], End: [0, page.steps - 1] };
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "SELECT" || !moves[event.key]) return;
    go(...moves[event.key]);
    event.preventDefault();
  });

  return {
    show(blocks) {
      const opening = !shown;
      shown = true;
      columns.forEach((column, index) => column.show(unpack(blocks[index])));
      columns.forEach((column) => column.describe());
      delete root.dataset.busy;
      drawCurves();
      paint();
      if (opening) requestAnimationFrame(open); // a notebook attaches the root first
    },
    step: (next) => go(0, next),
    sort: order,
    pick: (position) => position !== state.token && shown && choose(position),
    destroy() {
      unwatch();
      columns.forEach((column) => column.destroy());
    },
  };
}

// The token with the most attention of those that a method chose and none holds as a sink: where the texts open.
function heaviest(columns, step) {
  const frames = columns.map(({ slice }) => frameOf(slice, step)), sinks = new Set();
  for (const { positions, marks } of frames) positions.forEach((position, index) => marks[index] & SINK && sinks.add(position));
  let best = 0, most = -1;
  for (const { positions, groups, weights } of frames) {
    positions.forEach((position, index) => {
      if (groups[index] >= 0 && weights[index] > most && !sinks.has(position)) [best, most] = [position, weights[index]];
    });
  }
  return best;
}

// What one panel scrolls to, all scroll to. The events that this causes in the others are told by their place.
function scrollTogether(panels) {
  const given = new Map();
  for (const leader of panels) {
    leader.addEventListener("scroll", () => {
      const top = leader.scrollTop;
      if (given.get(leader) === top) return;
      given.set(leader, top);
      for (const panel of panels) {
        if (panel === leader || panel.scrollTop === top) continue;
        panel.scrollTop = top;
        given.set(panel, panel.scrollTop);
      }
    });
  }
}

// Names of the rows, which stay in sight while the columns scroll sideways.
function labels(host) {
  const made = host.appendChild(element("div", "kv-labels"));
  made.setAttribute("aria-hidden", "true"); // every cell is described by itself
  made.append(element("span"));
  for (const name of NAMES) made.appendChild(element("span", "", name)).title = NUMBERS[name].meaning;
  const curve = made.appendChild(element("span"));
  curve.title = ROWS.curve;
  const name = curve.appendChild(element("span")), range = curve.appendChild(element("span", "kv-mean"));
  for (const [row, text] of [["map", "steps ↓ × positions →"], ["prompt", "prompt"], ["answer", "answer"]]) made.appendChild(element("span", "", text)).title = ROWS[row];
  return (number, reach) => {
    name.textContent = `${number} over the steps`;
    range.textContent = reach;
  };
}

function legend(page) {
  const marks = [
    ["kv-attended kv-agreed", "agreed", "attended, and the oracle of the same size would attend it too"],
    ["kv-missed", "missed", "the oracle would attend it, the method did not"],
    ["kv-attended kv-wasted", "wasted", "chosen by the method, although the oracle would not attend it"],
    ["kv-attended kv-kept", "sink or recent", "always attended, without being chosen"],
  ];
  if (page.merges) marks.splice(2, 0, ["kv-merged", "merged", MEANING.merged]);
  const strength = "the strength is logarithmic, from 0.0002 and less to 0.35 and more";
  return createLegend(marks, "colour: method · strength: attention", `${strength}; on the map wasted is the paler tint, missed the colour of text`);
}
