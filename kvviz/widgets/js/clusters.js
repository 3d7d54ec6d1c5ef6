import { colourOf } from "./theme.js";
import { element, format } from "./strip.js";
import { clustersOf } from "./slice.js";
import { MEANING, decimals, named, visible } from "./words.js";

const FIRST_WORDS = 48; // characters

// The clusters recalled at a step, best score first: a bar for the attention they hold, tokens taken, first words.
export function createClusters(host, page, { onHover, onPick }) {
  const list = host.appendChild(element("ol", "kv-clusters"));
  const nothing = host.appendChild(element("p", "kv-empty"));

  function item(clusters, index, frame, widest) {
    const group = clusters.group_ids[index], count = clusters.group_counts[index], known = clusters.group_known[index];
    const members = [...frame.positions].filter((_, token) => frame.groups[token] === group);
    const made = element("li");
    const bar = made.appendChild(element("span", "kv-bar"));
    const fill = bar.appendChild(element("span"));
    fill.style.width = `${(100 * clusters.group_masses[index]) / widest}%`;
    fill.style.background = colourOf(clusters.group_hues[index]);
    made.prepend(element("span", "kv-id", `#${group}`));
    made.append(element("span", "kv-share", clusters.group_masses[index].toFixed(3)));
    const size = made.appendChild(element("span", "kv-size", known > count ? `${format(count)} of ≥ ${format(known)}` : `${format(count)} tokens`));
    made.append(element("span", "kv-first", words(members)));
    size.title = known > count
      ? `trimmed: ${count} tokens attended here; this recording shows at least ${known} members that were there already`
      : page.merges ? "tokens that this centroid is the mean of" : `tokens of this ${page.group_name} attended at this step`;
    bar.title = made.querySelector(".kv-share").title = MEANING.share;
    made.querySelector(".kv-id").title = `${page.group_name} ${group}, ${MEANING.score.replace("score: ", "score ")}: ${decimals(clusters.group_scores[index])}`;
    made.addEventListener("pointerenter", () => onHover(members));
    made.addEventListener("pointerleave", () => onHover([]));
    made.addEventListener("click", () => onPick(members[0]));
    return made;
  }

  const words = (members) => {
    let text = "";
    for (let index = 0; index < members.length && text.length < FIRST_WORDS; index++) {
      const gap = index && members[index] !== members[index - 1] + 1 ? " … " : "";
      text += gap + page.tokens[members[index]];
    }
    const readable = named(text.replace(/\s+/g, " ").replace(/(… )+/g, "… ").trim());
    return /[^…\s]/.test(readable) ? readable : visible(text); // a cluster of white space
  };

  return {
    paint(slice, step, frame) {
      const clusters = clustersOf(slice, step);
      const widest = Math.max(1e-9, ...clusters.group_masses);
      list.replaceChildren(...Array.from(clusters.group_ids, (_, index) => item(clusters, index, frame, widest)));
      nothing.hidden = clusters.group_ids.length > 0;
      nothing.textContent = `Nothing was recalled by score at this step: every attended token is a sink, recent, generated, or attended without ${page.group_name}s.`;
      return clusters.group_ids.length;
    },
  };
}
