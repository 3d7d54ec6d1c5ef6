import { element, format, hasModifier, targetOf } from "./dom.js";
import { createHeadPanel } from "./head_panel.js";
import { createInspectorControls } from "./inspector_controls.js";
import { createDetails, takenOf } from "./inspector_details.js";
import { createKeyMap } from "./inspector_map.js";
import { MEANING, steps } from "./inspector_words.js";
import { keepKeys, section } from "./panel.js";
import { saveAs } from "./save.js";
import { unpack } from "./slice.js";
import { ATTENDED, createStrip, GENERATED, ORACLE, SINK } from "./strip.js";
import { HUES, LEVELS, watchTheme } from "./theme.js";
import { createTip } from "./tip.js";
import { createWait } from "./wait.js";
import { decimals, visible } from "./words.js";

/** @import { HeadNumbers } from "./head_panel.js" */
/** @import { View } from "./host.js" */
/** @import { Format } from "./save.js" */
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
 * @property {HeadNumbers[]} head_maps
 * @property {number[]} span
 */
/** @typedef {{ n_clusters: number, metric: string, seed: number, layer: number, head: number }} Settings */

/** @type {Record<string, [by: number, absolute?: boolean] | undefined>} */
const MOVES = { ArrowLeft: [-1], ArrowRight: [1], Home: [0, true], End: [Infinity, true] };
const SLOW_MS = 250; // a longer wait for clusters is shown
// Marks of the strip: tinted only; tinted and underlined; dotted.
const TINTED = ATTENDED | GENERATED, PICKED = TINTED | ORACLE, UNCLUSTERED = ATTENDED | SINK;

/**
 * The clusters of a head's keys. The host clusters again when a setting changes, or holds the clusters for some C.
 *
 * @type {View}
 */
