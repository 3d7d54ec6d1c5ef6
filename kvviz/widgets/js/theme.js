import { contextOf, element } from "./dom.js";

// Colours. A look is one byte, hue * LEVELS + level, packed by kvviz/widgets/view.py.
export const HUES = 24, LEVELS = 8, NOTHING = 255;

/**
 * Sets data-theme on the root and calls `changed`, now and whenever the page's theme changes. Returns a stop function.
 *
 * @param {HTMLElement} root
 * @param {() => void} [changed]
 */
export function watchTheme(root, changed = () => {}) {
  const media = window.matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const dark = isDark(media.matches);
    root.dataset.theme = dark ? "dark" : "light";
    changed();
  };
  const observer = new MutationObserver(apply); // JupyterLab names its theme in attributes of the body
  observer.observe(document.body, {
    attributes: true,
    attributeFilter: ["data-jp-theme-name", "data-jp-theme-light", "class"],
  });
  observer.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  media.addEventListener("change", apply);
  apply();
  return () => {
    observer.disconnect();
    media.removeEventListener("change", apply);
  };
}

/**
 * Whether the theme is dark. The background decides in a theme with --jp-* variables, otherwise data-theme of <html> if
 * it is set, and otherwise the system's preference.
 *
 * @param {boolean} preferred
 */
function isDark(preferred) {
  const background = getComputedStyle(document.body).getPropertyValue("--jp-layout-color1").trim();
  const theme = document.documentElement.dataset.theme;
  if (!background) return theme ? theme === "dark" : preferred;
  const [red, green, blue] = pixels([background]);
  return 0.3 * red + 0.59 * green + 0.11 * blue < 128;
}

/**
 * The classes that tint a token. They set only variables, so that one style sheet serves both themes; declarations on
 * the token itself would take a third more time.
 *
 * @param {number} look
 */
export function tintOf(look) {
  return `kv-hue-${Math.min(Math.floor(look / LEVELS), HUES)} kv-level-${look % LEVELS}`;
}

/**
 * The colour of a cluster at full strength, from its hue in the data.
 *
 * @param {number} hue
 */
export function colourOf(hue) {
  return `oklch(var(--kv-l) var(--kv-c) ${hue * (360 / HUES)})`;
}

/**
 * RGBA bytes of CSS colours, one pixel each, as the browser parses them.
 *
 * @param {string[]} colours
 */
export function pixels(colours) {
  const canvas = element("canvas");
  canvas.width = colours.length;
  canvas.height = 1;
  const context = contextOf(canvas, { willReadFrequently: true });
  colours.forEach((colour, index) => {
    context.fillStyle = colour;
    context.fillRect(index, 0, 1, 1);
  });
  return context.getImageData(0, 0, colours.length, 1).data;
}
