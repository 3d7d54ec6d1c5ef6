// Where the objects of a scene's frame are: panels become marks in CSS pixels. mechanism_canvas.js draws and moves them.

/** @typedef {{ kind: string, numbers: number[], groups: number[] | null, labels: string[] | null,
 *   strength: number[] | null }} Marks */
/** @typedef {Marks & { x: number[] | null, y: number[] | null, at: number[] | null, shape: string }} Dots */
/** @typedef {Marks & { name: string, values: number[] | null }} Row */
/** @typedef {{ type: "plane", title: string, dots: Dots[], boxes: [number[], string][], axes: [string, string] }} Plane */
/** @typedef {Marks & { type: "bars", title: string, values: number[], cut: number | null,
 *   log: boolean }} Bars */
/** @typedef {Marks & { type: "ruler", title: string, sizes: number[], cut: number | null }} Ruler */
/** @typedef {{ type: "rows", title: string, rows: Row[], linked: boolean }} Rows */
/** @typedef {Plane | Bars | Ruler | Rows} Panel */
/** @typedef {{ positions: number[], x: number[], y: number[] }} KeyMap */
/** @typedef {{ x: number, y: number, w: number, h: number }} Box */
/**
 * Something that is drawn. `key` is unique in a frame, `id` is the object's, shared by all that show it; `group` gives
 * the hue. A mark without an id is a part of the panel: a title, a line, a box.
 *
 * @typedef {Box & { key: string, id: string, shape: string, group: number, alpha: number, label: string,
 *   value: number | null }} Mark
 */
/** @typedef {{ marks: Mark[], height: number }} Layout */
/** @typedef {(text: string, small?: boolean) => number} Measure */

const GAP = 18, TITLE = 20, SIDE = 270, NARROW = 560, RULER = 62, LINE = 24, NAME = 128, EDGE = 14, LINKED = 90; // between rows with links from one to the other
/** @type {Omit<Mark, "key" | "shape" | "x" | "y">} */
const PLAIN = { id: "", w: 0, h: 0, group: -1, alpha: 1, label: "", value: null };

/**
 * The marks of a frame's panels in a picture of this width: planes and bars side by side if there is room, then the
 * others below, one below the other.
 *
 * @param {Panel[]} panels
 * @param {KeyMap} map
 * @param {number} width
 * @param {Measure} measure
 * @returns {Layout}
 */
export function layoutOf(panels, map, width, measure) {
  /** @type {Mark[]} */
  const marks = [];
  const beside = panels.filter(({ type }) => type === "plane" || type === "bars");
  const below = panels.filter((panel) => !beside.includes(panel));
  const columns = width < NARROW ? 1 : Math.max(beside.length, 1), each = (width - GAP * (columns - 1)) / columns;
  let top = 0;
  beside.forEach((panel, index) => {
    const column = index % columns;
    if (index && !column) top += SIDE + GAP;
    const box = { x: column * (each + GAP), y: top + TITLE, w: each, h: SIDE - TITLE };
    marks.push(titleOf(panel, box));
    marks.push(
      ...(panel.type === "plane" ? planeMarks(panel, map, box) : barMarks(/** @type {Bars} */ (panel), box, measure)),
    );
  });
  if (beside.length) top += SIDE + (below.length ? GAP : 0);
  below.forEach((panel, index) => {
    const box = { x: 0, y: top + TITLE, w: width, h: RULER - TITLE };
    marks.push(titleOf(panel, box));
    const made = panel.type === "ruler"
      ? rulerMarks(panel, box, measure)
      : rowMarks(/** @type {Rows} */ (panel), box, measure);
    marks.push(...made.marks);
    top += TITLE + made.height + (index < below.length - 1 ? GAP : 0);
  });
  return { marks: unique(marks), height: Math.max(top, 1) };
}

/**
 * @param {Panel} panel
 * @param {Box} box
 * @returns {Mark}
 */
function titleOf({ title, type }, box) {
  return { ...PLAIN, key: `title ${type} ${title}`, shape: "title", x: box.x, y: box.y - 7, label: title };
}

/**
 * The same object in several rows has several marks: the second and later ones get keys of their own.
 *
 * @param {Mark[]} marks
 */
function unique(marks) {
  /** @type {Map<string, number>} */
  const seen = new Map();
  for (const mark of marks) {
    const count = seen.get(mark.key) ?? 0;
    seen.set(mark.key, count + 1);
    if (count) mark.key += ` (${count + 1})`;
  }
  return marks;
}

/** @param {Marks} marks */
function objects({ kind, numbers, groups, labels, strength }) {
  return numbers.map((number, index) => ({
    ...PLAIN,
    id: `${kind}:${number}`,
    group: groups?.[index] ?? -1,
    alpha: strength?.[index] ?? 1,
    label: labels?.[index] ?? "",
  }));
}

/**
 * @param {Plane} plane
 * @param {KeyMap} map
 * @param {Box} box
 * @returns {Mark[]}
 */
