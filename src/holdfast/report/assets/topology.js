/* The topology as a picture, and its tasks through time: frames are changes, added up from the first one on. */

const SIGNS = { exact: "", "catching up": "…", tentative: "~", down: "×", source: "" };
const MEANING = {
  exact: "exact", tentative: "tentative: answers from incomplete input", "catching up": "placed again, catching up",
  down: "down", source: "source: read wherever Spark has room",
};
const TALLEST = 24;

function standing(frames, upto) {
  const now = { status: {}, homes: {}, replicas: {}, nodes: {}, epoch: null, fidelity: null, t: 0, what: "" };
  for (let i = 0; i <= upto && i < frames.length; i += 1) {
    const frame = frames[i];
    for (const part of ["status", "homes", "replicas", "nodes"]) {
      for (const [key, value] of Object.entries(frame[part] || {})) {
        if (value === null) delete now[part][key];
        else now[part][key] = value;
      }
    }
    now.t = frame.t;
    now.what = frame.what;
    if (frame.epoch !== undefined) now.epoch = frame.epoch;
    if (frame.fidelity !== undefined) now.fidelity = frame.fidelity;
  }
  return now;
}

function taskMark(status, replica) {
  const group = make("g", { class: `task ${status.split(" ")[0]}` });
  if (replica) group.append(make("circle", { class: "ring", r: 14 }));
  group.append(make("circle", { class: "body", r: 9 }));
  const sign = make("text", { class: "sign" });
  sign.append(SIGNS[status] || "");
  group.append(sign);
  return group;
}

function layout(topology, room) {
  const columns = [];
  for (const operator of topology.operators) (columns[operator.column] = columns[operator.column] || []).push(operator);
  const places = {};
  let height = 0;
  // As wide as there is room for; on a narrow screen the picture scrolls.
  const edge = room < 500 ? 44 : 70;
  const wide = Math.max(84, Math.min(280, (room - edge - 100) / Math.max(1, columns.length - 1)));
  columns.forEach((operators, c) => {
    let y = 30;
    for (const operator of operators) {
      const drawn = Math.min(operator.tasks, TALLEST);
      places[operator.name] = { x: edge + c * wide, y, drawn, operator };
      y += 26 + drawn * 34 + 18;
    }
    height = Math.max(height, y);
  });
  return { places, wide, width: edge + (columns.length - 1) * wide + (wide < 180 ? 64 : 100), height };
}

function receivers(stream, from, to) {
  const pairs = [];
  const n1 = from.tasks, n2 = to.tasks;
  for (let i = 0; i < n1; i += 1) {
    if (stream.partitioning === "one-to-one") pairs.push([i, i]);
    else if (stream.partitioning === "merge") pairs.push([i, Math.floor((i * n2) / n1)]);
    else if (stream.partitioning === "split") {
      for (let d = 0; d < n2; d += 1) if (Math.floor((d * n1) / n2) === i) pairs.push([i, d]);
    } else for (let d = 0; d < n2; d += 1) pairs.push([i, d]);
  }
  return pairs;
}

function drawTopology(place, topology, now) {
  const { places, wide, width, height } = layout(topology, place.clientWidth || 1000);
  const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img" });
  const at = (name, number) => ({ x: places[name].x, y: places[name].y + 34 + Math.min(number, places[name].drawn - 1) * 34 });
  // Tasks of another shape than the one at this moment are not there; before anything is known, all are drawn.
  const known = Object.keys(now.status).length > 0;
  const there = (operator, number) => operator.source || !known || `${operator.name}/${number}` in now.status;
  const edges = make("g", { "aria-hidden": "true" });
  for (const stream of topology.streams) {
    const from = places[stream.from].operator, to = places[stream.to].operator;
    const seen = new Set();
    for (const [i, d] of receivers(stream, from, to)) {
      if (i >= TALLEST || d >= TALLEST || !there(from, i) || !there(to, d)) continue;
      const a = at(stream.from, i), b = at(stream.to, d), key = `${a.y}-${b.y}`;
      if (seen.has(key)) continue;
      seen.add(key);
      const middle = (a.x + b.x) / 2;
      edges.append(make("path", { class: "edge", d: `M${a.x + 10} ${a.y}C${middle} ${a.y} ${middle} ${b.y} ${b.x - 12} ${b.y}` }));
    }
  }
  svg.append(edges);
  const counts = {};
  for (const { operator, x, y, drawn } of Object.values(places)) {
    const name = make("text", { class: "halo", x, y: y + 2, "text-anchor": "middle", "font-weight": "600" });
    name.append(operator.name + (operator.priority ? " ★" : ""));
    svg.append(name);
    for (let number = 0; number < operator.tasks; number += 1) {
      const task = `${operator.name}/${number}`;
      if (!there(operator, number)) continue;
      const status = operator.source ? "source" : now.status[task] || "down";
      counts[status] = (counts[status] || 0) + 1;
      if (number >= drawn) continue;
      const mark = taskMark(status, task in now.replicas);
      const spot = at(operator.name, number);
      mark.setAttribute("transform", `translate(${spot.x} ${spot.y})`);
      const on = now.homes[task] ? ` on ${now.homes[task]}` : "";
      const replica = now.replicas[task] ? `, replica on ${now.replicas[task]}` : "";
      mark.append(make("title", {}, `${task}: ${status}${on}${replica}`));
      svg.append(mark);
      const label = make("text", { class: "soft halo", x: spot.x + 19, y: spot.y + 4 });
      const home = now.homes[task] || "";
      label.append(operator.source ? `${number}` : `${number} ${wide >= 180 ? home : home.replace("node-", "n")}`);
      svg.append(label);
    }
    if (operator.tasks > drawn) {
      const more = make("text", { class: "soft", x: x + 19, y: y + 34 + drawn * 34 - 12 });
      more.append(`and ${operator.tasks - drawn} more`);
      svg.append(more);
    }
  }
  delete counts.source;
  const said = Object.entries(counts).map(([status, count]) => `${count} ${status}`).join(", ");
  svg.setAttribute("aria-label", `Topology: ${said}`);
  place.replaceChildren(svg);
  return said;
}

function drawLegend(place) {
  const marks = ["exact", "tentative", "catching up", "down", "source"].map((status) => {
    const svg = make("svg", { width: 32, height: 32, viewBox: "-16 -16 32 32", "aria-hidden": "true" }, taskMark(status, false));
    return tag("li", {}, svg, MEANING[status]);
  });
  const ring = make("svg", { width: 32, height: 32, viewBox: "-16 -16 32 32", "aria-hidden": "true" }, taskMark("exact", true));
  place.replaceChildren(...marks, tag("li", {}, ring, "has a replica on another node"), tag("li", {}, "★ a query"),
    tag("li", {}, "beside a task: its number and its node"));
}
