import { createComparer } from "./comparer.js";

// The live host: the kernel packs a layer and head of every recording when they change; steps need no kernel.
function render({ model, el }) {
  const root = document.createElement("div");
  el.append(root);
  const tell = (changes) => {
    for (const [name, value] of Object.entries(changes)) model.set(name, value);
    model.save_changes();
  };
  const comparer = createComparer(root, model.get("page"), {
    step: model.get("step"),
    sort: model.get("sort"),
    token: model.get("token"),
    css: model.get("_css"),
    request: (layer, head) => tell({ layer, head }),
    stepped: (step) => tell({ step }),
    sorted: (sort) => tell({ sort }),
    picked: (token) => tell({ token }),
  });
  const heard = {
    "change:slices": () => comparer.show(model.get("slices").map((view) => new Uint8Array(view.buffer, view.byteOffset, view.byteLength))),
    "change:step": () => comparer.step(model.get("step")),
    "change:sort": () => comparer.sort(model.get("sort")),
    "change:token": () => comparer.pick(model.get("token")),
  };
  for (const [event, react] of Object.entries(heard)) model.on(event, react);
  heard["change:slices"]();
  return () => {
    for (const [event, react] of Object.entries(heard)) model.off(event, react);
    comparer.destroy();
  };
}

export default { render };
