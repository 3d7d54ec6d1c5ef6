import { element, targetOf } from "./dom.js";
import { measuredText, pairsText } from "./prediction_words.js";

/** @import { Asked, Change } from "./prediction.js" */
/** @typedef {{ kind: "order", text: string, names: string[], measured: [string, number][] }} OrderQuestion */

/**
 * A list that is sorted with buttons or by dragging; afterwards the measured order stands beside it, with its numbers.
 *
 * @param {HTMLElement} host
 * @param {OrderQuestion} question
 * @param {Change} changed
 * @returns {Asked}
 */
export function createOrder(host, { text, names, measured }, changed) {
  const columns = host.appendChild(element("div", "kv-orders"));
  const own = columns.appendChild(element("div"));
  own.append(element("p", "kv-columnname", "your order, the lowest first"));
  const list = own.appendChild(element("ol", "kv-order"));
  list.setAttribute("aria-label", `${text} The lowest first`);
  const keep = own.appendChild(element("button", "kv-keep", "Keep this order"));
  keep.type = "button";
  /** @type {string[] | undefined} */
  let said;
  let now = [...names], locked = false;

  const items = new Map(names.map((name) => {
    const row = element("li");
    const grip = row.appendChild(element("span", "kv-grip", "⠿"));
    grip.setAttribute("aria-hidden", "true");
    row.append(element("span", "kv-ordered", name));
    const [up, down] = /** @type {const} */ ([["↑", -1, "up"], ["↓", 1, "down"]]).map(([sign, by, way]) => {
      const button = row.appendChild(element("button", "", sign));
      button.type = "button";
      button.setAttribute("aria-label", `move ${name} ${way}`);
      button.addEventListener("click", () => {
        move(name, now.indexOf(name) + by);
        (button.disabled ? (by < 0 ? down : up) : button).focus(); // it moved with its row
      });
      return button;
    });
    row.addEventListener("pointerdown", (event) => startDrag(event, name, row, grip));
    return [name, { row, up, down }];
  }));
  keep.addEventListener("click", () => {
    answer();
    items.get(now[0])?.down.focus(); // the button is gone
  });

  /**
   * @param {string} name
   * @param {number} to
   */
  function move(name, to) {
    const place = Math.max(0, Math.min(now.length - 1, to));
    now = now.filter((each) => each !== name);
    now.splice(place, 0, name);
    answer(`${name}, place ${place + 1} of ${now.length}`);
  }

  function answer(words = now.join(", ")) {
    said = [...now];
    paint();
    changed(said, words);
  }

  function paint() {
    const rows = now.map((name) => /** @type {NonNullable<ReturnType<typeof items.get>>} */ (items.get(name)));
    const focused = document.activeElement;
    rows.forEach(({ row, up, down }, place) => {
      if (list.children[place] !== row) list.insertBefore(row, list.children[place] ?? null);
      up.disabled = locked || place === 0;
      down.disabled = locked || place === rows.length - 1;
    });
    if (focused instanceof HTMLElement && list.contains(focused)) focused.focus();
    host.toggleAttribute("data-open", said === undefined);
  }

  /**
   * Drags a row by its grip, or with a mouse anywhere but on its buttons: a finger on the name scrolls the page.
   *
   * @param {PointerEvent} event
   * @param {string} name
   * @param {HTMLElement} row
   * @param {HTMLElement} grip
   */
  function startDrag(event, name, row, grip) {
    const target = targetOf(event);
    if (locked || event.button || target.tagName === "BUTTON") return;
    if (event.pointerType !== "mouse" && target !== grip) return;
    event.preventDefault();
    row.dataset.dragged = "";
    const follow = (/** @type {PointerEvent} */ moved) => {
      const others = [...list.children].filter((each) => each !== row);
      const place = others.filter((each) => middleOf(each) < moved.clientY).length;
      if (place !== now.indexOf(name)) move(name, place);
    };
    const end = () => {
      delete row.dataset.dragged;
      document.removeEventListener("pointermove", follow);
    };
    document.addEventListener("pointermove", follow);
    for (const name of ["pointerup", "pointercancel"]) document.addEventListener(name, end, { once: true });
  }

  paint();
  return {
    set(value) {
      said = value;
      now = [...(value ?? names)];
      paint();
    },
    lock(isLocked) {
      locked = isLocked;
      paint();
    },
    reveal() {
      const column = columns.appendChild(element("div", "kv-right"));
      column.append(element("p", "kv-columnname", "◆ measured, the lowest first"));
      const right = column.appendChild(element("ol", "kv-order"));
      for (const [name, number] of measured) {
        const row = right.appendChild(element("li"));
        row.append(element("span", "kv-ordered", name), element("span", "kv-measured", measuredText(number)));
      }
      return pairsText(now, measured);
    },
    hide: () => columns.querySelector(".kv-right")?.remove(),
  };
}

/** @param {Element} node */
function middleOf(node) {
  const { top, bottom } = node.getBoundingClientRect();
  return (top + bottom) / 2;
}
