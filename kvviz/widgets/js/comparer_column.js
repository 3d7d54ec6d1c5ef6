import { LEVELS, NOTHING } from "./theme.js";
import { createStrip, element, format } from "./strip.js";
import { createMatrix } from "./matrix.js";
import { frameOf } from "./slice.js";
import { aboutToken } from "./words.js";
import { createCurve } from "./comparer_curve.js";
import { NAMES, NUMBERS, ROWS, meanOf } from "./comparer_words.js";

// A byte of the map is verdict * LEVELS + level, packed by kvviz/widgets/comparer_view.py.
export const AGREED = 0, WASTED = 1, KEPT = 2, MISSED = 3, MERGED_AWAY = 4;
const ALL_WINDOWS = 40000, LEAST_WINDOW = 2000; // tokens of the prompt shown at once, in all columns and in each
const MAP_HEIGHT = 96; // CSS pixels, where the steps leave it that low

// One method: its numbers, the curve, the map, the prompt and the answer. `about(rows, event)` describes or hides.
export function createColumn(host, page, method, { go, choose, turn, point, about }) {
  const column = host.appendChild(element("section", "kv-column"));
  column.setAttribute("aria-label", method.label);
  column.style.setProperty("--kv-light", method.light);
  column.style.setProperty("--kv-dark", method.dark);
  const own = { tokens: [...page.prompt, ...method.fed], prompt_length: page.prompt.length, group_name: method.group_name };
  const head = column.appendChild(element("div", "kv-name-cell"));
  head.title = method.about;
  head.append(element("h3", "", method.label));
  const note = head.appendChild(element("span", "kv-mean"));

  const numbers = Object.fromEntries(NAMES.map((name) => [name, numberCell(column, name)]));
  const curveCell = cell(column, "over the steps", ROWS.curve);
  const curve = createCurve(curveCell, {
    label: `${method.label}: over the steps`,
    onPick: (step) => go(0, step),
    onHover: (step, event) => about(step === null ? null : [["step", format(step)], ...NAMES.map((name) => [name, NUMBERS[name].write(slice[name][step])])], event),
  });
  let slice = null, frame = null, step = 0;

  const tell = (position, event) => about(position === null || !frame ? null : aboutToken(own, slice, frame, step, position), event);
  const mapCell = cell(column, "steps ↓ × positions →", ROWS.map);
  mapCell.classList.add("kv-map");
  const map = createMatrix(mapCell.appendChild(element("div", "kv-panel")), {
    label: `${method.label}: one row a step, one column a position`,
    height: MAP_HEIGHT,
    palette: () => verdictColours(column),
    onHover(place, event) {
      if (!place || !slice) return about(null, event);
      const position = positionAt(...place);
      about([["step", format(place[0])], ...aboutToken(own, slice, frameOf(slice, place[0]), place[0], position)], event);
    },
    onPick(row, at) {
      go(0, row);
      choose(positionAt(row, at));
    },
  });
  const positionAt = (row, at) => slice.map_positions[row * slice.shapes.map_positions[1] + at];

  const promptCell = cell(column, "prompt", ROWS.prompt);
  promptCell.classList.add("kv-prompt");
  const panel = promptCell.appendChild(element("div", "kv-panel"));
  const prompt = createStrip(panel, {
    tokens: page.prompt,
    label: `${method.label}: prompt`,
    most: Math.max(LEAST_WINDOW, ALL_WINDOWS / page.methods.length),
    onTurn: turn,
    onHover(position, event) {
      point(position);
      tell(position, event);
    },
  });

  const answerCell = cell(column, "answer", ROWS.answer);
  answerCell.classList.add("kv-answer");
  const answerPanel = answerCell.appendChild(element("div", "kv-panel"));
  const answer = createStrip(answerPanel, { tokens: method.fed, start: page.prompt.length, label: `${method.label}: answer`, onHover: tell });
  const fed = [...answerPanel.querySelectorAll("[data-position]")];
  fed.forEach((span, index) => span.toggleAttribute("data-question", index < method.question_length));
  const next = answerPanel.querySelector(".kv-lines").appendChild(element("span", "kv-next", method.next_token));
  next.title = "what the last step predicts";

  return {
    element: column,
    panel,
    prompt,
    focus: (position, flash) => (position < page.prompt.length ? prompt : answer).focus(position, flash),
    light(positions) {
      prompt.light(positions);
      answer.light(positions);
    },
    get slice() {
      return slice;
    },
    // Reads the layout, so that it comes before `describe` changes any column.
    show(shown) {
      slice = shown;
      map.paint(slice.map_looks, ...slice.shapes.map_looks);
    },
    describe() {
      const row = slice.head * method.rows_a_head;
      note.textContent = [`budget ${format(method.budget)}`, method.rows_a_head > 1 ? `query head ${row}` : ""].filter(Boolean).join(" · ");
      for (const name of NAMES) numbers[name].mean.textContent = `mean ${NUMBERS[name].write(meanOf(slice[name]))}`;
    },
    curve(name, all, front, top) {
      curveCell.dataset.name = `${name} over the steps`;
      curve.paint(all, front, top);
    },
    // Everything that reads the layout comes here, before `paint` changes any column.
    place(now) {
      step = now;
      map.frame(step);
      curve.frame(step);
      if (fed[step]) answerPanel.scrollTop = fed[step].offsetTop - answerPanel.clientHeight / 2; // a very long answer shows a window
    },
    paint() {
      frame = frameOf(slice, step);
      prompt.paint(frame.positions, frame.looks, frame.marks);
      fed.forEach((span, index) => {
        span.toggleAttribute("data-now", index === step);
        span.toggleAttribute("data-ahead", index > step);
      });
      for (const name of NAMES) {
        const value = slice[name][step];
        numbers[name].now.textContent = NUMBERS[name].write(value);
        if (NUMBERS[name].share) numbers[name].cell.style.setProperty("--kv-share", value);
      }
    },
    recolour: map.recolour,
    destroy: map.destroy,
  };
}

