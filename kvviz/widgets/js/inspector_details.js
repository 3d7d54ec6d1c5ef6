import { element, format } from "./dom.js";
import { explain, explainTogether } from "./explain.js";
import { membersOf, takenOf } from "./inspector_groups.js";
import { frequent, MEANING, steps, VIEWS } from "./inspector_words.js";
import { explainNumber, tagOf } from "./scope.js";
import { colourOf } from "./theme.js";
import { quoted } from "./words.js";

/** @import { InspectorPage } from "./inspector_controls.js" */
/** @import { Clustering } from "./inspector_groups.js" */
/** @import { Scope } from "./scope.js" */
/** @typedef {{ step: number, rank: number, ranked: number }} Shown the step, the picked group's rank, of how many */

/**
 * Below the map and the text: the picked cluster, or the list of all clusters.
 *
 * @param {HTMLElement} host
 * @param {InspectorPage} page
 * @param {{ goTo: (token: number, group: number) => void, onList: () => void }} options
 */
export function createDetails(host, page, { goTo, onList }) {
  const heading = host.appendChild(element("h3")), title = heading.appendChild(element("span"));
  heading.append(" ", tagOf(host, "head"));
  const body = host.appendChild(element("div", "kv-panel kv-about"));

  /**
   * @param {HTMLElement} parent
   * @param {number} cluster
   * @param {string} text
   * @param {string} meaning
   * @param {Clustering} clusters
   */
  function link(parent, cluster, text, meaning, clusters) {
    const button = parent.appendChild(element("button", "kv-link"));
    button.type = "button";
    explain(button, meaning).setAttribute("aria-description", meaning);
    const swatch = button.appendChild(element("span", "kv-swatch"));
    swatch.style.background = colourOf(clusters.hues[cluster]);
    button.append(element("span", "kv-id", `#${cluster}`), element("span", "", text));
    button.addEventListener("click", () => goTo(clusters.central[cluster], cluster));
    return button;
  }

  /**
   * @param {Clustering} clusters
   * @param {number} cluster
   * @param {Shown} shown
   */
  function details(clusters, cluster, { step, rank, ranked }) {
    const members = membersOf(clusters, cluster), { one, many } = VIEWS[clusters.told.view];
    const taken = takenOf(clusters, cluster), central = clusters.central[cluster];
    const told = explainTogether(element("div"), `the picked ${one}`);
    const facts = told.appendChild(element("div", "kv-facts"));
    const swatch = facts.appendChild(element("span", "kv-swatch"));
    swatch.style.background = colourOf(clusters.hues[cluster]);
    facts.append(element("span", "kv-id", `#${cluster}`));
    const place = rank < 0 ? "not ranked" : `${format(rank + 1)} of ${format(ranked)}`;
    fact(facts, `rank at step ${format(step)}`, place, MEANING.rank, "step");
    fact(facts, "size", format(members.length), MEANING.size);
    fact(facts, "spread", clusters.spread[cluster].toFixed(2), MEANING.spread);
    const recalled = taken.length ? `${steps(taken)} of ${format(taken.length)} steps` : "no recorded step";
    fact(facts, "recalled by", recalled, MEANING.recalled, "steps");
    fact(facts, "most central", `${quoted(page.tokens[central])} at ${format(central)}`, MEANING.central);
    const list = facts.appendChild(element("button", "", `All ${many}`));
    list.type = "button";
    explain(list, `clears the choice and lists all ${many} (Escape)`);
    list.addEventListener("click", onList);

    const rows = told.appendChild(element("dl", "kv-rows"));
    row(rows, "mostly", MEANING.mostly).append(frequent(page.tokens, members));
    const nearest = row(rows, "nearest", MEANING.nearest), width = clusters.shapes.nearest[1];
    for (let rank = 0; rank < width; rank++) {
      const neighbour = clusters.nearest[cluster * width + rank];
      if (neighbour < 0) continue;
      const cosine = clusters.nearest_cosine[cluster * width + rank].toFixed(3);
      const meaning = `go to ${one} ${neighbour}: ${clusters.sizes[neighbour]} tokens, cosine of centroids ${cosine}`;
      link(nearest, neighbour, cosine, meaning, clusters);
    }
    if (!nearest.children.length) nearest.append(`there is no other ${one}`);
    row(rows, "steps", MEANING.steps).append(bars(clusters, cluster, taken, step));
    return [told];
  }

  /**
   * @param {Clustering} clusters
   * @param {number} cluster
   * @param {number[]} taken
   * @param {number} now
   */
  function bars(clusters, cluster, taken, now) {
    if (!taken.length) {
      const advice = "pick a recorded layer, or open the inspector without a recording";
      return element("span", "kv-empty", `Layer ${clusters.layer} was not recorded: ${advice}.`);
    }
    const chart = element("div", "kv-steps");
    chart.setAttribute("role", "img");
    chart.setAttribute(
      "aria-label",
      `steps that attended to this ${VIEWS[clusters.told.view].one}: ${steps(taken)} of ${taken.length}`,
    );
    taken.forEach((count, step) => {
      const bar = chart.appendChild(element("span", "kv-stepbar"));
      bar.toggleAttribute("data-now", step === now);
      const fed = `step ${step}, fed ${quoted(page.step_tokens[step] ?? "")} at position ${
        format(page.tokens.length + step)
      }`;
      explain(bar, `${fed}: attended to ${format(count)} of ${format(clusters.sizes[cluster])} tokens`);
      bar.dataset.said = format(count);
      const fill = bar.appendChild(element("span"));
      fill.style.height = `${(100 * count) / clusters.sizes[cluster]}%`;
      fill.style.background = colourOf(clusters.hues[cluster]);
    });
    return chart;
  }

  /** @param {Clustering} clusters */
  function all(clusters) {
    const list = element("ol", "kv-all"), count = clusters.sizes.length;
    const recalled = Array.from({ length: count }, (_, cluster) => steps(takenOf(clusters, cluster)));
    const order = [...recalled.keys()].filter((cluster) => clusters.sizes[cluster] > 0);
    order.sort((a, b) => recalled[b] - recalled[a] || clusters.sizes[b] - clusters.sizes[a]);
    for (const cluster of order) {
      const text = `${format(clusters.sizes[cluster])} tokens · ${recalled[cluster]} steps`;
      const item = list.appendChild(element("li"));
      link(item, cluster, text, `${MEANING.size}; ${MEANING.recalled}`, clusters);
      item.append(element("span", "kv-first", frequent(page.tokens, membersOf(clusters, cluster), 4)));
    }
    return [list];
  }

  return {
    /**
     * @param {Clustering} clusters
     * @param {number} token
     * @param {number} cluster
     * @param {Shown} shown
     */
    paint(clusters, token, cluster, shown) {
      const { one, many, none } = VIEWS[clusters.told.view], empty = clusters.sizes.filter((size) => !size).length;
      const more = empty ? ` (${format(empty)} more are empty)` : "";
      title.textContent = cluster >= 0
        ? `the picked ${one}`
        : `all ${format(clusters.sizes.length - empty)} ${many}, most often recalled first${more}`;
      body.replaceChildren(...(cluster >= 0 ? details(clusters, cluster, shown) : all(clusters)));
      if (token < 0 || cluster >= 0) return;
      body.prepend(element("p", "kv-empty", `${quoted(page.tokens[token])} at ${format(token)} is ${none}.`));
    },
  };
}

/**
 * @param {HTMLElement} parent
 * @param {string} name
 * @param {string} text
 * @param {string} meaning
 * @param {Scope[]} when
 */
function fact(parent, name, text, meaning, ...when) {
  const figure = parent.appendChild(explainNumber(element("span", "kv-figure"), meaning, "head", ...when));
  figure.append(element("span", "kv-name", name), element("span", "kv-number", text));
}

/**
 * @param {HTMLElement} rows
 * @param {string} name
 * @param {string} meaning
 */
function row(rows, name, meaning) {
  rows.append(explain(element("dt", "kv-name", name), meaning));
  return rows.appendChild(element("dd"));
}
