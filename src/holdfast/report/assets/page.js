/* The page: takes the data that stands in it, or, live, asks for it every second. */

const byId = (id) => document.getElementById(id);
const COLOURS = { failures: "--down", nodes: "--node", replicas: "--catching", plans: "--s1", scaling: "--s4", replays: "--s2", checkpoints: "--soft", job: "--ink" };
const hidden = new Set();
let frames = [];
let topology = null;
let following = true;
let playing = null;

function plural(count, what) { return `${count.toLocaleString("en")} ${what}${count === 1 ? "" : "s"}`; }

function drawFacts(data) {
  const last = data.epochs[data.epochs.length - 1];
  const outputs = data.outputs[data.outputs.length - 1] || { final: 0, tentative: 0 };
  const rows = data.summary.rows ?? data.epochs.reduce((sum, each) => sum + each.rows, 0);
  const exact = data.recoveries.map((each) => each.exact_after_s).filter((each) => each !== null);
  const answered = data.recoveries.map((each) => each.answered_after_s).filter((each) => each !== null);
  const facts = [
    [data.summary.epochs ?? (last ? last.epoch + 1 : 0), "epochs"],
    [short(rows), "rows in"],
    [outputs.final.toLocaleString("en"), "final outputs"],
    [outputs.tentative.toLocaleString("en"), "tentative outputs"],
    [data.recoveries.length, data.recoveries.length === 1 ? "failure" : "failures"],
    [last ? Math.min(...data.epochs.map((each) => each.fidelity)).toFixed(3) : "none", "least fidelity"],
  ];
  const silent = data.recoveries.filter((each) => each.answered_after_s === null && each.silent_s !== null).map((each) => each.silent_s);
  if (silent.length) facts.push([`${Math.max(...silent).toFixed(2)} s`, "silent after a loss, without an answer since"]);
  else if (answered.length) facts.push([`${Math.max(...answered).toFixed(2)} s`, "from a loss to the next answer, at most"]);
  if (exact.length && exact.length === data.recoveries.length) facts.push([`${Math.max(...exact).toFixed(2)} s`, "from a loss to exact again, at most"]);
  byId("facts").replaceChildren(...facts.map(([value, name]) => tag("div", { class: "fact" }, tag("b", {}, String(value)), tag("span", {}, name))));
  const place = data.master ? `${plural(data.nodes, "node")} on ${data.master}` : "";
  const when = new Date(data.began * 1000).toISOString().slice(0, 16).replace("T", " ");
  byId("lead").textContent = `${when} UTC, ${data.seconds.toFixed(1)} s${place ? `, ${place}` : ""}${data.sittings > 1 ? `, in ${data.sittings} sittings` : ""}${data.error ? `. Failed: ${data.error}` : ""}`;
  byId("standing").textContent = data.standing.text;
  byId("standing").className = `standing ${data.standing.level}`;
  byId("short").replaceChildren(...data.short.map((each) => tag("p", {}, each)));
  const verdict = byId("verdict");
  verdict.hidden = !("identical" in data.verdict);
  if (!verdict.hidden) {
    verdict.textContent = `${data.verdict.text}: ${data.verdict.identical ? "yes" : "no"}`;
    verdict.className = `standing ${data.verdict.identical ? "good" : "bad"}`;
  }
}

const WORDS = { started: "the job starts", "nodes joined": "nodes joined", "nodes lost": "nodes are lost", missing: "a task's state is missing",
  "recovery plan": "tasks get their places", replicas: "replicas are made", "replicas planned": "replicas are planned", scaled: "an operator is scaled" };

/* How a moment reads: `61.6 s: nodes are lost. 4 exact, 4 down.` */
function moment(now, said) {
  const told = now.fidelity > 0 ? `is answered with fidelity ${now.fidelity.toFixed(3)}` : "has no answer";
  const what = now.what === "epoch" ? `epoch ${now.epoch} ${told}` : WORDS[now.what] || now.what;
  return `${clock(now.t)}: ${what}. Tasks: ${said}.`;
}

