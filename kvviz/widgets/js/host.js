/**
 * A widget's values on the side of the browser: anywidget's model, as far as it is used here. page.js has another.
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
 * Draws into a root, with the values that the host has and news of their changes. Returns what takes it away again.
 *
 * @typedef {(root: HTMLElement, host: Host) => () => void} View
 */

/**
 * What a view talks to, whether a kernel or a page without one stands behind it.
 *
 * @param {Model} model
 */
export function createHost(model) {
  /** @type {[string, () => void][]} */
  const heard = [];
  return {
    /** The style sheet, for pictures. */
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
      heard.push([`change:${name}`, react]);
      model.on(`change:${name}`, react);
    },
    close() {
      for (const [event, react] of heard) model.off(event, react);
    },
  };
}

/**
 * Bytes as they came in a message, somewhere within a larger buffer.
 *
 * @param {ArrayBufferView<ArrayBuffer>} view
 */
export function bytesOf(view) {
  return new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
}
