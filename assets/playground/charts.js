"use strict";
// Drawings: curves through training with the present step marked, and cosines of a few rows as a shaded table.

(() => {
  const WIDTH = 340;
  const HEIGHT = 174;
  const PLOT = { left: 34, right: 330, top: 10, bottom: 138 };
  const SHAPES = {
    seen: { dash: "", dot: (x, y, r) => svg("circle", { cx: x, cy: y, r }) },
    unseen: {
      dash: "2 4",
      dot: (x, y, r) =>
        polygon(x, y, r, [
          [0, -1.3],
          [1.2, 0.9],
          [-1.2, 0.9],
        ]),
    },
    rows: {
      dash: "7 4",
      dot: (x, y, r) =>
        polygon(x, y, r, [
          [-1, -1],
          [1, -1],
          [1, 1],
          [-1, 1],
        ]),
    },
  };

  function svg(tag, attributes, ...children) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  function polygon(x, y, r, corners) {
    return svg("polygon", { points: corners.map(([dx, dy]) => `${x + r * dx},${y + r * dy}`).join(" ") });
  }

  /**
   * Curves of values from 0 to 1 over training steps, and under them what each is at the present step.
   * series: [{kind: "seen"|"unseen"|"rows", label, values, text: value -> what the legend says}]
   */
  function curves(steps, series, now, description) {
    const x = (step) => PLOT.left + ((PLOT.right - PLOT.left) * step) / steps.at(-1);
    const y = (value) => PLOT.bottom - (PLOT.bottom - PLOT.top) * Math.min(1, Math.max(0, value));
    const drawing = svg("svg", {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      class: "pg-chart",
      role: "img",
      "aria-label": description,
    });
    for (const value of [0, 0.5, 1]) {
      drawing.append(
        svg("line", { class: "grid", x1: PLOT.left, x2: PLOT.right, y1: y(value), y2: y(value) }),
        svg("text", { x: PLOT.left - 6, y: y(value) + 4, "text-anchor": "end" }, String(value)),
      );
    }
    for (const [i, anchor] of [
      [0, "start"],
      [Math.round(steps.at(-1) / 2), "middle"],
      [steps.at(-1), "end"],
    ]) {
      drawing.append(svg("text", { x: x(i), y: PLOT.bottom + 16, "text-anchor": anchor }, String(i)));
    }
    drawing.append(
      svg("text", { x: (PLOT.left + PLOT.right) / 2, y: HEIGHT - 5, "text-anchor": "middle" }, "training step"),
      svg("line", { class: "now", x1: x(steps[now]), x2: x(steps[now]), y1: PLOT.top - 6, y2: PLOT.bottom }),
    );
    for (const { kind, values } of series) {
      const points = values.map((value, i) => [x(steps[i]), y(value)]);
      const group = svg("g", { class: `pg-series-${kind}` });
      group.append(
        svg("polyline", { class: "pg-curve", points: points.join(" "), "stroke-dasharray": SHAPES[kind].dash }),
      );
      points.forEach(([px, py], i) => {
        const dot = SHAPES[kind].dot(px, py, i === now ? 5 : 2.5);
        dot.setAttribute("class", "pg-dot");
        group.append(dot);
      });
      drawing.append(group);
    }
    return [drawing, legend(series, now)];
  }

  function legend(series, now) {
    const list = document.createElement("ul");
    list.className = "pg-legend";
    for (const { kind, label, values, text } of series) {
      const dot = SHAPES[kind].dot(14, 6, 3);
      dot.setAttribute("class", "pg-dot");
      const sample = svg(
        "svg",
        { viewBox: "0 0 28 12", class: `pg-series-${kind}`, "aria-hidden": "true" },
        svg("line", { class: "pg-curve", x1: 0, x2: 28, y1: 6, y2: 6, "stroke-dasharray": SHAPES[kind].dash }),
        dot,
      );
      const [name, value] = [document.createElement("span"), document.createElement("b")];
      name.textContent = `${label} `;
      value.textContent = text(values[now]);
      const item = document.createElement("li");
      item.append(sample, name, value);
      list.append(item);
    }
    return list;
  }

  /** Cosines of each pair of rows: a triangle, as none differs from its mirror. */
  function cosines(names, rows, caption) {
    const table = document.createElement("table");
    table.setAttribute("aria-label", caption);
    const head = table.createTHead().insertRow();
    head.insertCell().className = "pg-none";
    head.append(...names.slice(0, -1).map((_, i) => headerCell("col", String(i + 1))));
    const body = table.createTBody();
    names.forEach((name, i) => {
      const row = body.insertRow();
      row.append(headerCell("row", `${i + 1} ${name}`));
      for (let j = 0; j < names.length - 1; j++) {
        const cell = row.insertCell();
        if (j >= i) {
          cell.className = "pg-none";
          continue;
        }
        const cosine = unseen.cosine(rows[i], rows[j]);
        cell.textContent = cosine.toFixed(2).replace("-0.00", "0.00").replace("-", "−");
        cell.style.setProperty("--weight", Math.max(0, cosine).toFixed(3));
      }
    });
    const frame = document.createElement("div");
    frame.className = "pg-cosines";
    frame.append(table);
    return frame;
  }

  function headerCell(scope, text) {
    const cell = document.createElement("th");
    cell.scope = scope;
    cell.textContent = text;
    return cell;
  }

  unseen.charts = { curves, cosines };
})();
