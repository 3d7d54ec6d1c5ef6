import { element } from "./dom.js";

/** @import { Host } from "./host.js" */

export const PATIENCE_MS = 8000;
const BUSY = "The kernel is busy. Its answer is shown as soon as it comes.";

/**
 * The wait for a kernel's answer. While the kernel is known to be busy, the widget says so and waits on: the first use of
 * a compiled kernel, or another cell, may take longer. Otherwise `back` sets the controls to what is still shown, and the
 * widget says that no answer came. An answer that comes later is shown as any other: not all front ends know more.
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
    /** @param {Host} host */
    begin(host, patience = usual) {
      end();
      let waited = 0;
      function late() {
        waited += patience;
        if (host.isBusy()) {
          if (words.textContent !== BUSY) words.textContent = BUSY; // said once
          timer = setTimeout(late, patience);
          return;
        }
        end();
        back();
        words.textContent =
          `The kernel has not answered for ${waited / 1000} seconds: it is busy, or it has stopped. ` +
          `${kept} If the kernel has stopped, run the cell again.`;
      }
      timer = setTimeout(late, patience);
    },
    end,
    close: () => clearTimeout(timer),
  };
}
