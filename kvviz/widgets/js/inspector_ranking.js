import { onKeys, pointOf } from "./cursor.js";
import { element, format } from "./dom.js";
import { explain, explainTogether } from "./explain.js";
import { ranksOf } from "./inspector_groups.js";
import { countOf, MEANING, rankingWords, VIEWS } from "./inspector_words.js";
import { tagOf } from "./scope.js";
import { colourOf } from "./theme.js";
import { decimals } from "./words.js";

/** @import { Clustering, Rank } from "./inspector_groups.js" */
/** @import { Rows, Tip } from "./tip.js" */

const LABELLED = 34; // CSS pixels of a bar that has room for its number
/** @type {Record<Rank["kind"], string>} */
const KINDS = { whole: "recalled", part: "recalled in part", none: "not recalled" };

/**
 * The groups ranked at a step, a bar each, the best first. With the focus, ← and → go from bar to bar, Home and End to
 * the ends, and Enter picks one: the bars are one stop of the Tab key, however many they are.
 *
 * @param {HTMLElement} host
 * @param {object} options
 * @param {Tip} options.tip
 * @param {(group: number | null) => void} options.onHover
 * @param {(group: number) => void} options.onPick
 */
export function createRanking(host, { tip, onHover, onPick }) {
  const heading = host.appendChild(explain(element("h3"), MEANING.ranking));
  const title = heading.appendChild(element("span"));
  heading.append(" ", tagOf(host, "head", "step"));
  const words = host.appendChild(element("p", "kv-rankwords"));
  words.setAttribute("role", "status");
  const panel = host.appendChild(element("div", "kv-panel kv-ranking"));
  const list = panel.appendChild(element("div", "kv-rankbars"));
  list.tabIndex = 0;
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-description", "← and → read them, Enter picks one");
  const legend = host.appendChild(explainTogether(element("p", "kv-legend"), "legend of the bars"));
  /** @type {Clustering} */
  let clusters;
  /** @type {Rank[]} */
  let ranks = [];
  /** @type {HTMLElement[]} */
  let bars = [];
  let cursor = -1, picked = -1;

  /** @param {number} rank */
  function about(rank) {
    const { group, score, recalled, size, kind } = ranks[rank], { one, score: meaning } = VIEWS[clusters.told.view];
    /** @type {Rows} */
    const rows = [
      [one, `#${group}`],
      ["rank", `${format(rank + 1)} of ${format(ranks.length)}`],
      [meaning, decimals(score)],
      ["state", KINDS[kind]],
      ["attended to", `${format(recalled)} of ${format(size)} tokens`],
    ];
    return rows;
  }

  /**
   * @param {number} rank
   * @param {number} most
   * @param {number} least
   * @param {number} every
   */
  function bar(rank, most, least, every) {
    const { group, score, kind } = ranks[rank], node = element("span", `kv-rankbar kv-rank-${kind}`);
    node.setAttribute("role", "option");
    node.setAttribute("aria-label", about(rank).map(([term, value]) => `${term} ${value}`).join(", "));
    const room = node.appendChild(element("span", "kv-rankroom"));
    const fill = room.appendChild(element("span", "kv-rankfill"));
    fill.style.height = `${(100 * (score - least)) / Math.max(most - least, 1e-9)}%`;
    fill.style.setProperty("--kv-own", colourOf(clusters.hues[group]));
    const label = rank % every === 0 ? `#${group}` : "";
    node.appendChild(element("span", "kv-ranklabel", label)).setAttribute("aria-hidden", "true");
    node.addEventListener("pointerenter", (event) => {
      onHover(group);
      tip.show(about(rank), event);
    });
    node.addEventListener("pointerleave", () => leave());
    node.addEventListener("click", () => onPick(group));
    return node;
  }

  function leave() {
    onHover(null);
    tip.hide();
  }

  /** @param {number} rank */
  function go(rank) {
    if (rank >= bars.length) return;
    bars[cursor]?.removeAttribute("data-cursor");
    cursor = rank;
    if (cursor < 0) return leave();
    bars[cursor].dataset.cursor = "";
    bars[cursor].scrollIntoView({ block: "nearest", inline: "nearest" });
    onHover(ranks[cursor].group);
    tip.show(about(cursor), pointOf(bars[cursor]));
  }
  onKeys(list, {
    ArrowLeft: () => go(Math.max(cursor - 1, 0)),
    ArrowRight: () => go(cursor + 1),
    Home: () => go(0),
    End: () => go(bars.length - 1),
    Enter: () => cursor >= 0 && onPick(ranks[cursor].group),
    " ": () => cursor >= 0 && onPick(ranks[cursor].group),
  });
  list.addEventListener("blur", () => cursor >= 0 && go(-1));

  function mark() {
    bars.forEach((node, rank) => {
      const here = ranks[rank].group === picked;
      node.toggleAttribute("data-picked", here);
      node.setAttribute("aria-selected", String(here));
    });
  }

  return {
    /** The rank of a group at the step shown, from 0; -1 if it is not ranked. */
    rankOf: (/** @type {number} */ group) => ranks.findIndex((rank) => rank.group === group),
    get count() {
      return ranks.length;
    },
    /**
     * @param {Clustering} shown
     * @param {number} step
     */
    paint(shown, step) {
      clusters = shown;
      ranks = ranksOf(clusters, step);
      const { view } = clusters.told, cut = clusters.cut[step];
      const groups = clusters.sizes.reduce((count, size) => count + (size > 0 ? 1 : 0), 0);
      words.textContent = rankingWords(ranks, cut, clusters.told, groups);
      const [most, least] = [ranks[0]?.score ?? 0, ranks.at(-1)?.score ?? 0];
      const width = Math.max(7, panel.clientWidth / Math.max(ranks.length, 1)), every = Math.ceil(LABELLED / width);
      bars = ranks.map((_, rank) => bar(rank, most, least, every));
      if (cut > 0 && cut < bars.length) bars[cut - 1].dataset.cut = "";
      list.replaceChildren(...bars);
      list.setAttribute("aria-label", `${VIEWS[view].many} by ${VIEWS[view].score}, best first`);
      panel.hidden = legend.hidden = bars.length === 0;
      const scores = bars.length ? `, from ${decimals(least)} at the bottom to ${decimals(most)} at the top` : "";
      title.textContent = `step ${format(step)}: ${countOf(ranks.length, view)} by ${VIEWS[view].score}${scores}`;
      drawLegend(legend, clusters);
      cursor = -1;
    },
    /** @param {number} group */
    pick(group) {
      picked = group;
      mark();
      const node = bars[ranks.findIndex((rank) => rank.group === group)];
      if (node) {
        const from = node.offsetLeft, until = from + node.offsetWidth;
        if (from < panel.scrollLeft || until > panel.scrollLeft + panel.clientWidth) {
          panel.scrollLeft = from - panel.clientWidth / 2;
        }
      }
    },
  };
}

