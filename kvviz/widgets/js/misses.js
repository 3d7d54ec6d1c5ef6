import { element, format, hasModifier, targetOf } from "./dom.js";
import { explain } from "./explain.js";
import { createFind } from "./find.js";
import { createAnswers } from "./misses_answers.js";
import { createHeads } from "./misses_heads.js";
import { createMenu } from "./menu.js";
import { createJourney } from "./misses_journey.js";
import { MEANING, nats, total } from "./misses_words.js";
import { button, createStepSlider, keepKeys, stepKeys, titledPanel } from "./panel.js";
import { createSaveMenu, saveAs } from "./save.js";
import { explainNumber, scopeText, tagged, tagOf } from "./scope.js";
import { unpack } from "./slice.js";
import { ATTENDED, createStrip, ORACLE } from "./strip.js";
import { watchTheme } from "./theme.js";
import { createTip } from "./tip.js";
import { createWait } from "./wait.js";
import { quoted, visible } from "./words.js";

/** @import { View } from "./host.js" */
/** @import { Format } from "./save.js" */
/** @import { Unpacked } from "./slice.js" */

/**
 * @typedef {object} MissesPage
 * @property {string} title
 * @property {string} method
 * @property {string} answer
 * @property {number} full
 * @property {number} here
 * @property {string[]} tokens
 * @property {string[]} fed
 * @property {number} asked
 * @property {number} steps
 * @property {{ name: string, verdict: string }[]} stages
 * @property {string[]} outcomes
 * @property {string} group_name
 * @property {number[]} layers
 * @property {number} heads
 * @property {number} rows_per_head
 * @property {{ position: number, logprob: number, pinned: number, look: number }[]} evidence
 * @property {[layer: number, head: number, stage: string, logprob: number, answered: boolean][]} restored
 * @property {[name: string, nats: number][]} causes
 * @property {[layer: number, head: number][] | null} smallest
 * @property {{ seed: number, answered: boolean, logprob: number }[]} control
 * @property {number | null} restored_answer
 * @property {Record<string, string>} texts
 * @property {boolean} live
 * @property {string} call
 * @property {string[]} notes
 */
/** @typedef {{ layer: number, head: number, position: number, step: number }} Picked */
/** @typedef {{ kind: string, layer?: number, head?: number, position?: number }} Change */
/** @typedef {{ changes?: Change[], logprob?: number, answered?: boolean, text?: string, refusal?: string }} Result */
/**
 * @typedef {Unpacked & { stage: Uint8Array, exact_weight: Float32Array, weight: Float32Array, score: Float32Array,
 *   cut: Float32Array, rank: Int32Array, exact_rank: Int32Array, group: Int32Array, group_rank: Int32Array,
 *   group_cut: Int32Array }} Losses
 */

const DECODED_MS = 30_000; // the first change prefills the prompt

/**
 * Why a method missed: evidence in the text, a map of heads, a token's way through one head's choice, and answers.
 *
 * @type {View}
 */
