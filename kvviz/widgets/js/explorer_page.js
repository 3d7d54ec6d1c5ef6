import { createExplorer } from "./explorer.js";
import { pageData, pageStyle, readBlob } from "./page.js";

// The host without a kernel: a grid of selections, budgets × values of the first slider.
const data = pageData();
const [main] = data.page.sliders;
let wanted = null;
async function ask(place) {
  const column = main ? main.values.indexOf(place.settings[main.name]) : 0;
  const key = `${data.page.budgets.indexOf(place.budget)}/${column}`;
  const numbers = { ...data.cells[key] };
  wanted = key;
  const bytes = numbers.refusal ? null : await readBlob(key);
  if (key !== wanted) return; // a later choice has overtaken this one
  explorer.show(numbers, bytes);
  explorer.curve(data.curves[column]);
}
const explorer = createExplorer(document.getElementById("kvviz-root"), data.page, { css: pageStyle(), ask });
ask(data.place);
