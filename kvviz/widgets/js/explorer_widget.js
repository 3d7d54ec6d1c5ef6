import { createExplorer } from "./explorer.js";

// The live host: the kernel computes what is asked for. One question is under way at a time, and of those that come
// meanwhile only the last is put, so that a slider never falls behind. The curve grows once nobody has asked for a while.
const CURVE_WAIT_MS = 300;

function render({ model, el }) {
  const root = document.createElement("div");
  el.append(root);
  let waiting = false, queued = null, timer = null;
  const put = (message) => {
    waiting = true;
    model.send(message);
  };
  const ask = (place) => {
    if (waiting) queued = place;
    else put({ kind: "show", place });
  };
  const grow = () => {
    if (!waiting && !model.get("curve").done) put({ kind: "curve" });
  };
  const answered = (wait) => {
    waiting = false;
    const place = queued;
    queued = null;
    clearTimeout(timer);
    if (place) put({ kind: "show", place });
    else timer = setTimeout(grow, wait);
  };
  const explorer = createExplorer(root, model.get("page"), { css: model.get("_css"), ask });
  const show = () => {
    const view = model.get("slice"), numbers = model.get("numbers");
    if (queued === null) explorer.show(numbers, new Uint8Array(view.buffer, view.byteOffset, view.byteLength));
    explorer.curve(model.get("curve"));
    answered(CURVE_WAIT_MS);
  };
  const curve = () => {
    explorer.curve(model.get("curve"));
    if (model.get("curve").points.length || model.get("curve").done) answered(0); // an empty one comes with new numbers
  };
  model.on("change:numbers", show);
  model.on("change:curve", curve);
  show();
  return () => {
    clearTimeout(timer);
    model.off("change:numbers", show);
    model.off("change:curve", curve);
    explorer.destroy();
  };
}

export default { render };