export function createMisses(root, host) {
  /** @type {MissesPage} */
  const page = host.get("page");
  const losses = /** @type {Losses} */ (unpack(host.bytes("losses")));
  /** @type {() => Picked} */
  const picked = () => ({
    layer: host.get("layer"),
    head: host.get("head"),
    position: host.get("position"),
    step: host.get("step"),
  });
  root.classList.add("kvviz", "kv-misses");
  keepKeys(root);

  const top = root.appendChild(element("div", "kv-head"));
  const lost = `log-probability of ${quoted(page.answer)}: full attention ${total(page.full)}, here ${
    total(page.here)
  }`;
  const title = top.appendChild(element("h2", "kv-title", `${page.title} · ${lost} `));
  explainNumber(tagged(title, "layers", "answer"), MEANING.logprob, "layers", "answer");
  const { sheet, close } = createMenu(top, root, "Changes", MEANING.changes);
  const menu = createSaveMenu(top, root, save);
  const bar = root.appendChild(element("div", "kv-controls"));
  const slider = createStepSlider(bar, page.steps, (by, to) => pick({ step: clamp(to ?? picked().step + by) }));
  const fed = bar.appendChild(element("span", "kv-fed"));
  button(bar, "Restore", MEANING.restore, () => {
    const { layer, head } = picked();
    change({ kind: "restore", layer, head });
  });
  inSheet("Pin the picked token", MEANING.pin, () => change({ kind: "pin", position: picked().position }));
  inSheet("Drop the picked token", MEANING.drop, () => change({ kind: "drop", position: picked().position }));
  const reset = inSheet("Take back all changes", MEANING.reset, () => tellChanges([]));

  /** @type {Change[]} */
  let requested = host.get("changes");
  let painted = requested;
  const wait = createWait(root, () => (requested = painted), DECODED_MS);
  const grid = root.appendChild(element("div", "kv-grid"));
  const text = titledPanel(grid, "evidence in the text", "kv-prompt", MEANING.evidence);
  const heads = titledPanel(grid, "layers × KV heads: what restoring one brings back ", "kv-heads", MEANING.heads);
  const journey = titledPanel(grid, "", "kv-journey", MEANING.journey);
  const answers = titledPanel(grid, "answers ", "kv-answers", MEANING.answers);
  for (const { heading, panel } of [heads, answers]) heading.append(tagOf(panel, "layers", "answer"));
  root.append(...page.notes.map((note) => element("p", "kv-note", note)));
  const tip = createTip(root);

  const byPosition = new Map(page.evidence.map((token) => [token.position, token]));
  const strip = createStrip(text.panel, {
    tokens: page.tokens,
    label: "prompt with the tokens that the answer needs",
    onHover: (position, event) => {
      const token = byPosition.get(position ?? -1);
      if (position === null) tip.hide();
      else {tip.show([
          ["token", visible(page.tokens[position])],
          ["position", format(position)],
          ["full attention", token ? `loses ${nats(token.logprob, false)} without it` : "hardly needs it"],
          ...(token ? [/** @type {[string, string]} */ (["pinned", `brings back ${nats(token.pinned)}`])] : []),
          ["numbers", `of ${scopeText("layers", "answer")}`],
        ], event);}
    },
    onPick: (position) => byPosition.has(position) && pick({ position }),
  });
  strip.paint(
    page.evidence.map(({ position }) => position),
    page.evidence.map(({ look }) => look),
    page.evidence.map(() => ATTENDED | ORACLE),
  );
  createFind(text.heading, root, { tokens: page.tokens, strips: () => [strip] });
  const map = createHeads(heads.panel, page, { tip, pick });
  const way = createJourney(journey, page, losses, { pick });
  const shown = createAnswers(answers.panel, page);
  const unwatch = watchTheme(root);

  /**
   * A button of the menu; the sheet closes, so that it does not cover the answer.
   *
   * @param {string} text
   * @param {string} meaning
   * @param {() => void} pressed
   */
  function inSheet(text, meaning, pressed) {
    return button(sheet, text, meaning, () => {
      close();
      pressed();
    });
  }

  /** @param {number} step */
  function clamp(step) {
    return Math.max(0, Math.min(page.steps - 1, step));
  }

  /** @param {Partial<Picked>} changes */
  function pick(changes) {
    host.tell(changes);
    show();
  }

  /** @param {Change} made */
  function change(made) {
    /** @type {Change[]} */
    const before = page.live ? requested : [];
    const others = before.filter((other) => place(other) !== place(made));
    const again = before.some((other) => place(other) === place(made) && other.kind === made.kind);
    tellChanges(again ? others : [...others, made]);
  }

  /** @param {Change[]} changes */
  function tellChanges(changes) {
    requested = changes;
    if (page.live) {
      wait.begin(host);
      root.dataset.busy = "";
    }
    host.tell({ changes });
    if (!page.live) paintAnswers();
  }

  /** @param {Change} made */
  function place({ layer, head, position }) {
    return position === undefined ? `head ${layer} ${head}` : `token ${position}`;
  }

  /** @param {Format} format */
  function save(format) {
    const { layer, head } = picked();
    return saveAs(format, menu, root, host, `miss-inspector-layer-${layer}-head-${head}`);
  }

  function paintAnswers() {
    wait.end();
    const changes = requested = painted = host.get("changes");
    reset.disabled = changes.length === 0;
    shown.paint(changes, page.live ? host.get("result") : stored(page, changes));
    map.changed(changes);
  }

  function show() {
    const now = picked();
    strip.light([now.position]);
    const about = now.step < page.asked ? "of the question" : "of the answer";
    fed.textContent = `feeds ${quoted(page.fed[now.step])}`;
    explain(fed, `this step feeds a token ${about}`);
    slider.show(now.step, `, feeds ${page.fed[now.step]}`);
    map.paint(now);
    way.paint(now);
    const { layer, head, position, step } = now;
    menu.line.textContent = `${page.call}layer=${layer}, head=${head}, position=${position}, step=${step})`;
  }

  root.addEventListener("keydown", (event) => {
    const [by, to] = stepKeys(page.steps)[event.key] ?? [];
    if (by === undefined || hasModifier(event) || ["SELECT", "INPUT"].includes(targetOf(event).tagName)) return;
    if (heads.panel.contains(targetOf(event))) return; // there they move over the map
    pick({ step: clamp(to ?? picked().step + by) });
    event.preventDefault();
  });
  for (const name of ["layer", "head", "position", "step"]) host.on(name, show);
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

/**
 * What the diagnosis knows of a single change.
 *
 * @param {MissesPage} page
 * @param {Change[]} changes
 * @returns {Result}
 */
function stored(page, [change]) {
  if (!change) return {};
  if (change.kind === "restore") {
    const row = page.restored.find(([layer, head, stage]) =>
      layer === change.layer && head === change.head && stage === "all"
    );
    return row ? { logprob: page.here + row[3], answered: row[4] } : {};
  }
  const token = page.evidence.find(({ position }) => position === change.position);
  if (!token) return {};
  return { logprob: change.kind === "pin" ? page.here + token.pinned : page.full - token.logprob };
}
