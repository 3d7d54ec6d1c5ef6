import { element, format } from "./dom.js";
import { frequent, MEANING, steps } from "./inspector_words.js";
import { colourOf } from "./theme.js";
import { quoted } from "./words.js";

/** @import { Clustering, InspectorPage } from "./inspector.js" */

/**
 * Under the map and the text: the cluster that is picked, or the list of all of them.
 *
 * @param {HTMLElement} host
 * @param {InspectorPage} page
 * @param {{ goTo: (token: number) => void, onList: () => void }} options
 */
export function createDetails(host, page, { goTo, onList }) {
  const heading = host.appendChild(element("h3"));
  const body = host.appendChild(element("div", "kv-panel kv-about"));

  /**
   * @param {HTMLElement} parent
   * @param {number} cluster
   * @param {string} text
   * @param {string} meaning
   * @param {Clustering} found
   */
  function link(parent, cluster, text, meaning, found) {
    const made = parent.appendChild(element("button", "kv-link"));
    made.type = "button";
    made.title = meaning;
    const swatch = made.appendChild(element("span", "kv-swatch"));
    swatch.style.background = colourOf(found.hues[cluster]);
    made.append(element("span", "kv-id", `#${cluster}`), element("span", "", text));
    made.addEventListener("click", () => goTo(found.central[cluster]));
    return made;
  }

  /**
   * @param {Clustering} found
   * @param {number} cluster
   */
  function one(found, cluster) {
    const members = [...found.labels.keys()].filter((token) => found.labels[token] === cluster);
    const taken = takenOf(found, cluster), central = found.central[cluster];
    const facts = element("div", "kv-facts");
    const swatch = facts.appendChild(element("span", "kv-swatch"));
    swatch.style.background = colourOf(found.hues[cluster]);
    facts.append(element("span", "kv-id", `#${cluster}`));
    fact(facts, "size", format(members.length), MEANING.size);
    fact(facts, "spread", found.spread[cluster].toFixed(2), MEANING.spread);
    const recalled = taken.length ? `${steps(taken)} of ${format(taken.length)} steps` : "no recorded step";
    fact(facts, "recalled by", recalled, MEANING.recalled);
    fact(facts, "most central", `${quoted(page.tokens[central])} at ${format(central)}`, MEANING.central);
    const list = facts.appendChild(element("button", "", "All clusters"));
    list.type = "button";
    list.title = "lets go of this cluster and lists all (Escape)";
    list.addEventListener("click", onList);

    const rows = element("dl", "kv-rows");
    row(rows, "mostly", MEANING.mostly).append(frequent(page.tokens, members));
    const near = row(rows, "nearest", MEANING.nearest), width = found.shapes.nearest[1];
    for (let rank = 0; rank < width; rank++) {
      const other = found.nearest[cluster * width + rank];
      if (other < 0) continue;
      const cosine = found.nearest_cosine[cluster * width + rank].toFixed(3);
      const meaning = `go to cluster ${other}: ${found.sizes[other]} tokens, cosine of the centroids ${cosine}`;
      link(near, other, cosine, meaning, found);
    }
    if (!near.children.length) near.append("there is no other cluster");
    row(rows, "steps", MEANING.steps).append(bars(found, cluster, taken));
    return [facts, rows];
  }

  /**
   * @param {Clustering} found
   * @param {number} cluster
   * @param {number[]} taken
   */
  function bars(found, cluster, taken) {
    if (!taken.length) {
      const todo = "pick a recorded layer, or open the inspector without a recording";
      return element("span", "kv-empty", `Layer ${found.layer} was not recorded: ${todo}.`);
    }
    const made = element("div", "kv-steps");
    made.setAttribute("role", "img");
    made.setAttribute("aria-label", `steps that attended tokens of this cluster: ${steps(taken)} of ${taken.length}`);
    taken.forEach((count, step) => {
      const bar = made.appendChild(element("span", "kv-stepbar"));
      const fed = `step ${step}, fed ${quoted(page.step_tokens[step] ?? "")} at position ${
        format(page.tokens.length + step)
      }`;
      bar.title = `${fed}: attended ${format(count)} of ${format(found.sizes[cluster])} tokens`;
      const fill = bar.appendChild(element("span"));
      fill.style.height = `${(100 * count) / found.sizes[cluster]}%`;
      fill.style.background = colourOf(found.hues[cluster]);
    });
    return made;
  }

  /** @param {Clustering} found */
  function all(found) {
    const list = element("ol", "kv-all"), count = found.sizes.length;
    const recalled = Array.from({ length: count }, (_, cluster) => steps(takenOf(found, cluster)));
    const members = Array.from({ length: count }, () => /** @type {number[]} */ ([]));
    found.labels.forEach((cluster, token) => cluster >= 0 && members[cluster].push(token));
    const order = [...recalled.keys()].filter((cluster) => found.sizes[cluster] > 0);
    order.sort((one, other) => recalled[other] - recalled[one] || found.sizes[other] - found.sizes[one]);
    for (const cluster of order) {
      const text = `${format(found.sizes[cluster])} tokens · ${recalled[cluster]} steps`;
      const item = list.appendChild(element("li"));
      link(item, cluster, text, `${MEANING.size}; ${MEANING.recalled}`, found);
      item.append(element("span", "kv-first", frequent(page.tokens, members[cluster], 4)));
    }
    return [list];
  }

  return {
    /**
     * @param {Clustering} found
     * @param {number} token
     */
    paint(found, token) {
      const cluster = token < 0 ? -1 : found.labels[token], empty = found.sizes.filter((size) => !size).length;
      const more = empty ? ` (${format(empty)} more are empty)` : "";
      heading.textContent = cluster >= 0
        ? "the cluster picked"
        : `all ${format(found.sizes.length - empty)} clusters, most often recalled first${more}`;
      body.replaceChildren(...(cluster >= 0 ? one(found, cluster) : all(found)));
      if (token < 0 || cluster >= 0) return;
      const why = "is a sink or recent token: always attended, in no cluster.";
      body.prepend(element("p", "kv-empty", `${quoted(page.tokens[token])} at ${format(token)} ${why}`));
    },
  };
}

/**
 * How many tokens of a cluster each step took.
 *
 * @param {Clustering} found
 * @param {number} cluster
 */
export function takenOf(found, cluster) {
  const [count, width] = found.shapes.taken;
  return Array.from({ length: count }, (_, step) => found.taken[step * width + cluster]);
}

/**
 * @param {HTMLElement} parent
 * @param {string} name
 * @param {string} text
 * @param {string} meaning
 */
function fact(parent, name, text, meaning) {
  const made = parent.appendChild(element("span", "kv-figure"));
  made.title = meaning;
  made.append(element("span", "kv-name", name), element("span", "kv-number", text));
}

/**
 * @param {HTMLElement} rows
 * @param {string} name
 * @param {string} meaning
 */
function row(rows, name, meaning) {
  const term = rows.appendChild(element("dt", "kv-name", name));
  term.title = meaning;
  return rows.appendChild(element("dd"));
}