function drawMoment() {
  const number = Number(byId("moment").value);
  const now = standing(frames, number);
  const said = drawTopology(byId("picture"), topology, now);
  const text = moment(now, said);
  byId("now").textContent = text;
  byId("moment").setAttribute("aria-valuetext", text);
  pointLanes(now.t);
  byId("nodes").replaceChildren(...Object.keys(now.nodes).sort().map((name) => {
    const tasks = Object.entries(now.homes).filter(([, node]) => node === name).map(([task]) => task);
    return tag("span", now.nodes[name] ? {} : { class: "gone" }, `${name}: ${now.nodes[name] ? tasks.join(", ") || "idle" : "lost"}`);
  }));
}

function play(on) {
  const slider = byId("moment");
  clearTimeout(playing);
  playing = null;
  if (on && Number(slider.value) >= Number(slider.max)) slider.value = 0;
  byId("play").textContent = on ? "Pause" : "Play";
  if (!on) return;
  following = false;
  const step = () => {
    const at = Number(slider.value);
    if (at >= Number(slider.max)) { play(false); return; }
    slider.value = at + 1;
    drawMoment();
    const gap = frames[at + 2] ? frames[at + 2].t - frames[at + 1].t : 0;
    playing = setTimeout(step, Math.max(40, Math.min(1500, (gap * 1000) / Number(byId("speed").value))));
  };
  playing = setTimeout(step, 200);
}

/* A finished run is opened at the moment of the least fidelity: there is something to see. */
function worst() {
  let at = frames.length - 1, least = 1;
  frames.forEach((frame, number) => { if (frame.fidelity !== undefined && frame.fidelity < least) { least = frame.fidelity; at = number; } });
  return at;
}

function drawPlayer(data) {
  topology = data.topology;
  frames = data.frames;
  byId("topology").hidden = topology === null || !frames.length;
  if (byId("topology").hidden) return;
  byId("moment").max = frames.length - 1;
  if (data.running && following) byId("moment").value = frames.length - 1;
  else if (!data.running && byId("moment").dataset.set === undefined) byId("moment").value = worst();
  byId("moment").dataset.set = "yes";
  drawLegend(byId("legend"));
  drawMoment();
}

/* From each loss until everything was exact again, or until now. */
function behind(data) {
  return data.recoveries.map((each) => [each.t, each.exact_after_s === null ? data.seconds : Math.min(data.seconds, each.t + each.exact_after_s)]);
}

function showAt(t) {
  let best = 0;
  frames.forEach((frame, i) => { if (frame.t <= t + 0.001) best = i; });
  play(false);
  following = false;
  byId("moment").value = best;
  if (topology) drawMoment();
}

let lanesX = null;
function pointLanes(t) {
  const line = byId("lanes").querySelector(".now");
  if (line === null || lanesX === null) return;
  line.setAttribute("x1", lanesX(t));
  line.setAttribute("x2", lanesX(t));
}

