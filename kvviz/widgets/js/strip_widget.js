import { watchTheme } from "./theme.js";
import { createStrip } from "./strip.js";

function render({ model, el }) {
  const root = el.appendChild(document.createElement("div"));
  root.className = "kvviz kv-alone";
  const host = root.appendChild(document.createElement("div"));
  host.className = "kv-panel";
  const tell = (name) => (position) => {
    model.set(name, position === null ? -1 : position);
    model.save_changes();
  };
  const strip = createStrip(host, { tokens: model.get("tokens"), label: model.get("label"), onHover: tell("hovered"), onPick: tell("clicked") });
  const bytes = (name) => {
    const view = model.get(name);
    return new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
  };
  const paint = () => {
    const looks = bytes("looks"), marks = bytes("marks");
    const positions = [...marks.keys()].filter((position) => marks[position]);
    strip.paint(positions, positions.map((position) => looks[position]), positions.map((position) => marks[position]));
  };
  const focus = () => strip.focus(model.get("focus"));
  const heard = { "change:looks": paint, "change:marks": paint, "change:focus": focus };
  for (const [event, react] of Object.entries(heard)) model.on(event, react);
  const unwatch = watchTheme(root, () => {});
  paint();
  return () => {
    for (const [event, react] of Object.entries(heard)) model.off(event, react);
    unwatch();
  };
}

export default { render };
