import { svgElement } from "./dom.js";
import { pixels } from "./theme.js";

// Boxes of a drawing: background, hatches and dots, border, inset shadow and outline, as style sheets here use them.

/** @import { Drawing } from "./vector.js" */

const SIDES = ["Top", "Right", "Bottom", "Left"];

/** What reads a CSS colour as one that every program for SVG knows, and its opacity. */
export function colourReader() {
  /** @type {Map<string, { colour: string, alpha: number }>} */
  const known = new Map();
  return (/** @type {string} */ text) => {
    let read = known.get(text);
    if (!read) {
      const [red, green, blue, alpha] = pixels([text]);
      read = { colour: `rgb(${red},${green},${blue})`, alpha: Math.round((1000 * alpha) / 255) / 1000 };
      known.set(text, read);
    }
    return read;
  };
}

/**
 * The attributes of a colour as a `fill` or `stroke`.
 *
 * @param {Drawing} drawing
 * @param {"fill" | "stroke"} kind
 * @param {string} text
 * @returns {Record<string, string | number>}
 */
export function ink(drawing, kind, text) {
  const { colour, alpha } = drawing.read(text);
  return alpha === 1 ? { [kind]: colour } : { [kind]: colour, [`${kind}-opacity`]: alpha };
}

/**
 * @param {Drawing} drawing
 * @param {SVGElement} into
 * @param {DOMRect} box
 * @param {CSSStyleDeclaration} style
 */
export function paintBox(drawing, into, box, style) {
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

/**
 * @param {Drawing} drawing
 * @param {SVGElement} into
 * @param {DOMRect} box
 * @param {CSSStyleDeclaration} style
 * @param {number} ascent
 */
export function underline(drawing, into, box, style, ascent) {
  const y = box.top - drawing.top + parseFloat(style.paddingTop) + ascent +
    (parseFloat(style.textUnderlineOffset) || 1);
  const width = parseFloat(style.textDecorationThickness) || 1;
  const [x1, x2] = [box.left - drawing.left, box.right - drawing.left];
  const stroke = { "stroke-width": width, ...ink(drawing, "stroke", style.textDecorationColor) };
  into.append(svgElement("line", { ...rounded({ x1, x2, y1: y + width / 2, y2: y + width / 2 }), ...stroke }));
}

/**
 * @param {Drawing} drawing
 * @param {SVGElement} into
 * @param {DOMRect} box
 * @param {number} radius
 * @param {CSSStyleDeclaration} style
 */
function paintBorder(drawing, into, box, radius, style) {
  const sides = SIDES.map((side) => ({
    width: parseFloat(style.getPropertyValue(`border-${side.toLowerCase()}-width`)),
    line: style.getPropertyValue(`border-${side.toLowerCase()}-style`),
    colour: style.getPropertyValue(`border-${side.toLowerCase()}-color`),
  }));
  const [first] = sides, drawn = sides.map(({ width, line }) => line !== "none" && width > 0);
  if (sides.every((side) => JSON.stringify(side) === JSON.stringify(first))) {
    if (drawn[0]) into.append(frame(drawing, box, radius, -first.width / 2, first.width, first.colour, first.line));
    return;
  }
  const left = box.left - drawing.left, top = box.top - drawing.top;
  sides.forEach(({ width, line, colour }, side) => {
    if (!drawn[side]) return;
    const across = side % 2 === 0, far = side === 1 || side === 2;
    const at = (far ? (across ? box.height : box.width) - width / 2 : width / 2) + (across ? top : left);
    const ends = across
      ? { x1: left, x2: left + box.width, y1: at, y2: at }
      : { x1: at, x2: at, y1: top, y2: top + box.height };
    into.append(svgElement("line", { ...rounded(ends), ...strokeOf(drawing, width, colour, line) }));
  });
}

/**
 * The outline of a box that is `beyond` pixels larger on each side.
 *
 * @param {Drawing} drawing
 * @param {DOMRect} box
 * @param {number} radius
 * @param {number} beyond
 * @param {number} width
 * @param {string} colour
 * @param {string} line
 */
function frame(drawing, box, radius, beyond, width, colour, line) {
  const looks = { fill: "none", ...strokeOf(drawing, width, colour, line) };
  return rectangle(drawing, box, beyond, radius && Math.max(0, radius + beyond), looks);
}

/**
 * @param {Drawing} drawing
 * @param {number} width
 * @param {string} colour
 * @param {string} line
 */
function strokeOf(drawing, width, colour, line) {
  const dashes = { dashed: `${3 * width} ${2 * width}`, dotted: `${width} ${width}` }[line];
  const stroke = { "stroke-width": width, ...ink(drawing, "stroke", colour) };
  return dashes ? { ...stroke, "stroke-dasharray": dashes } : stroke;
}

/**
 * @param {Drawing} drawing
 * @param {DOMRect} box
 * @param {number} beyond
 * @param {number} radius
 * @param {Record<string, string | number>} looks
 */
function rectangle(drawing, box, beyond, radius, looks) {
  const [x, y] = [box.left - drawing.left - beyond, box.top - drawing.top - beyond];
  const size = { width: Math.max(0, box.width + 2 * beyond), height: Math.max(0, box.height + 2 * beyond) };
  return svgElement("rect", { ...rounded({ x, y, ...size }), ...(radius ? rounded({ rx: radius }) : {}), ...looks });
}

/**
 * A background of stripes or dots as a pattern, and one of two colours, of which the first ends at a share, as two boxes.
 *
 * @param {Drawing} drawing
 * @param {SVGElement} into
 * @param {DOMRect} box
 * @param {number} radius
 * @param {CSSStyleDeclaration} style
 */
function paintImage(drawing, into, box, radius, style) {
  const image = /^([a-z-]+)\((.*)\)$/.exec(style.backgroundImage);
  if (!image) return;
  const [first, ...stops] = image[2].split(/,\s*(?![^(]*\))/);
  const read = stops.map((stop) => ({
    colour: stop.replace(/(\s+-?[\d.]+(px|%))+$/, ""),
    places: [...stop.matchAll(/\s(-?[\d.]+)(?:px|%)/g)].map(([, number]) => Number(number)).slice(-2),
  }));
  if (image[1] === "linear-gradient") {
    const share = Math.min(1, Math.max(0, read[0].places[0] / 100));
    const [before, after] = [
      new DOMRect(box.left, box.top, box.width * share, box.height),
      new DOMRect(box.left + box.width * share, box.top, box.width * (1 - share), box.height),
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
    const dots = image[1] === "radial-gradient", size = dots ? parseFloat(style.backgroundSize) : Math.max(...places);
    /** @type {Record<string, string>} */
    const turn = dots ? {} : { patternTransform: `rotate(${parseFloat(first) - 90})` };
    const units = { id, patternUnits: "userSpaceOnUse", width: size, height: size, ...turn };
    const fill = ink(drawing, "fill", read[0].colour);
    drawing.defs.appendChild(svgElement("pattern", units)).append(
      dots
        ? svgElement("circle", { cx: size / 2, cy: size / 2, r: (places[0] + places[1]) / 2, ...fill })
        : svgElement("rect", { width: Math.min(...places.filter((place) => place > 0)), height: size, ...fill }),
    );
  }
  into.append(rectangle(drawing, box, 0, radius, { fill: `url(#${id})` }));
}

/**
 * Numbers with two decimals, which keep the file small.
 *
 * @param {Record<string, number>} numbers
 */
export function rounded(numbers) {
  return Object.fromEntries(Object.entries(numbers).map(([name, value]) => [name, Math.round(100 * value) / 100]));
}
