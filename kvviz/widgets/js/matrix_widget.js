import { mapColours, watchTheme } from "./theme.js";
import { createMatrix } from "./matrix.js";

function render({ model, el }) {
  const root = el.appendChild(document.createElement("div"));
  root.className = "kvviz kv-alone";
  const host = root.appendChild(document.createElement("div"));
  host.className = "kv-panel";
  const bytes = (name) => {
    const view = model.get(name);
    return new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
  };
  const tell = (name) => (row, column) => {
    model.set(name, row === null ? [-1, -1] : [row, column]);
    model.save_changes();
  };
  const matrix = createMatrix(host, {
    label: model.get("label"),
    palette: () => (model.get("colours").byteLength ? bytes("colours").slice() : mapColours(root)),
    onHover: (cell) => tell("hovered")(...(cell ?? [null])),
    onPick: tell("clicked"),
  });
  const frame = () => matrix.frame(model.get("row"));
  const paint = () => {
    const values = bytes("values"), [rows, columns] = model.get("shape");
    if (values.length === rows * columns) matrix.paint(values, rows, columns); // not between the two changes of one repaint
    frame();
  };
  const heard = { "change:values": paint, "change:shape": paint, "change:colours": matrix.recolour, "change:row": frame };
  for (const [event, react] of Object.entries(heard)) model.on(event, react);
  const unwatch = watchTheme(root, matrix.recolour);
  paint();
  return () => {
    for (const [event, react] of Object.entries(heard)) model.off(event, react);
    unwatch();
    matrix.destroy();
  };
}

export default { render };
