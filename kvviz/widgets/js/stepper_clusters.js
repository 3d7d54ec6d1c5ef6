import { onKeys, pointOf } from "./cursor.js";
import { element, format } from "./dom.js";
import { explain } from "./explain.js";
import { clustersOf } from "./slice.js";
import { colourOf } from "./theme.js";
import { decimals, MEANING, named, visible } from "./words.js";

/** @import { Clusters, Frame } from "./slice.js" */
/** @import { StepperPage, StepperSlice } from "./stepper.js" */
/** @import { Rows, Tip } from "./tip.js" */
/** @typedef {{ node: HTMLElement, members: number[], about: Rows }} Row */

const FIRST_WORDS = 48; // characters

/**
 * The clusters recalled at a step, best score first: a bar for their attention, the attended tokens, the first words.
 * With the focus, the keys ↑ and ↓ go from row to row, and Enter to its first token.
 *
 * @param {HTMLElement} host
 * @param {StepperPage} page
 * @param {{ tip: Tip, onHover: (members: number[]) => void, onPick: (member: number) => void }} options
 */
export function createClusters(host, page, { tip, onHover, onPick }) {
  const list = host.appendChild(element("ol", "kv-clusters"));
  list.tabIndex = 0;
  list.setAttribute("role", "listbox");
  list.setAttribute(
    "aria-label",
    `${page.group_name}s recalled, best score first`,
  );
  list.setAttribute("aria-description", "↑ and ↓ read them, Enter goes to one");
  /** @type {Row[]} */
  let rows = [];
  let cursor = -1;
  const emptyNote = host.appendChild(element("p", "kv-empty"));

  /**
   * @param {Clusters} clusters
   * @param {number} index
   * @param {Frame} frame
   * @param {number} widest
   */
  function item(clusters, index, frame, widest) {
    const group = clusters.group_ids[index], count = clusters.group_counts[index], known = clusters.group_known[index];
    const members = [...frame.positions].filter((_, token) => frame.groups[token] === group);
    const entry = element("li");
    const bar = entry.appendChild(element("span", "kv-bar"));
    const fill = bar.appendChild(element("span"));
    fill.style.width = `${(100 * clusters.group_masses[index]) / widest}%`;
    fill.style.background = colourOf(clusters.group_hues[index]);
    const score = element("span", "kv-score", page.lists_centroids ? "" : decimals(clusters.group_scores[index]));
    const rank = element("span", "kv-rank", `${index + 1}.`), id = element("span", "kv-id", `#${group}`);
    entry.prepend(rank, id, score);
    explain(rank, page.lists_centroids ? "rank by the attention on its tokens" : "rank by score at this step");
    explain(score, `score: ${MEANING.score}`);
    const share = entry.appendChild(element("span", "kv-share", clusters.group_masses[index].toFixed(3)));
    const size = entry.appendChild(
      element("span", "kv-size", `${format(count)} ${known > count ? `of ≥ ${format(known)}` : "tokens"}`),
    );
    entry.append(element("span", "kv-first", firstWords(members)));
    const counted = known > count
      ? `trimmed: ${count} tokens were attended to; the recording shows that the ${page.group_name} had at least ${known}`
      : page.lists_centroids
      ? "tokens whose mean is this centroid"
      : `tokens of this ${page.group_name} that were attended to at this step`;
    explain(size, counted);
    for (const node of [bar, share]) explain(node, `${MEANING.share}; the scale of the bars is the same at all steps`);
    if (known > count && index === clusters.group_ids.length - 1 && !page.lists_centroids) {
      entry.dataset.cut = "";
      size.textContent = `${format(count)} of ≥ ${format(known)}, cut`;
      explain(size, `the budget ended in this ${page.group_name}: ${counted}`);
    }
    explain(id, `${page.group_name} ${group}; ${MEANING.hues}`);
    entry.addEventListener("pointerenter", () => onHover(members));
    entry.addEventListener("pointerleave", () => onHover([]));
    entry.addEventListener("click", () => onPick(members[0]));
    entry.setAttribute("role", "option");
    entry.setAttribute("aria-selected", "false");
    /** @type {Rows} */
    const about = [
      [page.group_name, `#${group}`],
      ["rank", `${index + 1} of those recalled`],
      ["score", decimals(clusters.group_scores[index])],
      [
        "share of the attention",
        share.textContent,
      ],
      ["tokens", size.textContent],
      ["first words", firstWords(members)],
    ];
    return { node: entry, members, about };
  }

  /** @param {number} place */
  function go(place) {
    if (place >= rows.length) return;
    for (const [index, { node }] of rows.entries()) {
      node.toggleAttribute("data-cursor", index === place);
      node.setAttribute("aria-selected", String(index === place));
    }
    cursor = place;
    if (cursor < 0) {
      tip.hide();
      return onHover([]);
    }
    rows[cursor].node.scrollIntoView({ block: "nearest" });
    onHover(rows[cursor].members);
    tip.show(rows[cursor].about, pointOf(rows[cursor].node));
  }
  onKeys(list, {
    ArrowUp: () => go(Math.max(cursor - 1, 0)),
    ArrowDown: () => go(cursor + 1),
    Enter: () => cursor >= 0 && onPick(rows[cursor].members[0]),
  });
  list.addEventListener("blur", () => cursor >= 0 && go(-1));

  const firstWords = (/** @type {number[]} */ members) => {
    let text = "";
    for (let index = 0; index < members.length && text.length < FIRST_WORDS; index++) {
      const ellipsis = index && members[index] !== members[index - 1] + 1 ? " … " : "";
      text += ellipsis + page.tokens[members[index]];
    }
    const readable = named(text.replace(/\s+/g, " ").replace(/(… )+/g, "… ").trim());
    return /[^…\s]/.test(readable) ? readable : visible(text); // a cluster of white space
  };

  return {
    /**
     * @param {StepperSlice} slice
     * @param {number} step
     * @param {Frame} frame
     */
    paint(slice, step, frame) {
      const clusters = clustersOf(slice, step);
      const widest = slice.group_masses.reduce((most, mass) => Math.max(most, mass), 1e-9); // of all steps
      rows = Array.from(clusters.group_ids, (_, index) => item(clusters, index, frame, widest));
      cursor = -1;
      list.replaceChildren(...rows.map(({ node }) => node));
      list.hidden = rows.length === 0;
      emptyNote.hidden = clusters.group_ids.length > 0;
      const kinds = `a sink, recent, generated, or attended without ${page.group_name}s`;
      emptyNote.textContent = `Nothing was recalled by score at this step: every attended token is ${kinds}.`;
      return clusters.group_ids.length;
    },
  };
}
