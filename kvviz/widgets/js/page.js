// A page without a kernel holds its data as JSON and its bytes as gzip in base64; written by kvviz/widgets/page.py.
export function pageData() {
  return JSON.parse(document.getElementById("kvviz-page").textContent);
}

export function pageStyle() {
  return document.getElementById("kvviz-style").textContent;
}

export async function readBlob(key) {
  const text = document.querySelector(`script[data-slice="${key}"]`).textContent;
  // Browsers from before 2025 have no fromBase64.
  const bytes = Uint8Array.fromBase64?.(text) ?? Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
