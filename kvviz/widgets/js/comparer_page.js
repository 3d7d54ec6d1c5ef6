import { createComparer } from "./comparer.js";
import { pageData, pageStyle, readBlob } from "./page.js";

// The host without a kernel.
const data = pageData();
const root = document.getElementById("kvviz-root");
let wanted = null;
async function request(layer, head) {
  const place = `${layer}/${head}`;
  wanted = place;
  const blocks = await Promise.all(data.page.methods.map((_, number) => readBlob(`${place}/${number}`)));
  if (place === wanted) comparer.show(blocks); // a later choice may have overtaken this one
}
const comparer = createComparer(root, data.page, {
  step: data.step,
  sort: data.sort,
  token: data.token,
  css: pageStyle(),
  request,
  stepped() {},
  sorted() {},
  picked() {},
});
request(data.layer, data.head);
