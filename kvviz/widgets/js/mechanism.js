import { element, format, hasModifier, targetOf } from "./dom.js";
import { createFind } from "./find.js";
import { createHeadPanel } from "./head_panel.js";
import { createPicture } from "./mechanism_canvas.js";
import { createControls } from "./mechanism_controls.js";
import { createWords, describe, MEANING } from "./mechanism_words.js";
import { createLegend, keepKeys, stepKeys, titledPanel } from "./panel.js";
import { createPlacePickers } from "./place_pickers.js";
import { saveAs } from "./save.js";
import { createStrip } from "./strip.js";
import { HUES, watchTheme } from "./theme.js";
import { createTip } from "./tip.js";
import { createWait } from "./wait.js";
import { decimals, marksOf, visible } from "./words.js";

/** @import { HeadNumbers } from "./head_panel.js" */
/** @import { View } from "./host.js" */
/** @import { Picture } from "./mechanism_canvas.js" */
/** @import { KeyMap, Mark } from "./mechanism_layout.js" */
/** @import { Format } from "./save.js" */
/** @import { Pointed, Rows } from "./tip.js" */
/** @typedef {Picture & { chapter: string, text: string, result: string, words: string,
 *   lit: { positions: number[], looks: number[], marks: number[] } | null }} Frame */
/**
 * @typedef {object} Scene
 * @property {string} title
 * @property {string[]} chapters
 * @property {Frame[]} frames
 * @property {Record<string, number[]>} members
 * @property {number[]} hues
 * @property {KeyMap} map
 * @property {{ layer: number, head: number, step: number, token: number }} where
 */
/**
 * @typedef {object} MechanismPage
 * @property {string} title
 * @property {string} call
 * @property {number | null} queries
 * @property {string[]} tokens
 * @property {number} prompt_length
 * @property {number[]} layers
 * @property {number[]} heads
 * @property {number[]} steps
 * @property {string} head_name
 * @property {"none"[]} unions
 * @property {number} per_kv_head
 * @property {HeadNumbers[]} head_maps
 * @property {number[]} span
 * @property {boolean} merges
 * @property {string[]} notes
 */

const WORD_MS = 300, LEAST_MS = 2200; // that a frame is shown while playing: the time to read it

/**
 * A method at work, frame by frame: a picture in which things move, the words about it, and the text.
 *
 * @type {View}
 */
