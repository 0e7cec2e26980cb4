"use strict";
// Draws the brokers in time, as SVG. What it shows is in the JSON element `data`: see drawing.py.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const drawing = document.getElementById("drawing");
  const details = document.getElementById("details");
  const select = document.getElementById("partition");
  const byId = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";
  const LANE = 78, TOP = 34, ZOOKEEPER_LANE = 26, STEPS = 120, ERRORS = 40, LETTER = 6;
  const MIN_SPAN = 0.005;
  const span = Math.max(data.end - data.begin, 0.05);
  const whole = [data.begin - span * 0.02, data.end + span * 0.02];
  // A failover lasts a second or two, and the recovery much longer: the page opens with the failover.
  const firstLook = [Math.max(whole[0], -0.15), Math.min(whole[1], Math.max(1.2, lastBusy() * 1.15))];
  let view = [...firstLook];
  let chosen = -1;

  function lastBusy() {
    const times = data.arrows.map((arrow) => arrow.until ?? arrow.t).filter((t) => t > 0).sort((a, b) => a - b);
    let last = 0;
    for (const t of times) { if (t - last > 1.5) break; last = t; }
    return last;
  }

  const make = (name, attributes, parent, text) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    if (parent) parent.append(element);
    return element;
  };
  const seconds = (t) => `${t < 0 ? "−" : "+"}${Math.abs(t).toFixed(3)} s`;

  // ---- The drawing

  function draw() {
    const width = Math.max(280, drawing.clientWidth);
    const isNarrow = width < 560;
    const left = isNarrow ? 76 : 86, right = width - 10;
    const brokers = data.brokers;
    const partition = data.partitions[select.value];
    const hasSteps = partition && partition.offsets.length > 0, hasErrors = data.errors.length > 0;
    const zookeeperY = TOP + LANE * brokers.length + 4;
    const lanesEnd = TOP + LANE * brokers.length + (data.harms.some((harm) => harm.broker === null) ? ZOOKEEPER_LANE : 0);
    const stepsTop = lanesEnd + 34, stepsEnd = stepsTop + (hasSteps ? STEPS : 0);
    const errorsTop = stepsEnd + (hasSteps ? 26 : 0);
    const height = errorsTop + (hasErrors ? ERRORS : 0) + 24;
    const x = (t) => left + ((t - view[0]) / (view[1] - view[0])) * (right - left);
    const isIn = (t, until) => until >= view[0] && t <= view[1];
    const clampX = (t) => Math.min(right, Math.max(left, x(t)));
    const laneY = (broker) => TOP + LANE * brokers.indexOf(broker) + 46;

    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" });
    const defs = make("defs", {}, svg);
    const hatch = make("pattern", { id: "hatch", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, defs);
    make("line", { x1: 0, y1: 0, x2: 0, y2: 7, class: "hatch" }, hatch);
    const clip = make("clipPath", { id: "inside" }, defs);
    make("rect", { x: left, y: 0, width: right - left, height }, clip);

    // The axis
    for (const t of ticks(view, Math.max(3, Math.floor((right - left) / 90)))) {
      make("line", { x1: x(t), x2: x(t), y1: TOP - 8, y2: height - 22, class: "grid" }, svg);
      const atEnd = x(t) > right - 16;
      make("text", { x: atEnd ? right : x(t), y: TOP - 14, "text-anchor": atEnd ? "end" : "middle", class: "soft" }, svg, axisLabel(t));
    }
    const inside = make("g", { "clip-path": "url(#inside)" }, svg);

    // Lanes
    for (const broker of brokers) {
      const y = laneY(broker);
      make("text", { x: 4, y: y - 16, "font-weight": 600 }, svg, isNarrow ? `br. ${broker}` : `broker ${broker}`);
      make("line", { x1: left, x2: right, y1: y, y2: y, class: "lane" }, svg);
      const role = partition ? roleAt(partition, broker, view[1]) : "";
      if (role) make("text", { x: 4, y: y - 2, class: "soft" }, svg, role);
    }
    if (partition) drawBands(inside, partition, brokers, x, laneY, clampX, isIn);
    for (const term of data.terms) {
      if (!isIn(term.t, term.until)) continue;
      const y = laneY(term.broker);
      make("rect", { x: clampX(term.t), y: y - 32, width: Math.max(1, clampX(term.until) - clampX(term.t)), height: 4, class: "term", rx: 2 }, inside);
      if (clampX(term.until) - clampX(term.t) > 110) make("text", { x: clampX(term.t) + 4, y: y - 36, class: "term" }, inside, term.what);
    }
    for (const absence of data.absences) {
      if (!isIn(absence.t, absence.until)) continue;
      const y = laneY(absence.broker), from = clampX(absence.t), wide = Math.max(1, clampX(absence.until) - from);
      make("rect", { x: from, y: y - 26, width: wide, height: 40, class: "absent" }, inside);
      if (wide > 60) make("text", { x: from + 6, y: y - 11, class: "down" }, inside, absence.what);
    }
    if (lanesEnd > zookeeperY) make("text", { x: 4, y: zookeeperY + 13, "font-weight": 600 }, svg, "ZooKeeper");
    for (const harm of data.harms) {
      if (!isIn(harm.t, harm.until) || (harm.broker !== null && !brokers.includes(harm.broker))) continue;
      const y = harm.broker === null ? zookeeperY : laneY(harm.broker) - 26;
      const from = clampX(harm.t), wide = Math.max(1, clampX(harm.until) - from);
      const band = make("rect", { x: from, y, width: wide, height: 18, class: "harm" }, inside);
      make("title", {}, band, `${harm.broker === null ? "ZooKeeper" : `broker ${harm.broker}`}: ${harm.what}, from ${seconds(harm.t)}`);
      if (wide > 60) make("text", { x: from + 6, y: y + 13, class: "down" }, inside, harm.what);
    }
    drawArrows(inside, x, laneY, isIn);
    drawDots(inside, x, laneY, brokers, lanesEnd);
    if (hasSteps) drawSteps(svg, inside, partition, { x, left, right, top: stepsTop, end: stepsEnd });
    if (hasErrors) drawErrors(svg, inside, { x, top: errorsTop, isNarrow });
    if (chosen >= 0) {
      const t = data.lines[chosen].t;
      make("line", { x1: x(t), x2: x(t), y1: TOP - 8, y2: height - 22, class: "cursor" }, inside);
    }
    const brush = make("rect", { x: 0, y: TOP - 8, width: 0, height: height - TOP - 14, class: "brush" }, inside);
    drawing.replaceChildren(svg);
    wireBrush(svg, brush, { left, right });
  }

  function roleAt(partition, broker, t) {
    const state = partition.states.filter((one) => one[0] <= t).at(-1);
    if (!state || state[3].length === 0) return "";  // no ISR: the topic is deleted
    if (state[1] === broker) return `leader, e${state[2]}`;
    return state[3].includes(broker) ? "in sync" : "not in sync";
  }

  function drawBands(parent, partition, brokers, x, laneY, clampX, isIn) {
    partition.states.forEach((state, at) => {
      const [t, leader, epoch, isr] = state;
      const until = at + 1 < partition.states.length ? partition.states[at + 1][0] : data.end;
      if (!isIn(t, until) || isr.length === 0) return;
      for (const broker of brokers) {
        const kind = broker === leader ? "leader" : isr.includes(broker) ? "insync" : "outside";
        const from = clampX(t), wide = Math.max(1, clampX(until) - from);
        const band = make("rect", { x: from, y: laneY(broker) + 5, width: wide, height: 8, class: kind }, parent);
        make("title", {}, band, `${select.value}: broker ${broker} ${kind === "leader" ? `leads in epoch ${epoch}` : kind === "insync" ? "is in the ISR" : "is not in the ISR"}, from ${seconds(t)}`);
        const before = at > 0 ? partition.states[at - 1] : null;
        const isNews = !before || before[1] !== leader || before[2] !== epoch || before[0] < view[0];
        if (kind === "leader" && wide > 84 && isNews) make("text", { x: from + 3, y: laneY(broker) + 25, class: "soft" }, parent, `leads, epoch ${epoch}`);
      }
    });
  }

  function drawArrows(parent, x, laneY, isIn) {
    for (const arrow of data.arrows) {
      const until = arrow.until ?? arrow.t + (view[1] - view[0]) * 0.02;
      if (!isIn(arrow.t, until) || !data.brokers.includes(arrow.from) || !data.brokers.includes(arrow.to)) continue;
      const [x1, y1, x2] = [x(arrow.t), laneY(arrow.from), x(until)];
      const own = arrow.from === arrow.to;
      const y2 = laneY(arrow.to);
      const path = own ? `M${x1} ${y1} C${x1} ${y1 - 26}, ${x2} ${y1 - 26}, ${x2} ${y2}` : `M${x1} ${y1} L${x2} ${y2}`;
      const failed = arrow.error !== "NONE" || arrow.until === null;
      const kind = `arrow ${arrow.request} ${arrow.answer ? "answer" : ""} ${failed ? "failed" : ""}`;
      make("path", { d: path, class: kind }, parent);
      if (!arrow.answer) {
        const angle = own ? Math.PI / 2 : Math.atan2(y2 - y1, x2 - x1);
        const point = (turn, size) => `${x2 - size * Math.cos(angle + turn)},${y2 - size * Math.sin(angle + turn)}`;
        make("polygon", { points: `${x2},${y2} ${point(0.4, 8)} ${point(-0.4, 8)}`, class: `head ${arrow.request}` }, parent);
      }
      const words = `${seconds(arrow.t)}: ${arrow.answer ? `answer of broker ${arrow.from} to ${arrow.request}` : `${arrow.request} from the controller, broker ${arrow.from}, to broker ${arrow.to}`}, ` +
        `${arrow.partitions} partitions, ${arrow.until === null ? "never received" : `${Math.round((arrow.until - arrow.t) * 1000)} ms on its way`}${arrow.error === "NONE" ? "" : `, ${arrow.error}`}`;
      const hit = make("path", { d: path, class: "hit" }, parent);
      hit.addEventListener("pointerenter", () => { details.textContent = words; });
    }
  }

  function drawDots(parent, x, laneY, brokers, lanesEnd) {
    const taken = new Map();
    let labelsEnd = 0;
    data.lines.forEach((line, at) => {
      if (line.t < view[0] || line.t > view[1]) return;
      const px = x(line.t);
      if (line.broker === null) {
        make("line", { x1: px, x2: px, y1: TOP - 8, y2: lanesEnd + 4, class: "fault" }, parent);
        const isLeft = px > drawing.clientWidth * 0.6;
        const words = shortFault(line.text), wide = words.length * LETTER, from = isLeft ? px - 4 - wide : px + 4;
        if (from > labelsEnd) {  // faults that follow closely share a label: the first one's
          make("text", { x: px + (isLeft ? -4 : 4), y: lanesEnd + 14, class: "down", "text-anchor": isLeft ? "end" : "start" }, parent, words);
          labelsEnd = from + wide;
        }
        dot(parent, px, TOP - 4, line, at);
        return;
      }
      if (!brokers.includes(line.broker)) return;
      // Dots of the same moment are stacked upwards.
      const slot = `${line.broker}:${Math.round(px / 9)}`;
      const level = taken.get(slot) ?? 0;
      taken.set(slot, level + 1);
      dot(parent, px, laneY(line.broker) - Math.min(level, 3) * 7, line, at);
    });
  }

  const shortFault = (text) => text.split(/[,.]| \(/)[0].replace(" the process of", "").replace(" the links of", "");

  function dot(parent, px, y, line, at) {
    const classes = `dot${line.trigger ? " trigger" : ""}${at === chosen ? " chosen" : ""}`;
    const circle = make("circle", { cx: px, cy: y, r: at === chosen ? 5.5 : 3.6, class: classes }, parent);
    circle.addEventListener("pointerenter", () => say(at));
    circle.addEventListener("click", (event) => { event.stopPropagation(); choose(at, false); });
  }

  function drawSteps(svg, inside, partition, { x, left, right, top, end }) {
    const seen = partition.offsets.filter((one, at, all) => one[0] <= view[1] && (at + 1 === all.length || all[at + 1][0] >= view[0]));
    if (!seen.length) return;
    const low = Math.min(...seen.map((one) => one[1])), high = Math.max(...seen.map((one) => one[2]), low + 1);
    const y = (offset) => end - 6 - ((offset - low) / (high - low)) * (end - top - 18);
    make("text", { x: 4, y: top - 2, "font-weight": 600 }, svg, "offsets");
    make("line", { x1: left, x2: right, y1: end, y2: end, class: "rule" }, svg);
    for (const offset of [low, high]) make("text", { x: left - 5, y: y(offset) + 4, "text-anchor": "end", class: "soft" }, svg, offset.toLocaleString("en"));
    for (const [column, name] of [[2, "leo"], [1, "hw"]]) {
      let path = "", last = null;
      for (const one of seen) {
        path += last === null ? `M${x(one[0])} ${y(one[column])}` : ` H${x(one[0])} V${y(one[column])}`;
        last = one;
      }
      make("path", { d: `${path} H${x(Math.min(data.end, view[1]))}`, class: name }, inside);
    }
  }

  function drawErrors(svg, inside, { x, top, isNarrow }) {
    make("text", { x: 4, y: top + 14, "font-weight": 600 }, svg, isNarrow ? "errors" : "client errors");
    for (const error of data.errors) {
      if (error.t < view[0] || error.t > view[1]) continue;
      const mark = make("path", { d: `M${x(error.t) - 4} ${top + 18} l4 -9 l4 9 z`, class: "error" }, inside);
      mark.addEventListener("pointerenter", () => { details.textContent = `${seconds(error.t)}: ${error.client} got ${error.error}`; });
    }
  }

  function ticks([from, to], count) {
    const rough = (to - from) / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
    const found = [];
    for (let t = Math.ceil(from / step) * step; t <= to; t += step) found.push(Number(t.toPrecision(12)));
    return found;
  }
  const axisLabel = (t) => `${Number(t.toFixed(4))} s`.replace("-", "−");

  // ---- Choosing and moving

  function say(at) {
    const line = data.lines[at];
    details.textContent = `${seconds(line.t)} ${line.who}: ${line.text}${line.rule ? ` [${line.rule}]` : ""}`;
  }

  function choose(at, moves) {
    chosen = at;
    const line = data.lines[at];
    for (const row of document.querySelectorAll("tr.chosen")) row.classList.remove("chosen");
    document.querySelector(`tr[data-line="${at}"]`)?.classList.add("chosen");
    if (moves && (line.t < view[0] || line.t > view[1])) {
      const half = (view[1] - view[0]) / 2;
      show([line.t - half, line.t + half]);
    }
    const named = line.partitions.find((name) => name in data.partitions);
    if (named && !line.partitions.includes(select.value)) select.value = named;
    say(at);
    draw();
  }

  function show([from, to]) {
    const wide = Math.min(Math.max(to - from, MIN_SPAN), whole[1] - whole[0]);
    const begin = Math.min(Math.max(from, whole[0]), whole[1] - wide);
    view = [begin, begin + wide];
    draw();
  }
  const zoom = (factor, at = (view[0] + view[1]) / 2) => show([at - (at - view[0]) * factor, at + (view[1] - at) * factor]);
  const move = (share) => { const by = (view[1] - view[0]) * share; show([view[0] + by, view[1] + by]); };

  function wireBrush(svg, brush, { left, right }) {
    const timeAt = (event) => {
      const box = svg.getBoundingClientRect();
      const px = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
      return view[0] + ((Math.min(right, Math.max(left, px)) - left) / (right - left)) * (view[1] - view[0]);
    };
    const toX = (t) => left + ((t - view[0]) / (view[1] - view[0])) * (right - left);
    let from = null;
    svg.addEventListener("pointerdown", (event) => { if (event.button === 0 && !event.target.matches(".dot")) { from = timeAt(event); svg.setPointerCapture(event.pointerId); } });
    svg.addEventListener("pointermove", (event) => {
      if (from === null) return;
      const to = timeAt(event);
      brush.setAttribute("x", toX(Math.min(from, to)));
      brush.setAttribute("width", Math.abs(toX(to) - toX(from)));
    });
    svg.addEventListener("pointercancel", () => { from = null; brush.setAttribute("width", 0); });
    svg.addEventListener("pointerup", (event) => {
      if (from === null) return;
      const to = timeAt(event), begin = from;
      from = null;
      brush.setAttribute("width", 0);
      if (Math.abs(toX(to) - toX(begin)) > 6) show([Math.min(begin, to), Math.max(begin, to)]);
    });
    svg.addEventListener("dblclick", () => show(whole));
    svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(event));
    }, { passive: false });
  }

  drawing.addEventListener("keydown", (event) => {
    const actions = {
      ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1.6), "0": () => show(whole),
      ArrowDown: () => choose(Math.min(data.lines.length - 1, chosen + 1), true), ArrowUp: () => choose(Math.max(0, chosen - 1), true),
    };
    if (!(event.key in actions) || event.ctrlKey || event.metaKey || event.altKey || !data.lines.length) return;
    event.preventDefault();
    actions[event.key]();
  });
  byId("in").addEventListener("click", () => zoom(0.6));
  byId("out").addEventListener("click", () => zoom(1.6));
  byId("earlier").addEventListener("click", () => move(-0.4));
  byId("later").addEventListener("click", () => move(0.4));
  byId("whole").addEventListener("click", () => show(whole));
  for (const row of document.querySelectorAll("tr[data-line]")) {
    const at = Number(row.dataset.line);
    row.addEventListener("click", () => choose(at, true));
    row.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(at, true); } });
  }

  // ---- The start

  for (const name of Object.keys(data.partitions)) select.add(new Option(name, name));
  select.parentElement.hidden = select.options.length === 0;
  select.addEventListener("change", draw);
  const sample = (kind, drawn, words) => `<span><svg viewBox="0 0 24 12" aria-hidden="true">${drawn}</svg>${words}</span>`;
  byId("legend").innerHTML = [
    sample("leader", '<rect class="leader" x="0" y="2" width="24" height="8"/>', "leads the partition"),
    sample("insync", '<rect class="insync" x="0" y="2" width="24" height="8"/>', "in its ISR"),
    sample("outside", '<rect class="outside" x="0" y="2" width="24" height="8"/>', "not in its ISR"),
    sample("term", '<rect class="term" x="0" y="4" width="24" height="4"/>', "is the controller"),
    sample("down", '<rect class="absent" x="0" y="0" width="24" height="12"/>', "process away"),
    sample("harm", '<rect class="harm" x="0" y="0" width="24" height="12"/>', "links broken, disk full"),
    sample("a", '<path class="arrow LeaderAndIsr" d="M0 6 H24"/>', "LeaderAndIsr"),
    sample("b", '<path class="arrow UpdateMetadata" d="M0 6 H24"/>', "UpdateMetadata"),
    sample("c", '<path class="arrow UpdateMetadata answer" d="M0 6 H24"/>', "answer"),
    sample("d", '<path class="hw" d="M0 6 H24"/>', "high watermark"),
    sample("e", '<path class="leo" d="M0 6 H24"/>', "log end offset"),
  ].join("");
  const theme = byId("theme");
  const label = () => { theme.textContent = root.dataset.theme === "dark" ? "Light" : "Dark"; };
  theme.hidden = false;
  theme.addEventListener("click", () => { root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark"; label(); });
  label();
  byId("figure").hidden = data.brokers.length === 0;
  addEventListener("resize", draw);
  addEventListener("beforeprint", () => { root.dataset.theme = "light"; label(); draw(); });
  draw();
})();
