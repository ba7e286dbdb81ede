"use strict";
/* Small charts in SVG: lines over seconds, read with the pointer or the arrow keys, and as a table. */

const SVG = "http://www.w3.org/2000/svg";

function make(name, attributes, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function tag(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function nice(most) {
  if (!(most > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= most * 0.999999);
}

function short(value) {
  if (value === null || value === undefined) return "none";
  const size = Math.abs(value);
  if (size >= 1e9) return `${+(value / 1e9).toPrecision(3)} G`;
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)} M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)} k`;
  return String(+value.toPrecision(3));
}

function bytes(value) {
  if (value === null || value === undefined) return "none";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${unit ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

/* chart: {title, unit, x: [...], series: [{name, y: [...], step, dots}], top, format, failures: [...], xname} */
function drawChart(place, chart) {
  const kept = place.querySelector("details");
  const open = Boolean(kept && kept.open);
  place.replaceChildren();
  const format = chart.format || short;
  const figure = tag("figure", { class: "chart" });
  figure.append(tag("figcaption", {}, chart.title));
  if (!chart.x.length) {
    figure.append(tag("p", { class: "note" }, "Nothing yet."));
    place.append(figure);
    return;
  }
  const width = Math.max(300, Math.min(1056, place.clientWidth || document.getElementById("facts").clientWidth)), height = 200;
  const left = 64, right = 12, up = 12, low = 28;
  const first = chart.x[0], last = Math.max(chart.x[chart.x.length - 1], first + 1e-9);
  const all = chart.series.flatMap((one) => one.y.filter((y) => y !== null));
  const top = chart.top || nice(Math.max(0, ...all));
  const px = (x) => left + ((x - first) / (last - first)) * (width - left - right);
  const py = (y) => up + (1 - y / top) * (height - up - low);
  const svg = make("svg", { width: "100%", viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: "0" });
  svg.setAttribute("aria-label", describe(chart, format));
  for (let i = 0; i <= 4; i += 1) {
    const y = (top * i) / 4;
    svg.append(make("line", { class: "grid", x1: left, x2: width - right, y1: py(y), y2: py(y) }));
    const label = make("text", { class: "soft", x: left - 8, y: py(y) + 4, "text-anchor": "end" });
    label.append(format(y));
    svg.append(label);
  }
  const few = width < 480 ? 3 : 6;
  const ticks = chart.xname ? Math.max(...[1, 2, 3, 4, 5, 6].filter((each) => each <= few && (last - first) % each === 0)) : few;
  for (let i = 0; i <= ticks; i += 1) {
    const x = first + ((last - first) * i) / ticks;
    const anchor = i === ticks ? "end" : i ? "middle" : "start";
    const label = make("text", { class: "soft", x: px(x), y: height - 8, "text-anchor": anchor });
    label.append(`${+x.toFixed(last - first < 10 ? 1 : 0)}${chart.xname ? "" : " s"}`);
    svg.append(label);
  }
  for (const at of chart.failures || []) {
    if (at >= first && at <= last) svg.append(make("line", { class: "fail", x1: px(at), x2: px(at), y1: up, y2: height - low }));
  }
  chart.series.forEach((one, number) => {
    const colour = `var(--s${number % 6})`;
    if (!one.dots) {
      let path = "", pen = false;
      chart.x.forEach((x, i) => {
        const y = one.y[i];
        if (y === null || y === undefined) { pen = false; return; }
        if (!pen) path += `M${px(x)} ${py(y)}`;
        else path += one.step ? `H${px(x)}V${py(y)}` : `L${px(x)} ${py(y)}`;
        pen = true;
      });
      const dash = ["", "7 3", "2 3", "9 3 2 3", "4 4", "1 3"][number % 6];
      svg.append(make("path", { class: "line", d: path, stroke: colour, "stroke-dasharray": dash }));
    } else {
      chart.x.forEach((x, i) => {
        if (one.y[i] !== null && one.y[i] !== undefined) svg.append(make("circle", { cx: px(x), cy: py(one.y[i]), r: 4, fill: colour }));
      });
    }
  });
  const cross = make("line", { class: "cross", y1: up, y2: height - low, visibility: "hidden" });
  svg.append(cross);
  const read = tag("p", { class: "read", "aria-live": "polite" });
  let at = -1;
  function show(index) {
    at = Math.max(0, Math.min(chart.x.length - 1, index));
    cross.setAttribute("x1", px(chart.x[at]));
    cross.setAttribute("x2", px(chart.x[at]));
    cross.setAttribute("visibility", "visible");
    const values = chart.series.map((one) => `${one.name} ${one.y[at] === null || one.y[at] === undefined ? "none" : format(one.y[at])}`);
    read.textContent = `${chart.xname ? `${chart.xname} ` : ""}${+chart.x[at].toFixed(2)}${chart.xname ? "" : " s"}: ${values.join(", ")}`;
  }
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = first + (((event.clientX - box.left) * (width / box.width) - left) / (width - left - right)) * (last - first);
    let best = 0;
    chart.x.forEach((each, i) => { if (Math.abs(each - x) < Math.abs(chart.x[best] - x)) best = i; });
    show(best);
  });
  svg.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: chart.x.length - 1 };
    if (event.key in moves) { show(moves[event.key]); event.preventDefault(); }
  });
  const keys = tag("ul", { class: "keys" });
  chart.series.forEach((one, number) => keys.append(tag("li", {}, tag("i", { style: `background: var(--s${number % 6})` }), one.name)));
  if ((chart.failures || []).length) keys.append(tag("li", {}, tag("i", { style: "background: var(--down)" }), "nodes lost"));
  figure.append(keys, svg, read);
  const details = tag("details", {}, tag("summary", {}, "As a table"));
  details.addEventListener("toggle", () => {
    if (details.open && !details.querySelector("table")) {
      const rows = chart.x.map((x, i) => [`${+x.toFixed(2)}`, ...chart.series.map((one) => format(one.y[i]))]);
      details.append(table([chart.xname || "second", ...chart.series.map((one) => one.name)], rows, chart.title));
    }
  });
  details.open = open;
  figure.append(details);
  place.append(figure);
}

function describe(chart, format) {
  const parts = chart.series.map((one) => {
    const values = one.y.filter((y) => y !== null && y !== undefined);
    if (!values.length) return `${one.name}: no values`;
    return `${one.name}: from ${format(Math.min(...values))} to ${format(Math.max(...values))}, last ${format(values[values.length - 1])}`;
  });
  return `${chart.title}. ${parts.join(". ")}. Arrow keys read the values.`;
}

function table(columns, rows, caption, ours) {
  const numeric = columns.map((_, i) => rows.length > 0 && rows.every((row) => /^[-\d.,]* ?(s|%|k|M|G|B|KiB|MiB|GiB)?$/.test(row[i])));
  const head = tag("tr", {}, ...columns.map((name, i) => tag("th", numeric[i] ? { scope: "col", class: "number" } : { scope: "col" }, name)));
  const body = rows.map((row, r) => tag("tr", ours === r ? { class: "ours" } : {}, ...row.map((cell, i) => tag("td", numeric[i] ? { class: "number" } : {}, cell))));
  const made = tag("table", {}, ...(caption ? [tag("caption", {}, caption)] : []), tag("thead", {}, head), tag("tbody", {}, ...body));
  return tag("div", { class: "table", tabindex: "0", role: "group", "aria-label": caption || "table" }, made);
}