function cell(column, name, meaning) {
  const made = column.appendChild(element("div", "kv-cell"));
  made.dataset.name = name;
  made.dataset.meaning = meaning;
  return made;
}

function numberCell(column, name) {
  const made = cell(column, name, NUMBERS[name].meaning);
  made.title = `${NUMBERS[name].meaning}; at this step, and its mean over the steps`;
  made.classList.add("kv-numbers");
  made.toggleAttribute("data-share", Boolean(NUMBERS[name].share));
  return { cell: made, now: made.appendChild(element("span", "kv-number")), mean: made.appendChild(element("span", "kv-mean")) };
}

// RGBA of the 256 bytes of a map. Agreed is strong, wasted a pale tint of it, kept grey, missed the colour of text.
function verdictColours(column) {
  const style = getComputedStyle(column);
  const method = style.getPropertyValue("--kv-method"), muted = style.getPropertyValue("--kv-muted");
  const tones = { [AGREED]: [method, 0.5, 1], [WASTED]: [method, 0.15, 0.3], [KEPT]: [muted, 0.1, 0.25], [MISSED]: [style.color, 0.25, 0.9], [MERGED_AWAY]: [method, 0.3, 0.6] };
  const canvas = element("canvas");
  canvas.width = 256;
  canvas.height = 1;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  for (let look = 0; look < NOTHING; look++) {
    const [colour, from, until] = tones[Math.floor(look / LEVELS)] ?? ["transparent", 0, 0];
    context.globalAlpha = from + ((look % LEVELS) / (LEVELS - 1)) * (until - from);
    context.fillStyle = colour;
    context.fillRect(look, 0, 1, 1);
  }
  return context.getImageData(0, 0, 256, 1).data;
}
