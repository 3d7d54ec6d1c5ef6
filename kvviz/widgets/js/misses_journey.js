import { element, format } from "./dom.js";
import { explain, explainTogether } from "./explain.js";
import { MARK, MEANING, nats, OUTCOME } from "./misses_words.js";
import { explainNumber, tagOf } from "./scope.js";
import { decimals, quoted } from "./words.js";

/** @import { Losses, MissesPage, Picked } from "./misses.js" */

/**
 * The picked token's way through one head's choice: a mark per step, and each stage with its numbers at this step.
 *
 * @param {{ heading: Element, panel: HTMLElement }} host
 * @param {MissesPage} page
 * @param {Losses} losses
 * @param {{ pick: (changes: Partial<Picked>) => void }} options
 */
export function createJourney({ heading, panel }, page, losses, { pick }) {
  const steps = panel.appendChild(element("div", "kv-steprow"));
  steps.setAttribute("role", "group");
  steps.setAttribute("aria-label", "steps: where the token was lost");
  const stagesBox = explainTogether(panel.appendChild(element("div")), "stages of the choice");
  const stages = stagesBox.appendChild(element("ol", "kv-stages"));
  const causesBox = explainTogether(panel.appendChild(element("div")), "what each cause took");
  const waterfall = causesBox.appendChild(element("ol", "kv-causes"));
  for (const [name, value] of [["full attention", page.full], ...page.causes, ["here", page.here]]) {
    const item = waterfall.appendChild(element("li"));
    const end = name === "full attention" || name === "here";
    item.append(element("span", "kv-name", String(name)), element("span", "kv-number", nats(Number(value), !end)));
    explainNumber(item, end ? MEANING.logprob : MEANING.causes, "layers", "answer");
  }
  waterfall.appendChild(element("li")).append(tagOf(waterfall, "layers", "answer"));

  /**
   * @param {Picked} picked
   * @param {number} step
   * @param {number} row
   */
  function indexOf({ layer, head, position }, step, row) {
    const [, layers, rows, tokens] = losses.shapes.stage;
    const token = page.evidence.findIndex((entry) => entry.position === position);
    const line = head * page.rows_per_head + row;
    return ((step * layers + page.layers.indexOf(layer)) * rows + line) * tokens + token;
  }

  /**
   * @param {Picked} picked
   * @param {number} step
   */
  function outcomesAt(picked, step) {
    const rows = Array.from({ length: page.rows_per_head }, (_, row) => indexOf(picked, step, row));
    return rows.map((index) => page.outcomes[losses.stage[index]]);
  }

  /** @param {Picked} picked */
  function paintSteps(picked) {
    steps.replaceChildren(...Array.from({ length: page.steps }, (_, step) => {
      const [outcome] = outcomesAt(picked, step).toSorted((a, b) =>
        Number(b === "attended") - Number(a === "attended")
      );
      const node = element("button", "", MARK[outcome]);
      node.type = "button";
      node.tabIndex = -1;
      node.dataset.outcome = outcome;
      const told = `step ${step}, feeds ${quoted(page.fed[step])}: ${OUTCOME[outcome]}`;
      explain(node, told).setAttribute("aria-label", told);
      if (step >= page.asked) node.dataset.answer = "";
      if (step === picked.step) node.dataset.picked = "";
      node.addEventListener("click", () => pick({ step }));
      return node;
    }));
    reveal();
    requestAnimationFrame(reveal); // a notebook attaches the root first
  }

  /** Scrolls the row of steps, and nothing else, to the picked one. */
  function reveal() {
    const picked = /** @type {HTMLElement | null} */ (steps.querySelector("[data-picked]"));
    if (picked) steps.scrollLeft = picked.offsetLeft - steps.offsetLeft - (steps.clientWidth - picked.offsetWidth) / 2;
  }

  /**
   * The lines of one row: a state (passed, lost, or not reached), a name and numbers.
   *
   * @param {number} index
   * @returns {[state: string, name: string, numbers: string][]}
   */
  function linesOf(index) {
    const outcome = page.outcomes[losses.stage[index]];
    const exact = `weight ${decimals(losses.exact_weight[index])}, rank ${format(losses.exact_rank[index])}`;
    if (outcome === "not wanted") return [["lost", "exact attention", `${exact}: not wanted by this head`]];
    /** @type {[string, string, string][]} */
    const lines = [["passed", "exact attention", `${exact}: wanted`]];
    if (outcome === "crowded out") return [...lines, ["lost", "room", OUTCOME[outcome]]];
    let lost = false;
    for (const { name, verdict } of page.stages) {
      const here = verdict === outcome;
      lines.push([here ? "lost" : lost ? "after" : "passed", name, here ? verdict : lost ? "" : "✓"]);
      lost ||= here;
    }
    const numbers = numbersOf(index);
    if (numbers) lines.push([outcome === "attended" ? "passed" : "lost", "its score", numbers]);
    lines.push([outcome === "attended" ? "passed" : "lost", "given", `weight ${decimals(losses.weight[index])}`]);
    return lines;
  }

  /** @param {number} index */
  function numbersOf(index) {
    if (Number.isNaN(losses.score[index])) return "";
    const parts = [`${decimals(losses.score[index])}, rank ${format(losses.rank[index])}`];
    if (losses.group[index] >= 0) {
      const cut = losses.group_cut[index] >= 0 ? `, last taken ${format(losses.group_cut[index])}` : "";
      parts.push(`${page.group_name} #${losses.group[index]}: rank ${format(losses.group_rank[index])}${cut}`);
    }
    if (!Number.isNaN(losses.cut[index])) parts.push(`cut at ${decimals(losses.cut[index])}`);
    return parts.join(" · ");
  }

  return {
    /** @param {Picked} picked */
    paint(picked) {
      const { layer, head, position, step } = picked;
      const place = `${quoted(page.tokens[position])} at ${format(position)}, in layer ${layer}, KV head ${head} `;
      heading.replaceChildren(place, tagOf(stages, "head", "step"));
      paintSteps(picked);
      stages.replaceChildren();
      for (let row = 0; row < page.rows_per_head; row++) {
        const index = indexOf(picked, step, row), outcome = page.outcomes[losses.stage[index]];
        const verdict = stages.appendChild(element("li", "kv-verdict"));
        const of = page.rows_per_head > 1 ? `query head ${head * page.rows_per_head + row}: ` : "";
        explainNumber(verdict, MEANING.verdict, "head", "step");
        verdict.append(
          element("span", "kv-mark", MARK[outcome]),
          element("strong", "", `${of}${OUTCOME[outcome] ?? outcome}`),
        );
        for (const [state, name, numbers] of linesOf(index)) {
          const item = stages.appendChild(element("li", "kv-stage"));
          item.dataset.state = state;
          explainNumber(item, meaningOf(name), "head", "step");
          item.append(element("span", "kv-name", name), element("span", "", numbers));
        }
      }
    },
  };
}

/**
 * What a line of the journey means, by its name.
 *
 * @param {string} name
 */
function meaningOf(name) {
  const named = { "exact attention": MEANING.exact, given: MEANING.here, "its score": MEANING.score };
  return named[/** @type {keyof typeof named} */ (name)] ?? MEANING.stage;
}
