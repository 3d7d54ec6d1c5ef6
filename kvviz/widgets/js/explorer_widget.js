import { createExplorer } from "./explorer.js";

// The live host: the kernel computes what is asked for. One question is under way at a time, and of those that come
// meanwhile only the last is put, so that a slider never falls behind. The curve grows while there is none.
function render({ model, el }) {
  const root = document.createElement("div");
  el.append(root);
  let waiting = false, queued = null;
  const put = (message) => {
    waiting = true;
    model.send(message);
  };
  const ask = (place) => {
    if (waiting) queued = place;
    else put({ kind: "show", place });
  };
  const answered = () => {
    waiting = false;
    const place = queued;
    queued = null;
    if (place) put({ kind: "show", place });
    else if (!model.get("curve").done) put({ kind: "curve" });
  };
  const explorer = createExplorer(root, model.get("page"), { css: model.get("_css"), ask });
  const show = () => {
    const view = model.get("slice"), numbers = model.get("numbers");
    if (queued === null) explorer.show(numbers, new Uint8Array(view.buffer, view.byteOffset, view.byteLength));
    explorer.curve(model.get("curve"));
    answered();
  };
  const curve = () => {
    explorer.curve(model.get("curve"));
    if (model.get("curve").points.length || model.get("curve").done) answered(); // an empty one comes with new numbers
  };
  model.on("change:numbers", show);
  model.on("change:curve", curve);
  show();
  return () => {
    model.off("change:numbers", show);
    model.off("change:curve", curve);
    explorer.destroy();
  };
}

export default { render };