export function createMechanism(root, host) {
  /** @type {MechanismPage} */
  const page = host.get("page");
  /** @type {Scene} */
  let scene = JSON.parse(new TextDecoder().decode(host.bytes("content")));
  /** @type {number} */
  let now = Math.min(host.get("frame"), scene.frames.length - 1);
  /** @type {number} */
  let followed = host.get("token");
  /** @type {number | null} */
  let timer = null;
  root.classList.add("kvviz", "kv-mechanism");
  keepKeys(root);
  const controls = createControls(root, page, { go, toggle, step: (step) => ask({ step }), save });
  const wait = createWait(root, back);
  const tip = createTip(root);
  const heads = createHeadPanel(root, page, { tip, pick: (layer, head) => ask({ layer, head }) });
  const pickers = createPlacePickers(controls.bar, page, (layer, head) => ask({ layer, head }));

  const grid = root.appendChild(element("div", "kv-grid"));
  const { panel: pictured, heading } = titledPanel(grid, "", "kv-stage-picture", MEANING.picture);
  const chapter = heading.appendChild(element("span"));
  const picture = createPicture(pictured, {
    colours,
    hueOf: (group) => group < 0 || group >= scene.hues.length ? null : (scene.hues[group] * 360) / HUES,
    onHover: (mark, at) => mark ? tip.show(about(mark), at) : tip.hide(),
    onPick(mark) {
      const [kind, number] = mark.id.split(":");
      if (kind === "token") pick(Number(number));
    },
  });
  const words = createWords(pictured.appendChild(element("div", "kv-words")), picture.light);
  const spoken = root.appendChild(element("p", "kv-spoken"));
  spoken.setAttribute("role", "status");
  const { panel: promptPanel, heading: promptHeading } = titledPanel(grid, "text", "kv-prompt", MEANING.prompt);
  const strip = createStrip(promptPanel, {
    tokens: page.tokens,
    span: page.span,
    label: "text",
    onHover: (position, at) => position === null ? tip.hide() : tip.show(aboutToken(position), at),
    onPick: pick,
  });
  createFind(promptHeading, root, { tokens: page.tokens, strips: () => [strip] });
  const legend = createLegend(
    marksOf(page.merges),
    `hue: group (${HUES}, then they repeat) · outlined: followed`,
    MEANING.follow,
  );
  root.append(legend, ...page.notes.filter(Boolean).map((note) => element("p", "kv-note", note)));
  const unwatch = watchTheme(root, picture.paint);

  function colours() {
    const style = getComputedStyle(root), read = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
    return {
      text: read("--kv-text"),
      muted: read("--kv-muted"),
      line: read("--kv-line"),
      brand: read("--kv-brand"),
      ground: read("--kv-ground"),
      raised: read("--kv-raised"),
      dark: root.dataset.theme === "dark",
      family: style.fontFamily,
    };
  }

  /** @param {boolean} moving */
  function paint(moving) {
    const frame = scene.frames[now];
    chapter.textContent = frame.chapter;
    words.show(frame.text, frame.result, moving);
    picture.show(frame, scene.map, moving, () => {
      words.arrive(controls.moves());
      if (timer !== null) next();
    });
    const described = describe(frame.panels);
    picture.canvas.setAttribute("aria-label", described || "no picture: see the text");
    picture.canvas.hidden = !frame.panels.length;
    const { positions = [], looks = [], marks = [] } = frame.lit ?? {};
    strip.paint(positions, looks, marks);
    follow();
    const { layer, head, step } = scene.where;
    heads.paint(layer, head);
    pickers(layer, head);
    controls.paint(now, scene, step);
    tip.hide();
    const place = Object.entries({ layer, head, step }).map(([name, value]) => `${name}=${value}`).join(", ");
    const played = page.queries === null ? "" : `, queries=${page.queries}`; // a recording has its own steps
    controls.menu.line.textContent = `${page.call}, ${place}, token=${followed}, frame=${now}${played})`;
  }

  function follow() {
    const owners = Object.entries(scene.members).flatMap(([kind, numbers]) =>
      (numbers[followed] ?? -1) >= 0 ? [`${kind}:${numbers[followed]}`] : []
    );
    const token = `token:${followed}`, shown = picture.marks().some(({ id }) => id === token);
    picture.follow(shown ? [token] : owners);
    strip.light(followed >= 0 ? [followed] : []);
  }

  /** @param {number} position */
  function aboutToken(position) {
    /** @type {Rows} */
    const rows = [["token", visible(page.tokens[position])], ["position", format(position)]];
    for (const [kind, numbers] of Object.entries(scene.members)) {
      if ((numbers[position] ?? -1) >= 0) rows.push([kind, `#${numbers[position]}`]);
    }
    return rows;
  }

  /** @param {Mark} mark */
  function about(mark) {
    const [kind, text] = mark.id.split(":"), number = Number(text);
    /** @type {Rows} */
    const rows = kind === "token" && number < page.tokens.length ? aboutToken(number) : [[kind, `#${text}`]];
    if (kind !== "token" && mark.label && mark.label !== `#${text}`) rows.push(["shown as", visible(mark.label)]);
    if (mark.value !== null) rows.push(["value", decimals(mark.value)]);
    return rows;
  }

  /** @param {number} position */
  function pick(position) {
    if (position >= page.prompt_length) return;
    followed = position;
    follow();
    host.tell({ token: position });
  }

  /** @type {import("./panel.js").Go} */
  function go(by, to = now) {
    const frame = Math.max(0, Math.min(scene.frames.length - 1, to + by));
    if (frame === now) return;
    now = frame;
    paint(controls.moves());
    spoken.textContent = `${scene.frames[now].chapter}, frame ${now + 1} of ${scene.frames.length}. ${
      scene.frames[now].words
    }`;
    host.tell({ frame });
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

  /** @param {{ layer?: number, head?: number, step?: number }} place */
  function ask(place) {
    stop();
    wait.begin(host);
    root.dataset.busy = "";
    host.tell(place);
  }

  function back() {
    const { layer, head, step } = scene.where;
    heads.paint(layer, head);
    pickers(layer, head);
    controls.paint(now, scene, step);
  }

  /** @param {Format} format */
  function save(format) {
    const { layer, head, step } = scene.where;
    const name = `mechanism-${scene.title.toLowerCase().replace(/\W+/g, "-")}-layer-${layer}-head-${head}-step-${step}`;
    return saveAs(format, controls.menu, root, host, `${name}-frame-${now + 1}`);
  }

  root.addEventListener("keydown", (event) => {
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
  requestAnimationFrame(() => followed >= 0 && strip.focus(followed, false)); // a notebook attaches the root first
  return () => {
    stop();
    wait.close();
    words.close();
    picture.close();
    unwatch();
  };
}
