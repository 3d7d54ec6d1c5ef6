import { element, format, hasModifier, targetOf } from "./dom.js";
import { createInspectorControls } from "./inspector_controls.js";
import { createDetails, takenOf } from "./inspector_details.js";
import { createKeyMap } from "./inspector_map.js";
import { MEANING, steps } from "./inspector_words.js";
import { keepKeys, savePicture, section } from "./panel.js";
import { unpack } from "./slice.js";
import { ATTENDED, createStrip, GENERATED, ORACLE, SINK } from "./strip.js";
import { HUES, LEVELS, watchTheme } from "./theme.js";
import { createTip } from "./tip.js";
import { decimals, visible } from "./words.js";

/** @import { View } from "./host.js" */
/** @import { Key } from "./inspector_map.js" */
/** @import { Unpacked } from "./slice.js" */
/** @import { Rows } from "./tip.js" */
/** @typedef {Unpacked & { points: Float32Array, star: Float32Array, titles: Uint8Array }} Places */
/** @typedef {Unpacked & ClusterArrays} Clustering */
/**
 * @typedef {object} ClusterArrays
 * @property {Int32Array} settings
 * @property {Float32Array} rings
 * @property {Int32Array} labels
 * @property {Uint8Array} hues of each cluster
 * @property {Int32Array} sizes
 * @property {Float32Array} spread
 * @property {Int32Array} central
 * @property {Int32Array} nearest
 * @property {Float32Array} nearest_cosine
 * @property {Int32Array} taken
 */
/**
 * @typedef {object} InspectorPage
 * @property {string} model
 * @property {string[]} tokens
 * @property {string[]} step_tokens
 * @property {string} steps_by
 * @property {string} call
 * @property {string} call_end
 * @property {number[]} layers
 * @property {number[]} heads
 * @property {string[]} metrics
 * @property {number} default
 * @property {number[]} counts
 * @property {boolean} fixed
 * @property {string[]} notes
 */
/** @typedef {{ n_clusters: number, metric: string, seed: number, layer: number, head: number }} Settings */

/** @type {Record<string, [by: number, absolute?: boolean] | undefined>} */
const MOVES = { ArrowLeft: [-1], ArrowRight: [1], Home: [0, true], End: [Infinity, true] };
const SLOW_MS = 250; // after which waiting for clusters is shown
// Marks of the strip: tinted and nothing else; tinted and underlined; dotted.
const TINTED = ATTENDED | GENERATED, CHOSEN = TINTED | ORACLE, UNCLUSTERED = ATTENDED | SINK;

/**
 * The clusters of a head's keys: the host clusters anew when a setting changes, or holds the clusters for some C.
 *
 * @type {View}
 */
