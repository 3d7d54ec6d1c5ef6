// All widgets as one module, for anywidget and for pages without a kernel. `deno task bundle` writes it to ../static.
import { createCanvasMatrix, createTokenStrip } from "./alone.js";
import { createComparer } from "./comparer.js";
import { element } from "./dom.js";
import { createExplorer } from "./explorer.js";
import { createHost } from "./host.js";
import { createInspector } from "./inspector.js";
import { createMisses } from "./misses.js";
import { pageModel } from "./page.js";
import { createStepper } from "./stepper.js";

/** @import { Model, View } from "./host.js" */

/** @type {Record<string, View>} */
const VIEWS = {
  comparer: createComparer,
  explorer: createExplorer,
  inspector: createInspector,
  matrix: createCanvasMatrix,
  misses: createMisses,
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

const [data, style, root] = ["kvviz-page", "kvviz-style", "kvviz-root"].map((id) => document.getElementById(id));
if (data && style && root && !root.hasChildNodes()) {
  pageModel(JSON.parse(data.textContent), style.textContent).then((model) => draw(model, root));
}

export default {
  /** @param {{ model: Model, el: HTMLElement }} context */
  render: ({ model, el }) => draw(model, el.appendChild(element("div"))),
};