function drawLanes(data) {
  const lanes = data.lanes.filter((lane) => data.timeline.some((each) => each.lane === lane));
  const width = Math.max(300, Math.min(1056, byId("lanes").clientWidth || 1056)), left = 92, right = 14, row = 26, high = 34;
  const height = high + lanes.length * row + 34;
  const answers = data.epochs.filter((each) => each.fidelity > 0);
  const px = (t) => left + (t / Math.max(data.seconds, 0.001)) * (width - left - right);
  lanesX = px;
  const svg = make("svg", { width: "100%", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Timeline of ${plural(answers.length, "answer")} and ${plural(data.timeline.length, "event")}; the list below has the events in words` });
  const named = (text, y) => { const label = make("text", { class: "soft", x: 8, y }); label.append(text); return label; };
  for (const [from, to] of behind(data)) svg.append(make("rect", { class: "behind", x: px(from), width: Math.max(1, px(to) - px(from)), y: 4, height: height - 32 }));
  svg.append(named("answers", high - 8), make("line", { class: "grid", x1: left, x2: width - right, y1: high, y2: high }));
  // One bar an epoch, at the time of its answer and as high as its fidelity: gaps are times without an answer.
  const thick = Math.max(1.5, Math.min(6, ((width - left - right) / Math.max(1, data.epochs.length)) * 0.6));
  for (const each of answers) {
    const tall = Math.max(2, each.fidelity * (high - 8));
    const bar = make("rect", { x: px(each.t) - thick / 2, width: thick, y: high - tall, height: tall, fill: each.fidelity < 1 ? "var(--tentative)" : "var(--exact)" });
    bar.append(make("title", {}, `${clock(each.t)}: epoch ${each.epoch}, fidelity ${each.fidelity.toFixed(3)}`));
    svg.append(bar);
  }
  lanes.forEach((lane, i) => {
    const y = high + 20 + i * row;
    svg.append(named(lane, y + 4), make("line", { class: "grid", x1: left, x2: width - right, y1: y, y2: y }));
    for (const event of data.timeline.filter((each) => each.lane === lane)) {
      const colour = `var(${COLOURS[lane]})`;
      const mark = event.until !== undefined
        ? make("rect", { x: px(event.t), y: y - 6, width: Math.max(4, px(event.until) - px(event.t)), height: 12, rx: 3, fill: colour })
        : make("circle", { cx: px(event.t), cy: y, r: 5, fill: colour });
      mark.append(make("title", {}, `${clock(event.t)}: ${event.title}. ${event.detail}`));
      svg.append(mark);
    }
  });
  for (const t of timeTicks(data.seconds, width < 480 ? 3 : 8)) {
    const label = make("text", { class: "soft", x: px(t), y: height - 8, "text-anchor": px(t) > width - 40 ? "end" : "middle" });
    label.append(clock(t));
    svg.append(label);
  }
  svg.append(make("line", { class: "now", x1: px(0), x2: px(0), y1: 2, y2: height - 26, visibility: topology ? "visible" : "hidden" }));
  svg.addEventListener("click", (event) => {
    const box = svg.getBoundingClientRect();
    showAt((((event.clientX - box.left) * (width / box.width) - left) / (width - left - right)) * data.seconds);
  });
  byId("lanes").replaceChildren(svg);
  const keys = [["--exact", "an answer, exact"], ["--tentative", "an answer, tentative: as high as its fidelity"]].map(([colour, text]) => tag("li", {}, tag("i", { style: `background: var(${colour}); width: .4rem; height: .9rem` }), text));
  if (data.recoveries.length) keys.push(tag("li", {}, tag("i", { class: "band" }), "from the loss of nodes until exact again"));
  keys.push(tag("li", {}, tag("i", { style: "background: var(--focus); width: .15rem; height: .9rem" }), "the moment shown above"));
  byId("lane-keys").replaceChildren(...keys);
  if (topology && frames.length) pointLanes(standing(frames, Number(byId("moment").value)).t);
}

function drawEvents(data) {
  const lanes = data.lanes.filter((lane) => data.timeline.some((each) => each.lane === lane));
  const filter = byId("filter");
  for (const lane of lanes) {
    if (filter.querySelector(`[data-lane="${lane}"]`)) continue;
    const box = tag("input", { type: "checkbox", "data-lane": lane });
    box.checked = true;
    box.addEventListener("change", () => {
      if (box.checked) hidden.delete(lane); else hidden.add(lane);
      for (const item of byId("events").children) item.hidden = hidden.has(item.dataset.lane);
    });
    filter.append(tag("label", {}, box, lane));
  }
  byId("events").tabIndex = 0;
  byId("events").setAttribute("aria-label", "Events");
  byId("events").replaceChildren(...data.timeline.map((event) => {
    const epoch = event.epoch === undefined || event.title.includes("epoch") ? "" : ` (epoch ${event.epoch})`;
    const item = tag("li", { "data-lane": event.lane, class: event.lane }, tag("time", {}, `${event.t.toFixed(2)} s`),
      tag("span", { class: "what" }, tag("b", {}, event.title), epoch, " ", tag("small", {}, event.detail)));
    item.hidden = hidden.has(event.lane);
    item.addEventListener("click", () => { if (String(getSelection()) === "") showAt(event.t); });
    return item;
  }));
}

function drawCharts(data) {
  const x = data.epochs.map((each) => each.t);
  const common = { failures: data.recoveries.map((each) => each.t), behind: behind(data), until: data.seconds };
  const sinks = data.topology ? data.topology.operators.filter((each) => each.priority).map((each) => each.name) : [];
  const series = [{ name: "fidelity", step: true, y: data.epochs.map((each) => each.fidelity) }];
  if (sinks.length > 1) {
    for (const sink of sinks) series.push({ name: `query ${sink}`, step: true, y: data.epochs.map((each) => each.queries[sink] ?? 1) });
  }
  if (data.floor_of) series.push({ name: `floor if ${data.floor_of}`, step: true, y: data.epochs.map((each) => each.floor) });
  const three = (value) => (value === null || value === undefined ? "none" : value.toFixed(3));
  drawChart(byId("fidelity-chart"), { title: "Fidelity of the answer to each epoch", x, top: 1, series, ...common, format: three });
  drawChart(byId("outputs-chart"), {
    title: "Outputs published so far (one task's rows of one epoch each)", x: data.outputs.map((each) => each.t), ...common,
    series: ["final", "tentative"].map((of) => ({ name: of, step: true, y: data.outputs.map((each) => each[of]) })),
  });
  drawChart(byId("latency-chart"), {
    title: "Latency: seconds from the arrival of an epoch to its answer", x, ...common,
    series: [{ name: "latency", y: data.epochs.map((each) => each.latency) }],
  });
  drawChart(byId("rate-chart"), {
    title: "Throughput: rows of an epoch over its latency, rows/s", x, ...common,
    series: [{ name: "rows/s", y: data.epochs.map((each) => (each.latency ? each.rows / each.latency : null)) }],
  });
  const holders = [...new Set(data.epochs.flatMap((each) => Object.keys(each.state)))];
  const all = { name: "all exact tasks", y: data.epochs.map((each) => each.state_bytes) };
  const parts = holders.map((name) => ({ name, y: data.epochs.map((each) => each.state[name] ?? null) }));
  drawChart(byId("state-chart"), { title: "State held by tasks that are exact", x, ...common, format: bytes, series: holders.length > 1 ? [all, ...parts] : [all] });
  drawChart(byId("checkpoint-chart"), {
    title: "Bytes written by each checkpoint", x: data.checkpoints.map((each) => each.t), ...common, format: bytes,
    series: [{ name: "bytes", dots: true, y: data.checkpoints.map((each) => each.bytes) }],
  });
}

function drawRecovery(each, number, data) {
  const article = tag("article", {});
  article.append(tag("h3", {}, `${number}. ${each.nodes.join(", ")} lost at ${clock(each.t)}${each.epoch === null ? "" : `, epoch ${each.epoch}`}`));
  const facts = [`Down: ${each.down.join(", ") || "nothing, replicas took over"}.`];
  if (each.promoted.length) facts.push(`Replicas took over: ${each.promoted.join(", ")}.`);
  if (each.answered_after_s === null && each.silent_s !== null) facts.push(`Silent for ${each.silent_s.toFixed(2)} s: no row came out since.`);
  else if (each.silent_s !== null) facts.push(`Silent for ${each.silent_s.toFixed(2)} s, then an answer with fidelity ${each.answered_fidelity.toFixed(3)}.`);
  else if (each.answered_after_s !== null) facts.push(`Next answer after ${each.answered_after_s.toFixed(2)} s with fidelity ${each.answered_fidelity.toFixed(3)}.`);
  if (each.promised_fidelity !== null) facts.push(`Promised at the loss: ${each.promised_fidelity.toFixed(3)}.`);
  if (each.exact_after_s !== null) facts.push(`Exact and caught up after ${each.exact_after_s.toFixed(2)} s.`);
  else facts.push(each.saved_after_s === null ? "Not exact again yet." : `No exact answer since; all state was exact in the checkpoint after ${each.saved_after_s.toFixed(2)} s.`);
  article.append(tag("p", {}, facts.join(" ")));
  const steps = [
    ...each.plans.map((plan) => [plan.after_s, `plan (${plan.scheduler})`, `${Object.entries(plan.recover).map(([task, node]) => `${task} on ${node}`).join(", ") || "nothing fits"}. ${plan.why}`]),
    ...each.joined.map((join) => [join.after_s, "joined", join.nodes.join(", ")]),
    ...each.replays.map((replay) => [replay.after_s, `replay, ${replay.seconds.toFixed(2)} s`, `epochs ${replay.epochs[0]} to ${replay.epochs[1]}: ${replay.tasks.join(", ")}${replay.on_the_side.length ? `; on the side: ${replay.on_the_side.join(", ")}` : ""}`]),
  ].sort((a, b) => a[0] - b[0]);
  if (steps.length) article.append(table(["after", "what", "which"], steps.map(([at, what, which]) => [`${at.toFixed(2)} s`, what, which]), "What was done"));
  const comparison = each.comparison;
  if (comparison) {
    const ours = comparison.schedules.findIndex((one) => one.scheduler === data.settings.scheduler);
    const rows = comparison.schedules.map((one) => [one.scheduler, one.average_fidelity.toFixed(3), one.steps.map((step) => step.recover.join(" + ") || "wait").join(", ")]);
    article.append(table(["scheduler", "average fidelity", "order"], rows, `What each scheduler would do if room for these tasks came back in ${comparison.steps} equal steps, by the rates measured before the failure; in bold the one this run uses`, ours));
    const place = tag("div", {});
    article.append(place);
    drawChart(place, {
      title: "Fidelity after each step, by scheduler", xname: "step", x: [...Array(comparison.steps + 1).keys()], top: 1,
      series: comparison.schedules.map((one) => ({ name: one.scheduler, step: true, y: [comparison.before, ...one.steps.map((step) => step.fidelity)] })),
    });
  } else if (each.down.length === 1) {
    article.append(tag("p", { class: "note" }, "One task was down, so every scheduler has the same order."));
  }
  return article;
}

function drawRecoveries(data) {
  byId("recoveries").hidden = !data.recoveries.length;
  byId("recovery-list").replaceChildren(...data.recoveries.map((each, i) => drawRecovery(each, i + 1, data)));
}

const spaced = (name) => name.replaceAll("_", " ");

function drawAttachments(data) {
  byId("attachments").hidden = !data.attachments.length;
  byId("attachments").replaceChildren(...data.attachments.map((each) => {
    const article = tag("article", {}, tag("h2", {}, each.title), tag("p", { class: "note" }, `From ${each.file}`));
    const facts = Object.entries(each.facts);
    if (facts.length) article.append(table(["", ""], facts.map(([name, value]) => [spaced(name), value]), "Facts"));
    if (each.rows.length) article.append(table(each.columns.map(spaced), each.rows, each.title));
    if (each.left_out) article.append(tag("p", { class: "note" }, `${each.left_out} more rows are in the file.`));
    return article;
  }));
}

let shown = null;
function draw(data) {
  shown = data;
  document.body.dataset.drawn = "yes"; // what is hidden has no width to draw into
  byId("title").textContent = data.title;
  drawFacts(data);
  drawPlayer(data);
  drawLanes(data);
  drawEvents(data);
  drawCharts(data);
  drawRecoveries(data);
  drawAttachments(data);
  byId("foot").textContent = `Made by holdfast report from history.jsonl: ${plural(data.timeline.length, "event")}.`;
}

async function follow() {
  const note = byId("live");
  note.hidden = false;
  if (shown === null) note.textContent = "Waiting for the job to begin";
  try {
    const answer = await fetch("data.json", { cache: "no-store" });
    if (!answer.ok) throw new Error(String(answer.status));
    const data = await answer.json();
    if (data !== null && !document.querySelector("figure svg:focus, summary:focus")) draw(data);
    note.textContent = data === null ? "Waiting for the job to begin" : data.running ? "Live" : "The job has ended";
    if (data !== null && !data.running) return;
  } catch {
    note.textContent = "The job does not answer any more; this is how it stood";
    return;
  }
  setTimeout(follow, 1000);
}

byId("play").addEventListener("click", () => play(playing === null));
byId("moment").addEventListener("input", () => {
  play(false);
  following = Number(byId("moment").value) >= Number(byId("moment").max);
  drawMoment();
});
let resized;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(() => { if (shown) { drawPlayer(shown); drawLanes(shown); drawCharts(shown); drawRecoveries(shown); } }, 200);
});
const embedded = JSON.parse(byId("data").textContent);
if (embedded === null) follow(); else draw(embedded);
