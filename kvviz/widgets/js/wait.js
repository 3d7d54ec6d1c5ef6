import { element } from "./dom.js";

export const PATIENCE_MS = 8000;

/**
 * The wait for a kernel's answer. If none comes in time, `back` sets the controls to what is still shown, and the widget
 * says so. An answer that comes later is shown as any other: the kernel may only have been busy.
 *
 * @param {HTMLElement} root gets a line for the words, empty until then
 * @param {() => void} back
 * @param {string} [kept] what is left as it was
 */
export function createWait(root, back, usual = PATIENCE_MS, kept = "The widget still shows what it showed before.") {
  const words = root.appendChild(element("p", "kv-silent"));
  words.setAttribute("role", "status");
  /** @type {number | undefined} */
  let timer;

  function end() {
    clearTimeout(timer);
    delete root.dataset.busy;
    words.textContent = "";
  }

  return {
    words,
    begin(patience = usual) {
      end();
      timer = setTimeout(() => {
        end();
        back();
        words.textContent =
          `The kernel has not answered for ${patience / 1000} seconds: it is busy, or it has stopped. ` +
          `${kept} If the kernel has stopped, run the cell again.`;
      }, patience);
    },
    end,
    close: () => clearTimeout(timer),
  };
}
