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

/* Round values from 0 up to at least `most`, at most `count` + 1 of them; of bytes, round in powers of 1024. */
function ticks(most, count, binary) {
  if (!(most > 0)) return [0, 1];
  const unit = binary ? 1024 ** Math.floor(Math.log(most) / Math.log(1024)) : 1;
  const wanted = most / unit / count;
  const power = 10 ** Math.floor(Math.log10(wanted));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= wanted * 0.999999) * unit;
  const steps = Math.ceil(most / step - 1e-9);
  return [...Array(steps + 1).keys()].map((each) => each * step);
}

/* Round seconds within a run of so many. */
function timeTicks(seconds, count) {
  const wanted = seconds / count;
  const step = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200].find((each) => each >= wanted) || wanted;
  const found = [];
  for (let at = 0; at <= seconds * 1.000001; at += step) found.push(at);
  return found;
}

function clock(t) {
  if (t < 600) return `${+t.toFixed(1)} s`;
  return t < 36000 ? `${+(t / 60).toFixed(1)} min` : `${+(t / 3600).toFixed(1)} h`;
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
  return `${unit ? +value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

/* chart: {title, x: [...], series: [{name, y: [...], step, dots}], top, format, failures: [...], behind: [[from, to]], until, xname}.
   Over time all charts of a page have the same axis, from 0 to `until`, so that they can be read below one another. */
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
  const first = chart.xname ? chart.x[0] : 0, last = Math.max(chart.xname ? 0 : chart.until, chart.x[chart.x.length - 1], first + 1e-9);
  const all = chart.series.flatMap((one) => one.y.filter((y) => y !== null && y !== undefined));
  const levels = ticks(chart.top || all.reduce((most, y) => Math.max(most, y), 0), 4, format === bytes);
  const top = levels[levels.length - 1];
  const px = (x) => left + ((x - first) / (last - first)) * (width - left - right);
  const py = (y) => up + (1 - y / top) * (height - up - low);
  const svg = make("svg", { width: "100%", viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: "0" });
  svg.setAttribute("aria-label", describe(chart, format));
  for (const [from, to] of chart.behind || []) svg.append(make("rect", { class: "behind", x: px(from), width: Math.max(1, px(to) - px(from)), y: up, height: height - up - low }));
  for (const y of levels) {
    svg.append(make("line", { class: "grid", x1: left, x2: width - right, y1: py(y), y2: py(y) }));
    const label = make("text", { class: "soft", x: left - 8, y: py(y) + 4, "text-anchor": "end" });
    label.append(format(y));
    svg.append(label);
  }
  const few = width < 480 ? 3 : 8;
  const steps = chart.xname ? chart.x.filter((x) => Math.round(x - first) % Math.ceil((last - first) / few) === 0) : timeTicks(last, few);
  for (const x of steps) {
    const label = make("text", { class: "soft", x: px(x), y: height - 8, "text-anchor": px(x) > width - 40 ? "end" : "middle" });
    label.append(chart.xname ? String(x) : clock(x));
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
  if ((chart.behind || []).length) keys.append(tag("li", {}, tag("i", { class: "band" }), "until exact again"));
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
  const numeric = columns.map((_, i) => rows.length > 0 && rows.every((row) => /^[-\d.,]* ?(s|min|h|%|k|M|G|B|KiB|MiB|GiB)?$/.test(row[i])));
  const head = tag("tr", {}, ...columns.map((name, i) => tag("th", numeric[i] ? { scope: "col", class: "number" } : { scope: "col" }, name)));
  const body = rows.map((row, r) => tag("tr", ours === r ? { class: "ours" } : {}, ...row.map((cell, i) => tag("td", numeric[i] ? { class: "number" } : String(cell).length > 24 ? { class: "words" } : {}, cell))));
  const named = columns.some((name) => name);
  const made = tag("table", { "aria-label": caption }, ...(named ? [tag("thead", {}, head)] : []), tag("tbody", {}, ...body));
  return tag("div", {}, tag("p", { class: "caption", "aria-hidden": "true" }, caption), tag("div", { class: "table", tabindex: "0", role: "group", "aria-label": caption }, made));
}
