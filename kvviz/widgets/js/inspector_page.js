import { createInspector } from "./inspector.js";
import { pageData, pageStyle, readBlob } from "./page.js";

// The host without a kernel: the clusters for some values of C are in the page.
const data = pageData();
const inspector = createInspector(document.getElementById("kvviz-root"), data.page, {
  token: data.token,
  css: pageStyle(),
  request: async ({ n_clusters: count }) => inspector.show(null, await readBlob(`clusters/${count}`)),
  picked() {},
});
inspector.show(await readBlob("places"), await readBlob(`clusters/${data.n_clusters}`));
