import { element } from "./dom.js";
import { explain } from "./explain.js";
import { createMenu } from "./menu.js";
import { download, pngOf, print, textOf } from "./picture.js";
import { vectorOf } from "./vector.js";
import { createWait } from "./wait.js";

// The "Save" menu of all widgets: the widget as a file, and the Python line that opens what it shows.

/** @import { Host } from "./host.js" */
/** @typedef {"png" | "svg" | "pdf" | "html"} Format */
/** @typedef {ReturnType<typeof createSaveMenu>} SaveMenu */

const PAGE_MS = 60_000; // a page may hold a hundred selections that the kernel has to compute first
/** @type {[format: Format, meaning: string][]} */
const FORMATS = [
  ["png", "a picture of the widget, two pixels per pixel of the screen"],
  ["svg", "a vector graphic of the widget: text stays text, maps are pictures at their own resolution"],
  ["pdf", "opens the print dialog for one page of the widget's size: choose “Save as PDF” there"],
  ["html", "a page with the widget that works without Python and without a network"],
];
/**
 * Adds the menu to a widget's head. `save` is called with a format, and calls `saveAs` with the file's name.
 *
 * @param {HTMLElement} head
 * @param {HTMLElement} root
 * @param {(format: Format) => unknown} save
 */
export function createSaveMenu(head, root, save) {
  const meaning = "this widget as a picture, vector graphic or page, or the Python line that opens it";
  const { menu, sheet, close } = createMenu(head, root, "Save", meaning);
  for (const [format, meaning] of FORMATS) item(`Save as ${format.toUpperCase()}`, meaning, () => save(format));
  item("Copy the call that made this", "copies the Python line that opens this view", copy);
  const line = sheet.appendChild(element("code"));
  const status = sheet.appendChild(element("p", "kv-said"));
  status.setAttribute("role", "status");
  const saved = head.appendChild(element("span", "kv-spoken"));
  saved.setAttribute("role", "status");
  const wait = createWait(sheet, () => (status.textContent = ""), PAGE_MS, "Nothing was saved.");
  wait.words.className = "kv-said";

  menu.addEventListener("toggle", () => {
    if (menu.open) status.textContent = saved.textContent = "";
  });
  /**
   * @param {string} text
   * @param {string} meaning
   * @param {() => unknown} pressed
   */
  function item(text, meaning, pressed) {
    const node = sheet.appendChild(element("button", "", text));
    node.type = "button";
    explain(node, meaning).setAttribute("aria-description", meaning);
    node.addEventListener("click", () => pressed());
  }

  async function copy() {
    try {
      await navigator.clipboard.writeText(line.textContent);
      status.textContent = "Copied.";
    } catch {
      getSelection()?.selectAllChildren(line);
      status.textContent = "This page cannot use the clipboard. The line is selected: copy it with Ctrl+C.";
    }
  }

  return {
    menu,
    line,
    wait,
    /** @param {string} words */
    saved(words) {
      close();
      saved.textContent = words;
    },
    /** @param {string} words */
    say(words) {
      menu.open = true;
      status.textContent = words;
    },
  };
}

/**
 * Saves the widget `root` as a file: `name` without its suffix. What is drawn is drawn before this returns.
 *
 * @param {Format} format
 * @param {SaveMenu} menu
 * @param {HTMLElement} root
 * @param {Host} host
 * @param {string} name
 */
export async function saveAs(format, menu, root, host, name) {
  const file = `${name}.${format}`;
  if (format === "html") return savePage(menu, host, file);
  try {
    const drawn = vectorOf(root, menu.line.textContent);
    if (format === "pdf") {
      print(drawn, name);
      return menu.saved("The print dialog was opened.");
    }
    download(format === "png" ? await pngOf(drawn) : new Blob([textOf(drawn)], { type: "image/svg+xml" }), file);
    menu.saved(`Saved ${file}.`);
  } catch (error) {
    const { message } = /** @type {Error} */ (error);
    menu.say(`This browser cannot save the widget as ${format.toUpperCase()} (${message}): take a screenshot instead.`);
  }
}

/**
 * Saves the widget as a page, which a kernel makes. An answer that comes late is saved all the same.
 *
 * @param {SaveMenu} menu
 * @param {Host} host
 * @param {string} file
 */
function savePage(menu, host, file) {
  menu.say("Making the page …");
  menu.wait.begin(host);
  host.askForPage(({ page, refusal }) => {
    menu.wait.end();
    if (!page) return menu.say(`No page was made: ${refusal}`);
    download(new Blob([page], { type: "text/html" }), file);
    menu.saved(`Saved ${file}.`);
  });
}
