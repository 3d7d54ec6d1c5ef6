import { element } from "./dom.js";
import { keepKeys } from "./panel.js";
import { createChoice } from "./prediction_choice.js";
import { createCurve } from "./prediction_curve.js";
import { createOrder } from "./prediction_order.js";
import { createValue } from "./prediction_value.js";
import { HINT, OPEN } from "./prediction_words.js";
import { createSaveMenu, saveAs } from "./save.js";
import { watchTheme } from "./theme.js";
import { createTip } from "./tip.js";

/** @import { View } from "./host.js" */
/** @import { ChoiceQuestion } from "./prediction_choice.js" */
/** @import { CurveQuestion } from "./prediction_curve.js" */
/** @import { OrderQuestion } from "./prediction_order.js" */
/** @import { ValueQuestion } from "./prediction_value.js" */
/** @import { Tip } from "./tip.js" */
/** @typedef {ValueQuestion | ChoiceQuestion | OrderQuestion | CurveQuestion} Question */
/** @typedef {(answer: unknown, words: string) => void} Change */
/**
 * The controls of a question. What was measured is in the document only between `reveal`, which returns it in words, and
 * `hide`.
 *
 * @typedef {object} Asked
 * @property {(answer: any) => void} set shows an answer; undefined is none
 * @property {(locked: boolean) => void} lock
 * @property {() => string} reveal
 * @property {() => void} hide
 * @property {() => void} [recolour] draws again, in another theme
 * @property {() => void} [close]
 */

/**
 * Questions that the reader answers; then what was measured, beside the answers.
 *
 * @type {View}
 */
export function createPrediction(root, host) {
  /** @type {{ title: string, questions: Question[] }} */
  const page = host.get("page");
  /** @type {Record<string, unknown>} */
  let answers = host.get("answers");
  let revealed = false;
  root.classList.add("kvviz", "kv-prediction");
  keepKeys(root);
  const head = root.appendChild(element("div", "kv-head"));
  head.appendChild(element("h2", "kv-title", page.title));
  const menu = createSaveMenu(head, root, (format) => saveAs(format, menu, root, host, "prediction"));
  const tip = createTip(root);
  const list = root.appendChild(element("div", "kv-questions"));
  const asked = page.questions.map((question, index) => {
    const section = list.appendChild(element("section", "kv-question"));
    const heading = section.appendChild(element("h3"));
    heading.append(element("span", "", `${index + 1}. ${question.text}`));
    const state = section.appendChild(element("p", "kv-state")); // always one line: nothing may move below a pointer
    const hint = section.appendChild(element("p", "kv-hint", HINT[question.kind]));
    const body = section.appendChild(element("div", `kv-asked-${question.kind}`));
    const result = section.appendChild(element("p", "kv-result"));
    const controls = create(body, question, tip, (answer, words) => {
      answers = { ...answers, [question.text]: answer };
      paint();
      spoken.textContent = `${question.text} ${words}. ${progress()}`;
      host.tell({ answers });
    });
    return { question, controls, state, hint, result };
  });
  const foot = root.appendChild(element("div", "kv-foot"));
  const button = foot.appendChild(element("button", "kv-compare"));
  button.type = "button";
  button.addEventListener("click", () => {
    show(!revealed);
    spoken.textContent = revealed
      ? asked.map(({ question, result }) => `${question.text} ${result.textContent}`).join(" ")
      : `The measurement is hidden. ${progress()}`;
    host.tell({ revealed });
  });
  const count = foot.appendChild(element("span", "kv-count"));
  const spoken = root.appendChild(element("p", "kv-spoken"));
  spoken.setAttribute("role", "status");

  const isOpen = (/** @type {Question} */ { text }) => answers[text] === undefined;
  const progress = () => {
    const all = page.questions.length;
    return `${all - page.questions.filter(isOpen).length} of ${all} answered.`;
  };

  /** @param {boolean} now */
  function show(now) {
    if (now && page.questions.some(isOpen)) return;
    revealed = now;
    for (const { controls, result } of asked) {
      controls.hide();
      controls.lock(now);
      result.textContent = now ? controls.reveal() : "";
    }
    if (!now) {
      tip.show([], { clientX: 0, clientY: 0 }); // what it said must not stay
      tip.hide();
      spoken.textContent = "";
    }
    paint();
  }

  function paint() {
    for (const { question, state, hint } of asked) {
      state.textContent = isOpen(question) ? OPEN : "✓ answered";
      state.hidden = hint.hidden = revealed;
    }
    button.disabled = page.questions.some(isOpen);
    button.textContent = revealed ? "Try again" : "Compare with the measurement";
    count.textContent = revealed ? "“Try again” hides the measurement; your answers stay." : progress();
    const given = Object.keys(answers).length ? `, answers=${JSON.stringify(answers)}` : "";
    menu.line.textContent = `kvviz.widgets.Prediction(*questions${given}${revealed ? ", revealed=True" : ""})`;
  }

  function takeAnswers() {
    const told = host.get("answers");
    for (const { question: { text }, controls } of asked) {
      if (JSON.stringify(told[text]) !== JSON.stringify(answers[text])) controls.set(told[text]);
    }
    answers = told;
    show(revealed && !page.questions.some(isOpen));
  }

  for (const { question, controls } of asked) if (!isOpen(question)) controls.set(answers[question.text]);
  show(host.get("revealed"));
  paint();
  host.on("answers", () => JSON.stringify(host.get("answers")) !== JSON.stringify(answers) && takeAnswers());
  host.on("revealed", () => host.get("revealed") !== revealed && show(host.get("revealed")));
  const unwatch = watchTheme(root, () => asked.forEach(({ controls }) => controls.recolour?.()));
  return () => {
    unwatch();
    asked.forEach(({ controls }) => controls.close?.());
  };
}

/**
 * @param {HTMLElement} body
 * @param {Question} question
 * @param {Tip} tip
 * @param {Change} changed
 * @returns {Asked}
 */
function create(body, question, tip, changed) {
  if (question.kind === "value") return createValue(body, question, changed);
  if (question.kind === "choice") return createChoice(body, question, changed);
  if (question.kind === "order") return createOrder(body, question, changed);
  return createCurve(body, question, tip, changed);
}
