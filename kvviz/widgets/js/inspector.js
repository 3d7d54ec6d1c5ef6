import { HUES, LEVELS, watchTheme } from "./theme.js";
import { ATTENDED, GENERATED, ORACLE, SINK, createStrip, element, format } from "./strip.js";
import { unpack } from "./slice.js";
import { decimals, visible } from "./words.js";
import { createTip } from "./tip.js";
import { keepKeys, savePicture, section } from "./panel.js";
import { createKeyMap } from "./inspector_map.js";
import { createDetails } from "./inspector_details.js";
import { createInspectorControls } from "./inspector_controls.js";
import { INSPECTOR_MEANING, steps } from "./inspector_words.js";

const SLOW_MS = 250; // after which waiting for clusters is shown
// Marks of the strip: tinted and nothing else; tinted and underlined; dotted.
const TINTED = ATTENDED | GENERATED, CHOSEN = TINTED | ORACLE, UNCLUSTERED = ATTENDED | SINK;

// Draws clusters into `root`. `request(settings)` asks the host for other clusters, which it hands to `show`;
// `picked(token)` tells it of another choice. Both hosts, the live widget and the page without a kernel, use this alone.
export function createInspector(root, page, { token: first, css, request, picked }) {
  let places = null, found = null, token = first, wanted = null, pending = null, slow = null;
  root.classList.add("kvviz", "kv-inspector");
  keepKeys(root);
  const controls = createInspectorControls(root, page, { change: ask, save });
  const grid = root.appendChild(element("div", "kv-grid"));
  const left = section(grid, "keys", "kv-keys", INSPECTOR_MEANING.map);
  const right = section(grid, "prompt", "kv-prompt", INSPECTOR_MEANING.text);
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
      said.textContent = cluster < 0 ? "" : `at cluster #${cluster}, ${format(found.sizes[cluster])} tokens; Enter picks it`;
    },
  });
  const axes = left.appendChild(element("div", "kv-axis"));
  const said = left.appendChild(element("div", "kv-axis kv-cursor"));
  said.setAttribute("role", "status");
  const strip = createStrip(right.appendChild(element("div", "kv-panel")), {
    tokens: page.tokens,
    label: "prompt",
    onHover(position, event) {
      if (!found) return;
      map.hover(position);
      if (position === null) tip.hide();
      else tip.show(aboutKey({ cluster: found.labels[position], token: position }), event);
    },
    onPick: (position) => choose(position, false),
  });
  const details = createDetails(about, page, { goTo: choose, onList: () => choose(-1) });
  const unwatch = watchTheme(root, map.recolour);

  const clusterOf = (position) => (position < 0 ? -1 : found.labels[position]);
  const settingsOf = ({ settings, layer, head }) => ({ n_clusters: settings[0], metric: page.metrics[settings[1]], seed: settings[2], layer, head });

  function aboutKey({ cluster, token: position }) {
    const rows = position < 0 ? [] : [["token", visible(page.tokens[position])], ["position", format(position)]];
    if (cluster < 0) return [...rows, ["cluster", "none: a sink or recent token"]];
    const [count, width] = found.shapes.taken, taken = Array.from({ length: count }, (_, step) => found.taken[step * width + cluster]);
    rows.push(["cluster", `#${cluster}`], ["size", `${format(found.sizes[cluster])} tokens`], ["spread", decimals(found.spread[cluster])]);
    return count ? [...rows, ["recalled by", `${steps(taken)} of ${format(count)} steps`]] : rows;
  }

  function paintText() {
    const chosen = clusterOf(token), count = found.labels.length, looks = new Uint8Array(count), marks = new Uint8Array(count);
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
    controls.paint(settingsOf(found), token, waiting);
    tip.hide();
  }

  function choose(position, scroll = true) {
    if (!found) return;
    token = position;
    map.pick(clusterOf(token));
    paint();
    if (scroll && token >= 0) strip.focus(token, false);
    picked(token);
  }

  // One request is under way at a time; while a slider moves, only its last place is asked for next.
  function ask(change) {
    if (!found) return;
    const settings = { ...(pending ?? wanted ?? settingsOf(found)), ...change };
    if (wanted) {
      pending = settings;
      return;
    }
    if (same(settings, settingsOf(found))) return;
    wanted = settings;
    slow = setTimeout(() => {
      root.dataset.busy = "";
      said.textContent = `clustering ${format(page.tokens.length)} tokens anew …`;
    }, SLOW_MS);
    request(settings);
  }

  function show(placesBytes, clustersBytes) {
    const opening = found === null;
    if (placesBytes !== null) places = unpack(placesBytes);
    found = unpack(clustersBytes);
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
    if (opening && token >= 0) requestAnimationFrame(() => strip.focus(token, false)); // a notebook attaches the root first
    if (next) ask(next);
  }

  function save() {
    const { layer, head, n_clusters: count } = settingsOf(found);
    return savePicture(controls.menu, root, css, `cluster-inspector-layer-${layer}-head-${head}-clusters-${count}.png`, map.above);
  }

  root.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [-1], ArrowRight: [1], Home: [0, true], End: [Infinity, true] };
    const { tagName: tag, type } = event.target;
    if (event.ctrlKey || event.metaKey || event.altKey || tag === "SELECT" || type === "number") return;
    if (moves[event.key]) controls.step(...moves[event.key]); // of the slider too: JupyterLab takes its keys away
    else if (event.key === "Escape" && token >= 0 && !controls.menu.menu.open) choose(-1);
    else return;
    event.preventDefault();
  });

  return {
    show,
    pick(position) {
      if (position !== token) choose(position);
    },
    counts: controls.counts,
    destroy() {
      clearTimeout(slow);
      unwatch();
      map.destroy();
    },
  };
}

function same(one, other) {
  return Object.keys(one).every((name) => one[name] === other[name]);
}

function mapLegend() {
  const host = element("p", "kv-legend"), entries = [
    ["● token", "a key; its hue is its cluster's, the same hue in the text"],
    ["○ centroid", "the mean of a cluster's keys"],
    ["★ last query", "the mean of the KV head's query heads at the last position, drawn at the keys' mean length"],
  ];
  for (const [text, meaning] of entries) host.appendChild(element("span", "kv-entry", text)).title = meaning;
  const samples = [["kv-attended kv-agreed", "--kv-h:250;--kv-a:1", "in the cluster picked"], ["kv-attended kv-kept", "--kv-c:0;--kv-a:0.4", "in no cluster: a sink or recent token"]];
  for (const [mark, style, text] of samples) {
    const entry = host.appendChild(element("span", "kv-entry"));
    entry.appendChild(element("span", mark, "text")).style.cssText = style;
    entry.append(element("span", "", text));
  }
  return host;
}
