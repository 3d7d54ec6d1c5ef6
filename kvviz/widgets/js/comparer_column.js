import { createCurve } from "./comparer_curve.js";
import { meanOf, NAMES, NUMBERS, ROWS } from "./comparer_words.js";
import { element, format } from "./dom.js";
import { explain } from "./explain.js";
import { verdictColours } from "./map_colours.js";
import { mapOf } from "./map_zoom.js";
import { createMatrix } from "./matrix.js";
import { explainNumber, SCOPE_OF, scopeIn, SCOPES } from "./scope.js";
import { frameOf, positionAt } from "./slice.js";
import { createStrip } from "./strip.js";
import { about as aboutHeads, meaningIn, nameIn, unionOf } from "./union.js";

/** @import { ComparedMethod, ComparerPage } from "./comparer.js" */
/** @import { Name } from "./comparer_words.js" */
/** @import { Go } from "./panel.js" */
/** @import { Zoom } from "./map_zoom.js" */
/** @import { Drawn, Frame, Slice } from "./slice.js" */
/** @import { OnHover } from "./strip.js" */
/** @import { Pointed, Rows } from "./tip.js" */
/** @import { AnySlice, Union } from "./union.js" */
/** @typedef {AnySlice & Record<Name, Float64Array>} ColumnSlice */
/**
 * Describes what is under the pointer, or hides the description.
 *
 * @typedef {(rows: Rows | null, at: Pointed) => void} About
 */

const ALL_WHOLE = 40000; // tokens over all columns, up to which the whole prompt is shown
const ALL_WINDOWS = 8000, LEAST_WINDOW = 2000; // tokens shown of a longer one: over all columns, at least per column
const MAP_HEIGHT = 96; // CSS pixels, unless there are too many steps

/**
 * The column of one method: its numbers, the curve, the map, the prompt and the answer.
 *
 * @param {HTMLElement} host
 * @param {ComparerPage} page
 * @param {ComparedMethod} method
 * @param {object} options
 * @param {Go} options.go
 * @param {(position: number) => void} options.choose
 * @param {(direction: number) => void} options.turn
 * @param {(position: number | null) => void} options.point
 * @param {About} options.about
 * @param {Zoom} options.zoom
 */
export function createColumn(host, page, method, { go, choose, turn, point, about, zoom }) {
  const column = host.appendChild(element("section", "kv-column"));
  column.setAttribute("aria-label", method.label);
  column.style.setProperty("--kv-light", method.light);
  column.style.setProperty("--kv-dark", method.dark);
  const { group_name } = method;
  const text = { tokens: [...page.prompt, ...method.fed], prompt_length: page.prompt.length, group_name };
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
    onPick: (step) => go(0, step),
    onHover: (step, event) => about(step === null ? null : [["step", format(step)], ...numbersAt(step)], event),
  });
  /** @type {ColumnSlice} */
  let slice;
  /** @type {Drawn} what the map shows of the slice */
  let drawn;
  /** @type {Frame | null} */
  let frame = null;
  let step = 0;

  /** @type {(step: number) => Rows} */
  const numbersAt = (step) =>
    NAMES.map((name) => [scopedName(name, unionOf(slice).kind), NUMBERS[name].write(slice[name][step])]);
  /** @type {OnHover} */
  const describeToken = (position, event) =>
    about(position === null || !frame ? null : aboutHeads(text, slice, frame, step, position), event);
  const mapCell = cell(column, "steps ↓ × positions →", ROWS.map);
  mapCell.classList.add("kv-map");
  const map = createMatrix(mapCell.appendChild(element("div", "kv-panel")), {
    label: `${method.label}: one row per step, one column per position`,
    height: MAP_HEIGHT,
    zoom,
    palette: () => verdictColours(column, getComputedStyle(column).getPropertyValue("--kv-method")),
    onHover(cell, event) {
      if (!cell || !slice) return about(null, event);
      const [row] = cell, rows = aboutHeads(text, slice, frameOf(slice, row), row, positionAt(drawn, cell));
      about([["step", format(row)], ...rows], event);
    },
    onPick(row, mapColumn) {
      go(0, row);
      choose(positionAt(drawn, [row, mapColumn]));
    },
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
    },
  });

  const answerCell = cell(column, "answer", ROWS.answer);
  answerCell.classList.add("kv-answer");
  const answerPanel = answerCell.appendChild(element("div", "kv-panel"));
  const answer = createStrip(answerPanel, {
    tokens: method.fed,
    start: page.prompt.length,
    label: `${method.label}: answer`,
    onHover: describeToken,
  });
  const lines = /** @type {HTMLElement} */ (answerPanel.querySelector(".kv-lines"));
  const fed = /** @type {HTMLElement[]} */ ([...lines.children]);
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
    show(shown) {
      slice = shown;
      paintMap();
    },
    paintMap,
    describe() {
      const row = slice.head * method.rows_a_head, { kind, heads } = unionOf(slice), union = kind !== "none";
      const which = union
        ? heads > 1 ? `union of ${heads} heads` : "one head"
        : method.rows_a_head > 1
        ? `query head ${row}`
        : "";
      note.textContent = [`budget ${format(method.budget)}`, which].filter(Boolean).join(" · ");
      for (const { name, mean, cell } of numbers) {
        mean.textContent = `mean ${NUMBERS[name].write(meanOf(slice[name]))}`;
        const scope = cell.dataset.scope = scopeIn(SCOPE_OF[name], kind);
        cell.dataset.name = scopedName(name, kind);
        explainNumber(cell, `${meaningIn(name, kind, heads)}; left at this step, right the mean over the steps`, scope);
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
      const token = fed[step]; // undefined if a very long answer shows another window
      if (token) answerPanel.scrollTop = token.offsetTop - answerPanel.clientHeight / 2;
    },
    paint() {
      frame = frameOf(slice, step);
      prompt.paint(frame.positions, frame.looks, frame.marks);
      fed.forEach((span, index) => {
        span.toggleAttribute("data-now", index === step);
        span.toggleAttribute("data-ahead", index > step);
      });
      for (const { name, now, cell } of numbers) {
        const value = slice[name][step];
        now.textContent = NUMBERS[name].write(value);
        if (NUMBERS[name].share) cell.style.setProperty("--kv-share", String(value));
      }
    },
    recolour: map.recolour,
    destroy: map.destroy,
  };
}

/**
 * @param {HTMLElement} column
 * @param {string} name
 * @param {string} meaning
 */
function cell(column, name, meaning) {
  const cell = column.appendChild(element("div", "kv-cell"));
  cell.dataset.name = name;
  explain(cell, meaning);
  return cell;
}

/**
 * @param {Name} name
 * @param {Union} union
 */
function scopedName(name, union) {
  return `${nameIn(name, union)} (${SCOPES[scopeIn(SCOPE_OF[name], union)]})`;
}

/**
 * @param {HTMLElement} column
 * @param {Name} name
 */
function numberCell(column, name) {
  const row = cell(column, name, NUMBERS[name].meaning);
  row.classList.add("kv-numbers");
  row.toggleAttribute("data-share", Boolean(NUMBERS[name].share));
  const now = row.appendChild(element("span", "kv-number")), mean = row.appendChild(element("span", "kv-mean"));
  return { name, cell: row, now, mean };
}
