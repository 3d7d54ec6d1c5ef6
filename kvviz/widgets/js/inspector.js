import { element, format, hasModifier, targetOf } from "./dom.js";
import { explainTogether } from "./explain.js";
import { createFind } from "./find.js";
import { createHeadPanel } from "./head_panel.js";
import { createInspectorControls } from "./inspector_controls.js";
import { createDetails } from "./inspector_details.js";
import { aboutOf, membersOf, pickedOf, projectionOf, starOf, takenOf } from "./inspector_groups.js";
import { drawMapLegend } from "./inspector_legend.js";
import { createKeyMap } from "./inspector_map.js";
import { createRanking } from "./inspector_ranking.js";
import { MEANING, PROJECTIONS, steps, VIEWS } from "./inspector_words.js";
import { keepKeys, section, stepKeys } from "./panel.js";
import { saveAs } from "./save.js";
import { unpack } from "./slice.js";
import { ATTENDED, createStrip, GENERATED, ORACLE, SINK } from "./strip.js";
import { HUES, LEVELS, watchTheme } from "./theme.js";
import { createTip } from "./tip.js";
import { createWait } from "./wait.js";
import { decimals, visible } from "./words.js";

/** @import { View } from "./host.js" */
/** @import { InspectorPage, Settings } from "./inspector_controls.js" */
/** @import { Clustering, Places } from "./inspector_groups.js" */
/** @import { Format } from "./save.js" */
/** @import { Key } from "./inspector_map.js" */
/** @import { ProjectionName } from "./inspector_words.js" */
/** @import { Go } from "./panel.js" */
/** @import { Rows } from "./tip.js" */

/** @type {ProjectionName[]} */
const NAMES = ["pca", "query", "tsne"]; // as in kvviz/widgets/inspector_places.py
const SLOW_MS = 250; // a longer wait for clusters is shown
const TSNE_PATIENCE_MS = 90_000;
// Marks of the strip: tinted only; tinted and underlined; dotted.
const TINTED = ATTENDED | GENERATED, PICKED = TINTED | ORACLE, UNCLUSTERED = ATTENDED | SINK;

