import { colourOf } from "./theme.js";
import { element, format } from "./strip.js";
import { quoted } from "./words.js";
import { INSPECTOR_MEANING, frequent, steps } from "./inspector_words.js";

// Under the map and the text: the cluster that is picked, or the list of all of them.
export function createDetails(host, page, { goTo, onList }) {
  const heading = host.appendChild(element("h3"));
  const body = host.appendChild(element("div", "kv-panel kv-about"));

  const membersOf = (found, cluster) => [...found.labels.keys()].filter((token) => found.labels[token] === cluster);
  const takenOf = (found, cluster) => Array.from({ length: found.shapes.taken[0] }, (_, step) => found.taken[step * found.sizes.length + cluster]);

  function fact(parent, name, text, meaning) {
    const made = parent.appendChild(element("span", "kv-figure"));
    made.title = meaning;
    made.append(element("span", "kv-name", name), element("span", "kv-number", text));
    return made;
  }

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

  function one(found, cluster) {
    const members = membersOf(found, cluster), taken = takenOf(found, cluster), central = found.central[cluster];
    const facts = element("div", "kv-facts");
    const swatch = facts.appendChild(element("span", "kv-swatch"));
    swatch.style.background = colourOf(found.hues[cluster]);
    facts.append(element("span", "kv-id", `#${cluster}`));
    fact(facts, "size", format(members.length), INSPECTOR_MEANING.size);
    fact(facts, "spread", found.spread[cluster].toFixed(2), INSPECTOR_MEANING.spread);
    fact(facts, "recalled by", taken.length ? `${steps(taken)} of ${format(taken.length)} steps` : "no recorded step", INSPECTOR_MEANING.recalled);
    fact(facts, "most central", `${quoted(page.tokens[central])} at ${format(central)}`, INSPECTOR_MEANING.central);
    const list = facts.appendChild(element("button", "", "All clusters"));
    list.type = "button";
    list.title = "lets go of this cluster and lists all (Escape)";
    list.addEventListener("click", onList);

    const rows = element("dl", "kv-rows");
    row(rows, "mostly", INSPECTOR_MEANING.mostly).append(frequent(page.tokens, members));
    const near = row(rows, "nearest", INSPECTOR_MEANING.nearest), width = found.shapes.nearest[1];
    for (let rank = 0; rank < width; rank++) {
      const other = found.nearest[cluster * width + rank], cosine = found.nearest_cosine[cluster * width + rank];
      if (other >= 0) link(near, other, cosine.toFixed(3), `go to cluster ${other}: ${found.sizes[other]} tokens, cosine of the centroids ${cosine.toFixed(3)}`, found);
    }
    if (!near.children.length) near.append("there is no other cluster");
    row(rows, "steps", INSPECTOR_MEANING.steps).append(bars(found, cluster, taken));
    return [facts, rows];
  }

  function bars(found, cluster, taken) {
    if (!taken.length) return element("span", "kv-empty", `Layer ${found.layer} was not recorded: pick a recorded layer, or open the inspector without a recording.`);
    const made = element("div", "kv-steps");
    made.setAttribute("role", "img");
    made.setAttribute("aria-label", `steps that attended tokens of this cluster: ${steps(taken)} of ${taken.length}`);
    taken.forEach((count, step) => {
      const bar = made.appendChild(element("span", "kv-stepbar"));
      bar.title = `step ${step}, fed ${quoted(page.step_tokens[step] ?? "")} at position ${format(page.tokens.length + step)}: attended ${format(count)} of ${format(found.sizes[cluster])} tokens`;
      const fill = bar.appendChild(element("span"));
      fill.style.height = `${(100 * count) / found.sizes[cluster]}%`;
      fill.style.background = colourOf(found.hues[cluster]);
    });
    return made;
  }

  function all(found) {
    const list = element("ol", "kv-all"), count = found.sizes.length;
    const recalled = Array.from({ length: count }, (_, cluster) => steps(takenOf(found, cluster)));
    const members = Array.from({ length: count }, () => []);
    found.labels.forEach((cluster, token) => cluster >= 0 && members[cluster].push(token));
    const order = [...recalled.keys()].filter((cluster) => found.sizes[cluster] > 0);
    order.sort((one, other) => recalled[other] - recalled[one] || found.sizes[other] - found.sizes[one]);
    for (const cluster of order) {
      const text = `${format(found.sizes[cluster])} tokens · ${recalled[cluster]} steps`;
      const item = list.appendChild(element("li"));
      link(item, cluster, text, `${INSPECTOR_MEANING.size}; ${INSPECTOR_MEANING.recalled}`, found);
      item.append(element("span", "kv-first", frequent(page.tokens, members[cluster], 4)));
    }
    return [list];
  }

  return {
    paint(found, token) {
      const cluster = token < 0 ? -1 : found.labels[token], empty = found.sizes.filter((size) => !size).length;
      heading.textContent = cluster >= 0 ? "the cluster picked"
        : `all ${format(found.sizes.length - empty)} clusters, most often recalled first${empty ? ` (${format(empty)} more are empty)` : ""}`;
      const unclustered = token >= 0 && cluster < 0 ? [element("p", "kv-empty", `${quoted(page.tokens[token])} at ${format(token)} is a sink or recent token: always attended, in no cluster.`)] : [];
      body.replaceChildren(...unclustered, ...(cluster >= 0 ? one(found, cluster) : all(found)));
    },
  };
}

function row(rows, name, meaning) {
  const term = rows.appendChild(element("dt", "kv-name", name));
  term.title = meaning;
  return rows.appendChild(element("dd"));
}
