import { element, format } from "./strip.js";
import { MEANING, bytes, quoted } from "./words.js";
import { button, createSaveMenu, createStepSlider, markSelected, picker } from "./panel.js";

// Seven controls: step back, step on, play, the step slider, the layer, the head, and the menu.
export function createControls(root, page, { go, toggle, pick, save }) {
  const head = root.appendChild(element("div", "kv-head"));
  head.append(element("h2", "kv-title", page.description));
  const layer = picker(head, "layer", page.layers, page.layers_meaning, () => pick(Number(layer.value), Number(row.value)));
  const row = picker(head, page.head_name, page.heads, `${page.head_name}: which of the layer's heads is shown`, () => pick(Number(layer.value), Number(row.value)));

  const bar = root.appendChild(element("div", "kv-controls"));
  let play = null;
  const showStep = createStepSlider(bar, page.steps, go, (buttons) => (play = button(buttons, "▶", "play (space)", toggle)));
  const fed = bar.appendChild(element("span", "kv-fed"));
  fed.title = MEANING.fed;
  const stats = bar.appendChild(element("span", "kv-stats"));
  const figures = Object.fromEntries(["recall", "mass", "attended", "read", "moved"].map((name) => [name, figure(stats, name)]));

  const menu = createSaveMenu(head, root, save);

  return {
    menu,
    playing(running) {
      play.textContent = running ? "❚❚" : "▶";
      play.setAttribute("aria-label", running ? "pause (space)" : "play (space)");
      play.title = play.getAttribute("aria-label");
      play.setAttribute("aria-pressed", String(running));
    },
    paint(state, slice, attended) {
      const { step } = state;
      const token = quoted(page.tokens[page.prompt_length + step]);
      showStep(step, `, fed ${token}, recall ${slice.recall[step].toFixed(2)}`);
      fed.textContent = `fed ${token}`;
      figures.recall.textContent = slice.recall[step].toFixed(2);
      figures.mass.textContent = slice.mass[step].toFixed(2);
      figures.attended.textContent = format(attended);
      for (const name of ["read", "moved"]) {
        const exact = slice[`${name}_bytes`][step];
        figures[name].textContent = bytes(exact);
        figures[name].parentElement.title = `${MEANING[name]}: ${format(exact)} bytes`;
      }
      layer.value = slice.layer;
      row.value = slice.head;
      markSelected(layer, row);
      menu.line.textContent = `${page.call}step=${step}, layer=${slice.layer}, head=${slice.head})`;
    },
  };
}

function figure(host, name) {
  const made = host.appendChild(element("span", "kv-figure"));
  made.title = MEANING[name];
  made.append(element("span", "kv-name", name));
  return made.appendChild(element("span", "kv-number"));
}
