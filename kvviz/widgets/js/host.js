/**
 * The values of a widget in the browser: the part of anywidget's model that is used here. page.js has another model.
 *
 * @typedef {object} Model
 * @property {(name: string) => any} get
 * @property {(name: string, value: unknown) => void} set
 * @property {() => void} save_changes
 * @property {(message: { kind: string, [more: string]: unknown }) => void} send
 * @property {(event: string, react: () => void) => void} on
 * @property {(event: string, react: () => void) => void} off
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
    /** The style sheet, for screenshots. */
    get css() {
      return /** @type {string} */ (model.get("_css"));
    },
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
