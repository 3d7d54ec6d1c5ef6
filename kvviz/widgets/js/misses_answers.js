import { element } from "./dom.js";
import { explainTogether } from "./explain.js";
import { MEANING, total } from "./misses_words.js";
import { explainNumber } from "./scope.js";
import { quoted } from "./words.js";

/** @import { Change, MissesPage, Result } from "./misses.js" */

/**
 * What is written by full attention, by the method, with restored heads, and with the changes made.
 *
 * @param {HTMLElement} host
 * @param {MissesPage} page
 */
export function createAnswers(host, page) {
  const box = explainTogether(host.appendChild(element("div")), "answers and their log-probabilities");
  const list = box.appendChild(element("dl", "kv-answerlist"));
  line("full attention", `${quoted(page.answer)} · ${total(page.full)}`);
  line(page.method, `${quoted(page.texts.method)} · ${total(page.here)}`);
  if (page.texts.pinned !== undefined) line("all evidence pinned", quoted(page.texts.pinned));
  if (page.smallest === null) line("heads restored", "even all heads do not bring the answer back at this budget");
  else if (page.smallest.length && page.restored_answer !== null) {
    const heads = page.smallest.length === 1 ? "1 head" : `${page.smallest.length} heads`;
    line(`${heads} restored`, `${quoted(page.answer)} · ${total(page.restored_answer)}`);
    const right = page.control.filter(({ answered }) => answered).length;
    const sums = page.control.map(({ logprob }) => total(page.here + logprob)).join(", ");
    if (page.control.length) line(`${heads} at random`, `${right} of ${page.control.length} give the answer · ${sums}`);
  }
  const changed = line("your changes", "").appendChild(element("span"));
  changed.setAttribute("role", "status");

  /**
   * @param {string} name
   * @param {string} text
   */
  function line(name, text) {
    list.append(element("dt", "kv-name", name));
    return list.appendChild(explainNumber(element("dd", "", text), MEANING.logprob, "layers", "answer"));
  }

  /** @param {Change} change */
  function nameOf({ kind, layer, head, position }) {
    if (kind === "restore") return `layer ${layer}, head ${head} restored`;
    const token = quoted(page.tokens[position ?? 0]);
    return `${token} at ${position} ${kind === "pin" ? "pinned" : "dropped"}`;
  }

  return {
    /**
     * @param {Change[]} changes
     * @param {Result} result
     */
    paint(changes, result) {
      if (!changes.length) {
        changed.textContent = "none yet: restore the picked head, or pin or drop the picked token (in Changes)";
        return;
      }
      const names = changes.map(nameOf).join(", ");
      const whose = !page.live && changes[0].kind === "drop" ? "with full attention" : "";
      const numbers = result.refusal ? result.refusal : result.logprob === undefined ? "the diagnosis does not know" : [
        result.text === undefined ? "" : quoted(result.text),
        total(result.logprob),
        whose,
        result.answered ? "the answer is back" : "",
      ].filter(Boolean).join(" · ");
      changed.textContent = `${names}: ${numbers}`;
    },
  };
}