/**
 * The groups of a head's keys, and how each step ranks them. The host groups again when a setting changes, or holds the
 * groups for some settings.
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
  /** @type {number} */
  let group = host.get("group");
  /** @type {number} */
  let now = host.get("step");
  /** @type {Settings | null} */
  let requested = null;
  /** @type {Settings | null} */
  let queued = null;
  /** @type {number | undefined} */
  let slowTimer;
  let placesChanged = true, clustersChanged = true;
  root.classList.add("kvviz", "kv-inspector");
  keepKeys(root);
  const controls = createInspectorControls(root, page, { go, change: ask, save });
  const wait = createWait(root, giveUp);
  const tip = createTip(root);
  const heads = createHeadPanel(root, { ...page, head_name: "KV head" }, {
    tip,
    pick: (layer, head) => ask({ layer, head }),
  });
  const grid = root.appendChild(element("div", "kv-grid"));
  const left = section(grid, "keys", "kv-keys", MEANING.map);
  const right = section(grid, "prompt", "kv-prompt", MEANING.text);
  const ranked = grid.appendChild(element("section", "kv-ranks"));
  const about = grid.appendChild(element("section", "kv-details"));
  const legend = root.appendChild(explainTogether(element("p", "kv-legend"), "legend of the map and the text"));
  root.append(...page.notes.map((note) => element("p", "kv-note", note)));

  const map = createKeyMap(left.appendChild(element("div")), root, {
    onHover(key, event) {
      light(key && key.token >= 0 ? [key.token] : []);
      if (key) tip.show(keyRows(key), event);
      else tip.hide();
    },
    onPick: (key) => choose(key.token >= 0 ? key.token : clusters.central[key.cluster], key.cluster),
    onCursor(cluster) {
      status.textContent = cluster < 0
        ? ""
        : `at ${VIEWS[clusters.told.view].one} #${cluster}, ${format(clusters.sizes[cluster])} tokens: Enter picks it`;
    },
  });
  const axes = left.appendChild(element("div", "kv-axis"));
  const limits = left.appendChild(element("p", "kv-note kv-limits"));
  const status = left.appendChild(element("div", "kv-axis kv-cursor"));
  status.setAttribute("role", "status");
  const [heading] = right.children;
  createFind(heading, root, { tokens: page.tokens, strips: () => [strip], onFound: map.find });
  const strip = createStrip(right.appendChild(element("div", "kv-panel")), {
    tokens: page.tokens,
    span: page.span,
    label: "prompt",
    onHover(position, event) {
      map.hover(position);
      if (position === null) tip.hide();
      else tip.show(keyRows({ cluster: pickedOf(clusters, group, position), token: position }), event);
    },
    onPick: (position) => choose(position, group, false),
  });
  const ranking = createRanking(ranked, {
    tip,
    onHover: (hovered) => light(hovered === null ? [] : [...membersOf(clusters, hovered)]),
    onPick: (picked) => choose(clusters.central[picked], picked),
  });
  const details = createDetails(about, page, { goTo: choose, onList: () => choose(-1) });
  const unwatch = watchTheme(root, map.recolour);

  const picked = () => pickedOf(clusters, group, token);
  const light = (/** @type {number[]} */ tokens) => strip.light(tokens);

  /** @returns {Settings} */
  function settings() {
    const { settings: [n_clusters, metric, seed], layer, head, told: { view, part, fields } } = clusters;
    const projection = NAMES[projectionOf(places)];
    return { n_clusters, metric: page.metrics[metric], seed, layer, head, view, part, fields, projection };
  }

  /** @param {Key} key */
  function keyRows({ cluster, token: position }) {
    const { one, none } = VIEWS[clusters.told.view];
    /** @type {Rows} */
    const rows = position < 0 ? [] : [["token", visible(page.tokens[position])], ["position", format(position)]];
    if (cluster < 0) {
      rows.push([one, `none: ${none}`]);
      return rows;
    }
    const taken = takenOf(clusters, cluster), rank = ranking.rankOf(cluster);
    rows.push([one, `#${cluster}`], ["size", `${format(clusters.sizes[cluster])} tokens`]);
    rows.push(["spread", decimals(clusters.spread[cluster])]);
    if (rank >= 0) rows.push(["rank at this step", `${format(rank + 1)} of ${format(ranking.count)}`]);
    if (taken.length) rows.push(["recalled by", `${steps(taken)} of ${format(taken.length)} steps`]);
    return rows;
  }

  function paintText() {
    const count = clusters.labels.length, members = new Set(membersOf(clusters, picked()));
    const looks = new Uint8Array(count), marks = new Uint8Array(count);
    for (let position = 0; position < count; position++) {
      const cluster = clusters.labels[position], isPicked = members.has(position);
      looks[position] = (cluster < 0 ? HUES : clusters.hues[cluster]) * LEVELS + (isPicked ? LEVELS - 1 : 0);
      marks[position] = cluster < 0 ? UNCLUSTERED : isPicked ? PICKED : TINTED;
    }
    strip.paint([...clusters.labels.keys()], looks, marks);
  }

  /** What follows the step and the picked group. */
  function paintPicked() {
    const cluster = picked(), rank = ranking.rankOf(cluster);
    ranking.pick(cluster);
    details.paint(clusters, token, cluster, { step: now, rank, ranked: ranking.count });
    const place = rank < 0 ? "" : `, #${cluster} on rank ${rank + 1} of ${ranking.count}`;
    controls.step(now, place);
  }

  function paintControls(waiting = requested !== null) {
    controls.paint(settings(), clusters.told, clusters.sizes.length, { token, step: now }, waiting);
  }

  function paint(waiting = requested !== null) {
    ranking.paint(clusters, now); // reads the layout, so it comes before the change of the whole text
    paintPicked();
    paintText();
    paintControls(waiting);
    heads.paint(clusters.layer, clusters.head);
    tip.hide();
  }

  /** @type {Go} */
  function go(by, to = now) {
    const step = Math.max(0, Math.min(page.steps - 1, to + by));
    if (step === now) return;
    now = step;
    map.star(starOf(places, now, page.ranked > 0));
    ranking.paint(clusters, now);
    paintPicked();
    paintControls();
    tip.hide();
    host.tell({ step });
  }

  /**
   * @param {number} position
   * @param {number} named the group that is meant, if the token is in several
   */
  function choose(position, named = -1, scroll = true) {
    token = position;
    group = position < 0 ? -1 : pickedOf(clusters, named, position);
    map.pick(picked());
    paintText();
    paintPicked();
    paintControls();
    tip.hide();
    if (scroll && token >= 0) strip.focus(token, false);
    host.tell({ token, group });
  }

  /**
   * One request is under way at a time; of the settings that come meanwhile, only the last is requested next.
   *
   * @param {Partial<Settings>} change
   */
  function ask(change) {
    const before = queued ?? requested ?? settings();
    const next = { ...before, ...change, fields: { ...before.fields, ...change.fields } };
    if (requested) {
      queued = next;
      return;
    }
    if (JSON.stringify(next) === JSON.stringify(settings())) return;
    requested = next;
    const laidOut = next.projection === "tsne";
    wait.begin(host, laidOut ? TSNE_PATIENCE_MS : undefined);
    slowTimer = setTimeout(() => {
      root.dataset.busy = "";
      const work = laidOut ? "laying out keys by t-SNE: some seconds" : `grouping ${format(page.tokens.length)} tokens`;
      status.textContent = `${work} …`;
    }, SLOW_MS);
    host.tell({ ...next, fields: { ...host.get("fields"), ...next.fields } });
  }

  function endWait() {
    clearTimeout(slowTimer);
    status.textContent = "";
    requested = queued = null;
  }

  function giveUp() {
    endWait();
    paint();
  }

  function show() {
    const opening = !clusters, next = queued;
    if (placesChanged) places = unpack(host.bytes("places"));
    if (clustersChanged) {
      clusters = unpack(host.bytes("clusters"));
      clusters.told = aboutOf(clusters);
    }
    placesChanged = clustersChanged = false;
    wait.end();
    endWait();
    const [across, up] = new TextDecoder().decode(places.titles).split("\n");
    axes.replaceChildren(element("span", "", `→ ${across}`), element("span", "", `↑ ${up}`));
    limits.textContent = PROJECTIONS[NAMES[projectionOf(places)]].about;
    drawMapLegend(legend, clusters.told.view, page.ranked > 0);
    map.show(places, clusters, picked());
    map.star(starOf(places, now, page.ranked > 0));
    paint(next !== null);
    // A notebook has to attach the root first.
    if (opening && token >= 0) requestAnimationFrame(() => strip.focus(token, false));
    if (next) ask(next);
  }

  /** Values that come together are shown together. */
  function showSoon() {
    if (!placesChanged && !clustersChanged) queueMicrotask(() => (placesChanged || clustersChanged) && show());
  }

  /** @param {Format} format */
  function save(format) {
    const { layer, head, n_clusters: count, view } = settings();
    const size = view === "clusters" ? `clusters-${count}` : view;
    return saveAs(format, controls.menu, root, host, `cluster-inspector-layer-${layer}-head-${head}-${size}`);
  }

  root.addEventListener("keydown", (event) => {
    const target = targetOf(event), move = stepKeys(page.steps)[event.key];
    const typing = target.matches("select, input:not([type=range])");
    if (hasModifier(event) || typing) return;
    // The sliders' keys too: JupyterLab suppresses their effect.
    if (move && controls.ownsKeys(target)) {
      const ends = { Home: 0, End: Infinity }[event.key];
      controls.count(ends ?? move[0], ends !== undefined);
    } else if (move) go(...move);
    else if (event.key === "Escape" && token >= 0 && !controls.menu.menu.open) choose(-1);
    else return;
    event.preventDefault();
  });

  host.on("page", () => controls.counts(host.get("page").counts));
  host.on("places", () => {
    showSoon();
    placesChanged = true;
  });
  host.on("clusters", () => {
    showSoon();
    clustersChanged = true;
  });
  host.on("step", () => go(0, host.get("step")));
  host.on("token", () => host.get("token") !== token && choose(host.get("token"), host.get("group")));
  host.on("group", () => host.get("group") !== group && choose(host.get("token"), host.get("group")));
  show();
  return () => {
    clearTimeout(slowTimer);
    wait.close();
    unwatch();
    map.destroy();
  };
}
