const SVG = "http://www.w3.org/2000/svg", WIDE = 100, TALL = 40, INSET = 2; // units of the drawing

// One number over the steps of every method, one of them in front; the current step is framed.
export function createCurve(host, { label, onPick, onHover }) {
  const svg = host.appendChild(document.createElementNS(SVG, "svg"));
  svg.setAttribute("viewBox", `0 0 ${WIDE} ${TALL}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  const others = shape(svg, "path", "kv-others"), own = shape(svg, "path", "kv-own"), frame = shape(svg, "rect", "kv-now");
  frame.setAttribute("y", 0.5);
  frame.setAttribute("height", TALL - 1);
  let steps = 1;

  const x = (step) => ((step + 0.5) * WIDE) / steps;
  const at = (event) => {
    const box = svg.getBoundingClientRect();
    return Math.max(0, Math.min(steps - 1, Math.floor(((event.clientX - box.left) / box.width) * steps)));
  };
  svg.addEventListener("click", (event) => onPick(at(event)));
  svg.addEventListener("pointermove", (event) => onHover(at(event), event));
  svg.addEventListener("pointerleave", (event) => onHover(null, event));

  return {
    // `all`: values by step of every method; `front` is the index of this one; `top` is drawn at the upper edge.
    paint(all, front, top) {
      steps = all[front].length;
      const path = (values) => {
        const points = Array.from(values, (value, step) => `${x(step).toFixed(2)} ${(TALL - INSET - (value / top) * (TALL - 2 * INSET)).toFixed(2)}`);
        if (points.length === 1) points.push(`${WIDE} ${points[0].split(" ")[1]}`); // a point has no length
        return `M${points.join("L")}`;
      };
      others.setAttribute("d", all.filter((_, index) => index !== front).map(path).join(""));
      own.setAttribute("d", path(all[front]));
      frame.setAttribute("width", WIDE / steps);
    },
    frame(step) {
      frame.setAttribute("x", (step * WIDE) / steps);
    },
  };
}

function shape(svg, name, className) {
  const made = svg.appendChild(document.createElementNS(SVG, name));
  made.setAttribute("class", className);
  made.setAttribute("vector-effect", "non-scaling-stroke");
  return made;
}
