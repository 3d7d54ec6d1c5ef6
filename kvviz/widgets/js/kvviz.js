// All widgets as one module, for anywidget and for pages without a kernel. `deno task bundle` writes it to ../static.
import { createCanvasMatrix, createTokenStrip } from "./alone.js";
import { createComparer } from "./comparer.js";
import { element } from "./dom.js";
import { createExplorer } from "./explorer.js";
import { follow } from "./follow.js";
import { createHost } from "./host.js";
import { createInspector } from "./inspector.js";
import { createMechanism } from "./mechanism.js";
import { createMisses } from "./misses.js";
import { pageModel } from "./page.js";
import { createPrediction } from "./prediction.js";
import { createStepper } from "./stepper.js";

/** @import { Model, View } from "./host.js" */

/** @type {Record<string, View>} */
const VIEWS = {
  comparer: createComparer,
  explorer: createExplorer,
  inspector: createInspector,
  matrix: createCanvasMatrix,
  mechanism: createMechanism,
  misses: createMisses,
  prediction: createPrediction,
  stepper: createStepper,
  strip: createTokenStrip,
};

/**
 * @param {Model} model
 * @param {HTMLElement} root
 */
function draw(model, root) {
  const host = createHost(model);
  const close = VIEWS[model.get("_kvviz_view")](root, host);
  return () => {
    host.close();
    close();
  };
}

/**
 * The widgets of a page without a kernel, one below the other; the second one may follow the first.
 *
 * @param {{ widgets: { state: Record<string, any>, answers: any[] }[],
 *   follow: { skipped: number, group: number } | null }} page
 * @param {HTMLElement} root
 */
async function drawPage(page, root) {
  const models = await Promise.all(page.widgets.map((widget) => pageModel(widget)));
  for (const model of models) draw(model, root.appendChild(element("div")));
  if (page.follow) follow(models[1], models[0], page.follow);
}

const [data, root] = ["kvviz-page", "kvviz-root"].map((id) => document.getElementById(id));
if (data && root && !root.hasChildNodes()) drawPage(JSON.parse(data.textContent), root);

export default {
  /** @param {{ model: Model, el: HTMLElement }} context */
  render({ model, el }) {
    el.dataset.kvvizLive = model.get("_kvviz_key"); // hides the snapshot that the same cell shows
    return draw(model, el.appendChild(element("div")));
  },
};
