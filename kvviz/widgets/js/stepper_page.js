import { createStepper } from "./stepper.js";
import { pageData, pageStyle, readBlob } from "./page.js";

// The host without a kernel.
const data = pageData();
const root = document.getElementById("kvviz-root");
let wanted = null;
async function request(layer, head) {
  wanted = `${layer}/${head}`;
  const key = wanted;
  const bytes = await readBlob(key);
  if (key === wanted) stepper.show(bytes); // a later choice may have overtaken this one
}
const stepper = createStepper(root, data.page, {
  step: data.step,
  css: pageStyle(),
  request,
  stepped() {},
});
request(data.layer, data.head);
