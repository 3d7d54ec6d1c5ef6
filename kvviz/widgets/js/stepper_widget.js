import { createStepper } from "./stepper.js";

// The live host: the kernel packs a layer and head when they change; steps need no kernel.
function render({ model, el }) {
  const root = document.createElement("div");
  el.append(root);
  const bytes = () => {
    const view = model.get("slice");
    return new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
  };
  const stepper = createStepper(root, model.get("page"), {
    step: model.get("step"),
    css: model.get("_css"),
    request(layer, head) {
      model.set("layer", layer);
      model.set("head", head);
      model.save_changes();
    },
    stepped(step) {
      model.set("step", step);
      model.save_changes();
    },
  });
  const show = () => stepper.show(bytes());
  const step = () => stepper.step(model.get("step"));
  model.on("change:slice", show);
  model.on("change:step", step);
  show();
  return () => {
    model.off("change:slice", show);
    model.off("change:step", step);
    stepper.destroy();
  };
}

export default { render };
