import { createStepper } from "./stepper.js";

// The host without a kernel: the page holds its slices as gzip in base64.
async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const data = JSON.parse(document.getElementById("kvviz-page").textContent);
const root = document.getElementById("kvviz-stepper");
let wanted = null;
async function request(layer, head) {
  wanted = `${layer}/${head}`;
  const key = wanted;
  const bytes = await inflate(document.querySelector(`script[data-slice="${key}"]`).textContent);
  if (key === wanted) stepper.show(bytes); // a later choice may have overtaken this one
}
const stepper = createStepper(root, data.page, {
  step: data.step,
  css: document.getElementById("kvviz-style").textContent,
  request,
  stepped() {},
});
request(data.layer, data.head);
