// In a widget's page that a frame of the site holds: tells its height, takes the site's theme. frames.js is the other side.
const framedRoot = document.getElementById("kvviz-root");
function tellHeight() {
  window.parent.postMessage({ kvvizHeight: Math.ceil(framedRoot.getBoundingClientRect().height) }, "*");
}

new ResizeObserver(tellHeight).observe(framedRoot);
window.addEventListener("message", ({ source, data }) => {
  if (source !== window.parent || !["light", "dark"].includes(data?.kvvizTheme)) return;
  document.documentElement.dataset.theme = data.kvvizTheme; // theme.js watches it
  document.documentElement.style.colorScheme = data.kvvizTheme;
  document.body.style.background = "Canvas";
  if (data.kvvizAsks) tellHeight();
});