/**
 * @param {HTMLElement} host
 * @param {Clustering} clusters
 */
function drawLegend(host, { told: { view } }) {
  const { one } = VIEWS[view];
  /** @type {[kind: Rank["kind"], text: string, meaning: string][]} */
  const entries = [
    [
      "whole",
      view === "lists" ? "probed" : view === "codes" ? "all its tokens are attended to" : "recalled whole",
      view === "lists" ? "the step ranks the tokens of this list" : `the step attends to all tokens of this ${one}`,
    ],
    [
      "part",
      view === "codes" ? "some of its tokens are attended to" : "trimmed by the budget",
      `the step attends to some tokens of this ${one}`,
    ],
    [
      "none",
      view === "lists" ? "not probed" : "not recalled",
      view === "lists" ? "the step leaves this list out" : `the step selects no token of this ${one}`,
    ],
  ];
  const used = view === "pages" || view === "lists" ? entries.filter(([kind]) => kind !== "part") : entries;
  host.replaceChildren(...used.map(([kind, text, meaning]) => {
    const entry = explain(element("span", "kv-entry"), meaning);
    const sample = entry.appendChild(element("span", `kv-ranksample kv-rank-${kind}`));
    const fill = sample.appendChild(element("span", "kv-rankfill"));
    fill.style.setProperty("--kv-own", colourOf(16));
    entry.append(element("span", "", text));
    return entry;
  }));
}