function planeMarks(plane, map, box) {
  const inner = { x: box.x + EDGE, y: box.y + EDGE, w: box.w - 2 * EDGE, h: box.h - 2 * EDGE };
  const ground = { ...PLAIN, ...box, key: `ground ${box.x} ${box.y}`, shape: "ground", alpha: 1 };
  const ranges = plane.dots.some(({ x }) => x) ? rangesOf(plane) : { left: 0, right: 1, bottom: 0, top: 1 };
  const place = (/** @type {number} */ x, /** @type {number} */ y) => ({
    x: inner.x + (inner.w * (x - ranges.left)) / (ranges.right - ranges.left || 1),
    y: inner.y + inner.h - (inner.h * (y - ranges.bottom)) / (ranges.top - ranges.bottom || 1),
  });
  /** @type {Map<number, number>} */
  const onMap = new Map(map.positions.map((position, index) => [position, index]));
  /** @type {Map<number, [x: number, y: number, count: number]>} */
  const middles = new Map();
  /** @type {Mark[]} */
  const dots = [];
  for (const each of plane.dots) {
    const shape = each.shape, size = shape === "dot" ? 2.6 : shape === "ring" ? 7 : 8;
    objects(each).forEach((object, index) => {
      const number = each.numbers[index];
      /** @type {[x: number, y: number] | null} */
      let at = null;
      if (each.x && each.y) at = [each.x[index], each.y[index]];
      else {
        const token = each.kind === "token" ? number : each.at?.[index] ?? -1, found = onMap.get(token);
        if (found !== undefined) at = [map.x[found], map.y[found]];
        else if (each.kind !== "token") {
          const [x, y, count] = middles.get(object.group) ?? [0, 0, 0];
          if (count) at = [x / count, y / count];
        }
        if (at && each.kind === "token") {
          const [x, y, count] = middles.get(object.group) ?? [0, 0, 0];
          middles.set(object.group, [x + at[0], y + at[1], count + 1]);
        }
      }
      if (at) dots.push({ ...object, ...place(...at), key: `plane ${object.id}`, shape, w: size, h: size });
    });
  }
  const boxes = plane.boxes.map(([[left, bottom, right, top], label], index) => {
    const low = place(left, bottom), high = place(right, top);
    const size = { x: low.x, y: high.y, w: high.x - low.x, h: low.y - high.y };
    return { ...PLAIN, ...size, key: `box ${index}`, shape: "box", label };
  });
  const [across, up] = plane.axes;
  const axes = [
    {
      ...PLAIN,
      key: `across ${across}`,
      shape: "note",
      x: box.x + box.w - 6,
      y: box.y + box.h - 5,
      w: -1,
      label: across,
    },
    { ...PLAIN, key: `up ${up}`, shape: "note", x: box.x + 5, y: box.y + 12, label: up },
  ].filter(({ label }) => label);
  return [ground, ...boxes, ...dots, ...axes];
}

/** @param {Plane} plane */
function rangesOf({ dots, boxes }) {
  const xs = [...dots.flatMap(({ x }) => x ?? []), ...boxes.flatMap(([[left, , right]]) => [left, right])];
  const ys = [...dots.flatMap(({ y }) => y ?? []), ...boxes.flatMap(([[, bottom, , top]]) => [bottom, top])];
  const least = (/** @type {number[]} */ values) => values.reduce((low, value) => Math.min(low, value), Infinity);
  const most = (/** @type {number[]} */ values) => values.reduce((high, value) => Math.max(high, value), -Infinity);
  const [left, right, bottom, top] = [least(xs), most(xs), least(ys), most(ys)];
  const beside = 0.08 * (right - left), above = 0.1 * (top - bottom); // room for axes and labels
  return { left: left - beside, right: right + beside, bottom: bottom - above, top: top + above };
}

/**
 * @param {Bars} bars
 * @param {Box} box
 * @param {Measure} measure
 * @returns {Mark[]}
 */
function barMarks(bars, box, measure) {
  const all = objects(bars), height = box.h / Math.max(all.length, 1), readable = height >= 9;
  const room = readable ? Math.max(0, ...all.map(({ label }) => measure(label, true))) + 8 : 0;
  const values = bars.log ? bars.values.map(Math.log10) : bars.values;
  const least = values.reduce((low, value) => Math.min(low, value), Infinity);
  const most = values.reduce((high, value) => Math.max(high, value), -Infinity);
  // Where all values are negative, the differences count: the axis then begins near the smallest value.
  const floats = bars.log || (least < 0 && most <= 0);
  const from = floats ? least - 0.08 * (most - least || 1) : Math.min(least, 0);
  const to = floats ? most : Math.max(most, 0);
  const left = box.x + room,
    width = box.w - room - 44,
    at = (/** @type {number} */ value) => left + (width * (value - from)) / (to - from || 1);
  const zero = Math.max(left, Math.min(left + width, at(floats ? from : 0)));
  const marks = all.map((object, index) => {
    const end = at(values[index]), x = Math.min(zero, end);
    const size = { x, y: box.y + index * height, w: Math.max(Math.abs(end - zero), 1), h: Math.max(height * 0.8, 1) };
    return {
      ...object,
      ...size,
      key: `bars ${object.id}`,
      shape: readable ? "bar" : "sliver",
      value: bars.values[index],
    };
  });
  if (bars.cut === null) return marks;
  const cut = { x: box.x, y: box.y + bars.cut * height - 0.1 * height, w: box.w, h: 0 };
  return [...marks, { ...PLAIN, ...cut, key: "cut of bars", shape: "cut", label: "cut" }];
}

