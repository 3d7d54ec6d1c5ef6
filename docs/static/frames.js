// Frames that hold a widget's page: as high as that page, in the theme that the reader chose. framed.js is the other side.
const frames = [...document.querySelectorAll("iframe.kvviz-frame")];
const media = window.matchMedia("(prefers-color-scheme: dark)");

function tell(frame, asks = false) {
  const chosen = document.body.dataset.theme; // furo's: light, dark or auto
  const theme = chosen === "light" || chosen === "dark" ? chosen : media.matches ? "dark" : "light";
  frame.contentWindow.postMessage({ kvvizTheme: theme, kvvizAsks: asks }, "*"); // pages from disk have no origin to name
}

window.addEventListener("message", ({ source, data }) => {
  const frame = frames.find((own) => own.contentWindow === source);
  if (!frame || !Number.isFinite(data?.kvvizHeight)) return;
  frame.style.height = `${Math.min(Math.max(data.kvvizHeight, 200), 4000)}px`;
  tell(frame);
});
new MutationObserver(() => frames.forEach((frame) => tell(frame))).observe(document.body, { attributes: true, attributeFilter: ["data-theme"] });
media.addEventListener("change", () => frames.forEach((frame) => tell(frame)));
frames.forEach((frame) => tell(frame, true)); // one that was ready before this script answers with its height
// A figure that was drawn in a folded part has no width of its own yet: it takes it when the part opens.
document.addEventListener("toggle", () => window.dispatchEvent(new Event("resize")), true);
