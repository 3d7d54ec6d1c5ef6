import { createInspector } from "./inspector.js";

// The live host: the kernel clusters anew when a setting changes; picking a cluster needs no kernel.
function render({ model, el }) {
  const root = document.createElement("div");
  el.append(root);
  const bytes = (name) => {
    const view = model.get(name);
    return new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
  };
  const inspector = createInspector(root, model.get("page"), {
    token: model.get("token"),
    css: model.get("_css"),
    request(settings) {
      for (const [name, value] of Object.entries(settings)) model.set(name, value);
      model.save_changes();
    },
    picked(token) {
      model.set("token", token);
      model.save_changes();
    },
  });
  let moved = true;
  const heard = {
    "change:page": () => inspector.counts(model.get("page").counts),
    "change:places": () => (moved = true),
    "change:clusters": () => {
      inspector.show(moved ? bytes("places") : null, bytes("clusters"));
      moved = false;
    },
    "change:token": () => inspector.pick(model.get("token")),
  };
  for (const [event, react] of Object.entries(heard)) model.on(event, react);
  heard["change:clusters"]();
  return () => {
    for (const [event, react] of Object.entries(heard)) model.off(event, react);
    inspector.destroy();
  };
}

export default { render };
