import { element } from "./dom.js";
import { explain } from "./explain.js";
import { createHeadMap } from "./head_map.js";
import { SCOPES } from "./scope.js";
import { MEANING } from "./words.js";

/** @import { Head } from "./head_map.js" */
/** @import { Tip } from "./tip.js" */
/** @import { Scope } from "./scope.js" */
/** @typedef {{ label: string, about: string, measure: string, scope: Scope, values: Record<string, number[]> }} HeadNumbers */
/** @typedef {{ head_maps: HeadNumbers[], layers: number[], heads: number[], head_name: string }} HeadPage */

/**
 * The map of layers × heads of a widget, and a picker of the number that it shows.
 *
 * @param {HTMLElement} root
 * @param {HeadPage} page
 * @param {{ tip: Tip, pick: (layer: number, head: number) => void }} options
 */
export function createHeadPanel(root, page, { tip, pick }) {
  if (page.head_maps.length === 0 || page.layers.length * page.heads.length < 2) return { paint() {} }; // nothing to pick
  const section = root.appendChild(element("section", "kv-headpanel"));
  const title = section.appendChild(element("h3", "", `layers × ${page.head_name}s: `));
  const select = title.appendChild(element("select", "kv-headmeasure"));
  select.setAttribute("aria-label", "the number that the map of heads shows");
  for (const { label } of page.head_maps) select.append(new Option(label));
  const note = title.appendChild(element("span", "kv-headnote"));
  let shown = page.head_maps[0];

  /**
   * @param {HeadNumbers} numbers
   * @param {Head} place
   */
  const valueOf = (numbers, { layer, head }) => numbers.values[layer]?.[head] ?? 0;
  const map = createHeadMap(section, {
    layers: page.layers,
    heads: page.heads,
    headName: page.head_name,
    label: "map of the heads, which picks one",
    about: (place) => {
      const others = page.head_maps.filter((numbers) => numbers !== shown);
      return [shown, ...others].map((numbers) => [
        `${numbers.label} (${SCOPES[numbers.scope]})`,
        valueOf(numbers, place).toFixed(3),
      ]);
    },
    pick: ({ layer, head }) => pick(layer, head),
    tip,
  });

  function draw() {
    shown = page.head_maps[select.selectedIndex] ?? shown;
    const all = page.layers.flatMap((layer) => page.heads.map((head) => valueOf(shown, { layer, head })));
    const most = Math.max(1e-9, ...all);
    map.draw((place) => valueOf(shown, place), most);
    note.textContent = `largest ${most.toFixed(3)}; ${shown.about}`;
    explain(title, [MEANING.heads, MEANING[shown.measure]].filter(Boolean).join(". "));
    for (const option of select.options) option.toggleAttribute("selected", option.selected);
  }
  let place = { layer: -1, head: -1 };
  select.addEventListener("change", () => {
    draw();
    map.paint(place);
  });
  draw();
  return {
    /**
     * @param {number} layer
     * @param {number} head
     */
    paint(layer, head) {
      place = { layer, head };
      map.paint(place);
    },
  };
}