export function createInspector(root, host) {
  /** @type {InspectorPage} */
  const page = host.get("page");
  /** @type {Places} */
  let places;
  /** @type {Clustering} */
  let found;
  /** @type {number} */
  let token = host.get("token");
  /** @type {Settings | null} */
  let wanted = null;
  /** @type {Settings | null} */
  let pending = null;
  /** @type {number | undefined} */
  let slow;
  let moved = true;
  root.classList.add("kvviz", "kv-inspector");
  keepKeys(root);
  const controls = createInspectorControls(root, page, { change: ask, save });
  const grid = root.appendChild(element("div", "kv-grid"));
  const left = section(grid, "keys", "kv-keys", MEANING.map);
  const right = section(grid, "prompt", "kv-prompt", MEANING.text);
  const about = grid.appendChild(element("section", "kv-details"));
  root.append(mapLegend(), ...page.notes.map((note) => element("p", "kv-note", note)));
  const tip = createTip(root);

  const map = createKeyMap(left.appendChild(element("div")), root, {
    onHover(at, event) {
      strip.light(at && at.token >= 0 ? [at.token] : []);
      if (at) tip.show(aboutKey(at), event);
      else tip.hide();
    },
    onPick: (at) => choose(at.token >= 0 ? at.token : found.central[at.cluster]),
    onCursor(cluster) {
      said.textContent = cluster < 0
        ? ""
        : `at cluster #${cluster}, ${format(found.sizes[cluster])} tokens; Enter picks it`;
    },
  });
  const axes = left.appendChild(element("div", "kv-axis"));
  const said = left.appendChild(element("div", "kv-axis kv-cursor"));
  said.setAttribute("role", "status");
  const strip = createStrip(right.appendChild(element("div", "kv-panel")), {
    tokens: page.tokens,
    label: "prompt",
    onHover(position, event) {
      map.hover(position);
      if (position === null) tip.hide();
      else tip.show(aboutKey({ cluster: found.labels[position], token: position }), event);
    },
    onPick: (position) => choose(position, false),
  });
  const details = createDetails(about, page, { goTo: choose, onList: () => choose(-1) });
  const unwatch = watchTheme(root, map.recolour);

  const clusterOf = (/** @type {number} */ position) => (position < 0 ? -1 : found.labels[position]);

  /** @returns {Settings} */
  function settings() {
    const { settings: [n_clusters, metric, seed], layer, head } = found;
    return { n_clusters, metric: page.metrics[metric], seed, layer, head };
  }

  /** @param {Key} key */
  function aboutKey({ cluster, token: position }) {
    /** @type {Rows} */
    const rows = position < 0 ? [] : [["token", visible(page.tokens[position])], ["position", format(position)]];
    if (cluster < 0) {
      rows.push(["cluster", "none: a sink or recent token"]);
      return rows;
    }
    const taken = takenOf(found, cluster);
    rows.push(["cluster", `#${cluster}`], ["size", `${format(found.sizes[cluster])} tokens`]);
    rows.push(["spread", decimals(found.spread[cluster])]);
    if (taken.length) rows.push(["recalled by", `${steps(taken)} of ${format(taken.length)} steps`]);
    return rows;
  }

  function paintText() {
    const chosen = clusterOf(token), count = found.labels.length;
    const looks = new Uint8Array(count), marks = new Uint8Array(count);
    for (let position = 0; position < count; position++) {
      const cluster = found.labels[position], mine = cluster >= 0 && cluster === chosen;
      looks[position] = (cluster < 0 ? HUES : found.hues[cluster]) * LEVELS + (mine ? LEVELS - 1 : 0);
      marks[position] = cluster < 0 ? UNCLUSTERED : mine ? CHOSEN : TINTED;
    }
    strip.paint([...found.labels.keys()], looks, marks);
  }

  function paint(waiting = wanted !== null) {
    paintText();
    details.paint(found, token);
    controls.paint(settings(), token, waiting);
    tip.hide();
  }

  /** @param {number} position */
  function choose(position, scroll = true) {
    token = position;
    map.pick(clusterOf(token));
    paint();
    if (scroll && token >= 0) strip.focus(token, false);
    host.tell({ token });
  }

  /**
   * One request is under way at a time; while a slider moves, only its last place is asked for next.
   *
   * @param {Partial<Settings>} change
   */
  function ask(change) {
    const next = { ...(pending ?? wanted ?? settings()), ...change };
    if (wanted) {
      pending = next;
      return;
    }
    if (same(next, settings())) return;
    wanted = next;
    slow = setTimeout(() => {
      root.dataset.busy = "";
      said.textContent = `clustering ${format(page.tokens.length)} tokens anew …`;
    }, SLOW_MS);
    host.tell(next);
  }

  function show() {
    const opening = !found;
    if (moved) places = unpack(host.bytes("places"));
    found = unpack(host.bytes("clusters"));
    moved = false;
    clearTimeout(slow);
    delete root.dataset.busy;
    said.textContent = "";
    wanted = null;
    const next = pending;
    pending = null;
    const [across, up] = new TextDecoder().decode(places.titles).split("\n");
    axes.replaceChildren(element("span", "", `→ ${across}`), element("span", "", `↑ ${up}`));
    map.show(places, found, clusterOf(token));
    paint(next !== null);
    // A notebook attaches the root first.
    if (opening && token >= 0) requestAnimationFrame(() => strip.focus(token, false));
    if (next) ask(next);
  }

  function save() {
    const { layer, head, n_clusters: count } = settings();
    const name = `cluster-inspector-layer-${layer}-head-${head}-clusters-${count}.png`;
    return savePicture(controls.menu, root, host.css, name, map.above);
  }

  root.addEventListener("keydown", (event) => {
    const target = targetOf(event), move = MOVES[event.key];
    if (hasModifier(event) || target.tagName === "SELECT" || target.matches("[type=number]")) return;
    if (move) controls.step(...move); // of the slider too: JupyterLab takes its keys away
    else if (event.key === "Escape" && token >= 0 && !controls.menu.menu.open) choose(-1);
    else return;
    event.preventDefault();
  });

  host.on("page", () => controls.counts(host.get("page").counts));
  host.on("places", () => (moved = true));
  host.on("clusters", show);
  host.on("token", () => host.get("token") !== token && choose(host.get("token")));
  show();
  return () => {
    clearTimeout(slow);
    unwatch();
    map.destroy();
  };
}

/**
 * @param {Settings} one
 * @param {Settings} other
 */
function same(one, other) {
  return JSON.stringify(one) === JSON.stringify(other);
}

function mapLegend() {
  const host = element("p", "kv-legend");
  const entries = [
    ["● token", "a key; its hue is its cluster's, the same hue in the text"],
    ["○ centroid", "the mean of a cluster's keys"],
    ["★ last query", "the mean of the KV head's query heads at the last position, drawn at the keys' mean length"],
  ];
  for (const [text, meaning] of entries) host.appendChild(element("span", "kv-entry", text)).title = meaning;
  const samples = [
    ["kv-attended kv-agreed", "--kv-h:250;--kv-a:1", "in the cluster picked"],
    ["kv-attended kv-kept", "--kv-c:0;--kv-a:0.4", "in no cluster: a sink or recent token"],
  ];
  for (const [mark, style, text] of samples) {
    const entry = host.appendChild(element("span", "kv-entry"));
    entry.appendChild(element("span", mark, "text")).style.cssText = style;
    entry.append(element("span", "", text));
  }
  return host;
}