export function createInspector(root, host) {
  /** @type {InspectorPage} */
  const page = host.get("page");
  /** @type {Places} */
  let places;
  /** @type {Clustering} */
  let clusters;
  /** @type {number} */
  let token = host.get("token");
  /** @type {Settings | null} */
  let requested = null;
  /** @type {Settings | null} */
  let queued = null;
  /** @type {number | undefined} */
  let slowTimer;
  let placesChanged = true;
  root.classList.add("kvviz", "kv-inspector");
  keepKeys(root);
  const controls = createInspectorControls(root, page, { change: ask, save });
  const wait = createWait(root, () => {
    endWait();
    paint();
  });
  const tip = createTip(root);
  const heads = createHeadPanel(root, { ...page, head_name: "KV head" }, {
    tip,
    pick: (layer, head) => ask({ layer, head }),
  });
  const grid = root.appendChild(element("div", "kv-grid"));
  const left = section(grid, "keys", "kv-keys", MEANING.map);
  const right = section(grid, "prompt", "kv-prompt", MEANING.text);
  const about = grid.appendChild(element("section", "kv-details"));
  root.append(mapLegend(), ...page.notes.map((note) => element("p", "kv-note", note)));

  const map = createKeyMap(left.appendChild(element("div")), root, {
    onHover(key, event) {
      strip.light(key && key.token >= 0 ? [key.token] : []);
      if (key) tip.show(keyRows(key), event);
      else tip.hide();
    },
    onPick: (key) => choose(key.token >= 0 ? key.token : clusters.central[key.cluster]),
    onCursor(cluster) {
      status.textContent = cluster < 0
        ? ""
        : `at cluster #${cluster}, ${format(clusters.sizes[cluster])} tokens: Enter picks it`;
    },
  });
  const axes = left.appendChild(element("div", "kv-axis"));
  const status = left.appendChild(element("div", "kv-axis kv-cursor"));
  status.setAttribute("role", "status");
  const strip = createStrip(right.appendChild(element("div", "kv-panel")), {
    tokens: page.tokens,
    span: page.span,
    label: "prompt",
    onHover(position, event) {
      map.hover(position);
      if (position === null) tip.hide();
      else tip.show(keyRows({ cluster: clusters.labels[position], token: position }), event);
    },
    onPick: (position) => choose(position, false),
  });
  const details = createDetails(about, page, { goTo: choose, onList: () => choose(-1) });
  const unwatch = watchTheme(root, map.recolour);

  const clusterOf = (/** @type {number} */ position) => (position < 0 ? -1 : clusters.labels[position]);

  /** @returns {Settings} */
  function settings() {
    const { settings: [n_clusters, metric, seed], layer, head } = clusters;
    return { n_clusters, metric: page.metrics[metric], seed, layer, head };
  }

  /** @param {Key} key */
  function keyRows({ cluster, token: position }) {
    /** @type {Rows} */
    const rows = position < 0 ? [] : [["token", visible(page.tokens[position])], ["position", format(position)]];
    if (cluster < 0) {
      rows.push(["cluster", "none: a sink or recent token"]);
      return rows;
    }
    const taken = takenOf(clusters, cluster);
    rows.push(["cluster", `#${cluster}`], ["size", `${format(clusters.sizes[cluster])} tokens`]);
    rows.push(["spread", decimals(clusters.spread[cluster])]);
    if (taken.length) rows.push(["recalled by", `${steps(taken)} of ${format(taken.length)} steps`]);
    return rows;
  }

  function paintText() {
    const picked = clusterOf(token), count = clusters.labels.length;
    const looks = new Uint8Array(count), marks = new Uint8Array(count);
    for (let position = 0; position < count; position++) {
      const cluster = clusters.labels[position], isPicked = cluster >= 0 && cluster === picked;
      looks[position] = (cluster < 0 ? HUES : clusters.hues[cluster]) * LEVELS + (isPicked ? LEVELS - 1 : 0);
      marks[position] = cluster < 0 ? UNCLUSTERED : isPicked ? PICKED : TINTED;
    }
    strip.paint([...clusters.labels.keys()], looks, marks);
  }

  function paint(waiting = requested !== null) {
    paintText();
    details.paint(clusters, token);
    controls.paint(settings(), token, waiting);
    heads.paint(clusters.layer, clusters.head);
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
   * One request is under way at a time; of the settings that come meanwhile, only the last is requested next.
   *
   * @param {Partial<Settings>} change
   */
  function ask(change) {
    const next = { ...(queued ?? requested ?? settings()), ...change };
    if (requested) {
      queued = next;
      return;
    }
    if (same(next, settings())) return;
    requested = next;
    wait.begin();
    slowTimer = setTimeout(() => {
      root.dataset.busy = "";
      status.textContent = `clustering ${format(page.tokens.length)} tokens …`;
    }, SLOW_MS);
    host.tell(next);
  }

  function endWait() {
    clearTimeout(slowTimer);
    status.textContent = "";
    requested = queued = null;
  }

  function show() {
    const opening = !clusters;
    if (placesChanged) places = unpack(host.bytes("places"));
    clusters = unpack(host.bytes("clusters"));
    placesChanged = false;
    const next = queued;
    wait.end();
    endWait();
    const [across, up] = new TextDecoder().decode(places.titles).split("\n");
    axes.replaceChildren(element("span", "", `→ ${across}`), element("span", "", `↑ ${up}`));
    map.show(places, clusters, clusterOf(token));
    paint(next !== null);
    // A notebook has to attach the root first.
    if (opening && token >= 0) requestAnimationFrame(() => strip.focus(token, false));
    if (next) ask(next);
  }

  /** @param {Format} format */
  function save(format) {
    const { layer, head, n_clusters: count } = settings();
    const name = `cluster-inspector-layer-${layer}-head-${head}-clusters-${count}`;
    return saveAs(format, controls.menu, root, host, name);
  }

  root.addEventListener("keydown", (event) => {
    const target = targetOf(event), move = MOVES[event.key];
    if (hasModifier(event) || target.tagName === "SELECT" || target.matches("[type=number]")) return;
    if (move) controls.step(...move); // the slider's keys too: JupyterLab suppresses their effect
    else if (event.key === "Escape" && token >= 0 && !controls.menu.menu.open) choose(-1);
    else return;
    event.preventDefault();
  });

  host.on("page", () => controls.counts(host.get("page").counts));
  host.on("places", () => (placesChanged = true));
  host.on("clusters", show);
  host.on("token", () => host.get("token") !== token && choose(host.get("token")));
  show();
  return () => {
    clearTimeout(slowTimer);
    wait.close();
    unwatch();
    map.destroy();
  };
}

/**
 * @param {Settings} first
 * @param {Settings} second
 */
function same(first, second) {
  return JSON.stringify(first) === JSON.stringify(second);
}

function mapLegend() {
  const host = element("p", "kv-legend");
  const entries = [
    ["● token", "a key; its hue is that of its cluster, as in the text"],
    ["○ centroid", "the mean of a cluster's keys"],
    ["★ last query", "the mean over the KV head's query heads at the last position, scaled to the keys' mean length"],
  ];
  for (const [text, meaning] of entries) host.appendChild(element("span", "kv-entry", text)).title = meaning;
  const samples = [
    ["kv-attended kv-agreed", "--kv-h:250;--kv-a:1", "in the picked cluster"],
    ["kv-attended kv-kept", "--kv-c:0;--kv-a:0.4", "in no cluster: a sink or recent token"],
  ];
  for (const [mark, style, text] of samples) {
    const entry = host.appendChild(element("span", "kv-entry"));
    entry.appendChild(element("span", mark, "text")).style.cssText = style;
    entry.append(element("span", "", text));
  }
  return host;
}