/**
 * @param {Ruler} ruler
 * @param {Box} box
 * @param {Measure} measure
 * @returns {Layout}
 */
function rulerMarks(ruler, box, measure) {
  const all = objects(ruler), total = ruler.sizes.reduce((sum, size) => sum + size, 0);
  // With a cut, what lies far behind it is left out: the part before it stays readable.
  const shown = Math.max(1, ruler.cut === null ? total : Math.min(total, ruler.cut * 2)), scale = box.w / shown;
  let start = 0;
  /** @type {Mark[]} */
  const marks = [];
  all.forEach((object, index) => {
    const size = ruler.sizes[index];
    if (start < shown) {
      const width = Math.min(size, shown - start) * scale,
        place = { x: box.x + start * scale, y: box.y, w: width, h: LINE };
      const label = measure(object.label, true) + 6 < width ? object.label : "";
      marks.push({ ...object, ...place, label, key: `ruler ${object.id}`, shape: "segment", value: size });
      if (start + size <= shown && width > 26) {
        const text = (start + size).toLocaleString("en-US");
        const at = { x: box.x + (start + size) * scale, y: box.y + LINE + 13, w: -1 };
        marks.push({ ...PLAIN, ...at, key: `total ${index}`, shape: "note", label: text });
      }
    }
    start += size;
  });
  if (ruler.cut !== null) {
    const x = box.x + ruler.cut * scale, label = `${ruler.cut.toLocaleString("en-US")} tokens`;
    const beyond = x + measure(label, true) + 4 > box.x + box.w; // then the label is left of the line
    const line = { ...PLAIN, x, y: box.y - 4, h: LINE + 32 };
    marks.push({ ...line, key: "cut of ruler", shape: "cut", label: beyond ? "" : label });
    if (beyond) {
      marks.push({ ...PLAIN, x: x - 4, y: line.y + line.h, w: -1, key: "label of cut", shape: "note", label });
    }
  }
  return { marks, height: LINE + 36 };
}

/**
 * @param {Rows} panel
 * @param {Box} box
 * @param {Measure} measure
 * @returns {Layout}
 */
function rowMarks({ rows, linked }, box, measure) {
  const values = rows.flatMap(({ values }) => values ?? []);
  const low = values.reduce((least, value) => Math.min(least, value), Infinity);
  const high = values.reduce((most, value) => Math.max(most, value), -Infinity);
  const named = rows.some(({ name }) => name), narrow = box.w < NARROW;
  const left = box.x + (named && !narrow ? NAME : 0), right = box.x + box.w;
  let y = box.y;
  /** @type {Mark[]} */
  const marks = [];
  rows.forEach((row, number) => {
    if (named) {
      if (narrow && row.name) y += 14;
      marks.push({
        ...PLAIN,
        key: `name ${number} ${row.name}`,
        shape: "note",
        x: box.x,
        y: narrow ? y - 3 : y + 14,
        label: row.name,
      });
    }
    const all = objects(row), lettered = all.some(({ label }) => label);
    const cell = lettered ? 0 : Math.max(1.5, Math.min(16, (right - left) / Math.max(all.length, 1)));
    const widths = all.map(({ label }) => lettered ? Math.max(16, measure(label) + 9) : cell);
    // Chips of linked rows fill the row, so that links and their labels stay apart.
    const spare = right - left - widths.reduce((sum, width) => sum + width, 0);
    const apart = linked ? Math.max(0, spare / Math.max(all.length, 1)) : 0;
    let x = left;
    all.forEach((object, index) => {
      const width = widths[index];
      if (x > left && x + width > right + 0.5) {
        x = left;
        y += LINE;
      }
      const value = row.values?.[index] ?? null;
      const alpha = value === null ? object.alpha : object.alpha * (0.12 + (0.88 * (value - low)) / (high - low || 1));
      const place = { x, y, w: width - (cell && cell < 5 ? 0 : 2), h: LINE - 5 };
      marks.push({
        ...object,
        ...place,
        alpha,
        value,
        key: `row ${object.id}`,
        shape: value === null ? "chip" : "cell",
      });
      x += width + apart;
    });
    y += LINE + (linked && number < rows.length - 1 ? LINKED : 3);
  });
  return { marks, height: y - box.y };
}
