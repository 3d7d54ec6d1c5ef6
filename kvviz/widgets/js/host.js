/**
 * The widget as a page, or why there is none.
 *
 * @typedef {{ page?: BlobPart, refusal?: string }} PageAnswer
 */

/**
 * The values of a widget in the browser: the part of anywidget's model that is used here. page.js has another model.
 *
 * @typedef {object} Model
 * @property {(name: string) => any} get
 * @property {(name: string, value: unknown) => void} set
 * @property {() => void} save_changes
 * @property {(message: { kind: string, [more: string]: unknown }) => void} send
 * @property {(event: string, react: (...heard: any[]) => void) => void} on
 * @property {(event: string, react: (...heard: any[]) => void) => void} off
 * @property {() => string} [page] the page as a text, if it has no kernel
 * @property {{ kernel?: { status: string } | null }} [widget_manager] JupyterLab's tells what its kernel does
 */

/** @typedef {ReturnType<typeof createHost>} Host */

/**
 * Draws into a root the values of the host, and follows their changes. Returns a function that cleans up.
 *
 * @typedef {(root: HTMLElement, host: Host) => () => void} View
 */

/**
 * What a view uses of its model, whether that is a kernel's or a page's without a kernel.
 *
 * @param {Model} model
 */
export function createHost(model) {
  /** @type {[string, () => void][]} */
  const listeners = [];
  return {
    /** @param {string} name */
    get: (name) => model.get(name),
    /** @param {string} name */
    bytes: (name) => bytesOf(model.get(name)),
    /** @param {Record<string, unknown>} changes */
    tell(changes) {
      for (const [name, value] of Object.entries(changes)) model.set(name, value);
      model.save_changes();
    },
    /** @param {{ kind: string, [more: string]: unknown }} message */
    send: (message) => model.send(message),
    /**
     * @param {string} name
     * @param {() => void} react
     */
    on(name, react) {
      listeners.push([`change:${name}`, react]);
      model.on(`change:${name}`, react);
    },
    /**
     * Asks for the widget as a page: the kernel makes it, and a page without a kernel is one itself.
     *
     * @param {(answer: PageAnswer) => void} react
     */
    askForPage(react) {
      if (model.page) return react({ page: model.page() });
      /** @type {(message: { kind?: string, refusal?: string }, buffers: ArrayBufferView<ArrayBuffer>[]) => void} */
      const hear = ({ kind, refusal }, [page]) => {
        if (kind !== "page") return;
        model.off("msg:custom", hear);
        react({ page, refusal });
      };
      model.on("msg:custom", hear);
      model.send({ kind: "page" });
    },
    /** Whether the kernel is known to be at work: with what was asked, or with something before it. */
    isBusy: () => model.widget_manager?.kernel?.status === "busy",
    close() {
      for (const [event, react] of listeners) model.off(event, react);
    },
  };
}

/**
 * The bytes of a view into a larger buffer, as messages bring them.
 *
 * @param {ArrayBufferView<ArrayBuffer>} view
 */
export function bytesOf(view) {
  return new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
}
