"use strict";
// The page of `ottla console`: takes what has changed from the stream `/changes` (tools/console/state.py says what is in it) and draws it.
(() => {
  const root = document.documentElement;
  root.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const ROWS = 25, LINES_MAX = 300, POINTS_MAX = 300, GROUPS_MAX = 100, REDRAW_MS = 200;
  const COLOURS = ["blue", "orange", "green", "purple", "sky", "yellow", "brown", "indigo", "teal", "grey"];
  const BAD = new Set(["down", "does not answer", "paused"]), WARNING = new Set(["cut off", "not asked yet"]);
  const VERBS = { kill: "Kill", stop: "Stop", pause: "Pause", resume: "Resume", heal: "Heal", isolate: "Isolate" };
  const state = { cluster: {}, brokers: {}, partitions: {}, offsets: {}, lags: {}, groups: {}, moves: {}, unhealed: {} };
  const dirty = new Set();
  let lines = [], points = [], place = 0, about = {}, charts = null, isConnected = false;
  const by = (id) => document.getElementById(id);
  const number = (value) => value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en");
  const plural = (count, what) => `${number(count)} ${what}${count === 1 ? "" : "s"}`;
  const element = (tag, text = "", name = "") => {
    const made = document.createElement(tag);
    if (text !== "") made.textContent = text;
    if (name) made.className = name;
    return made;
  };
  const setText = (place, text) => { if (place.textContent !== text) place.textContent = text; };
  const size = (value) => {
    if (value === null || value === undefined) return "–";
    const prefixes = ["", "k", "M", "G"];
    let at = 0;
    while (value >= 1000 && at < 3) { value /= 1000; at += 1; }
    return `${value >= 100 || at === 0 ? Math.round(value) : value.toPrecision(3)} ${prefixes[at]}B/s`;
  };

  // ---- The brokers

  const cards = new Map();
  const card = (id) => {
    if (cards.has(id)) return cards.get(id);
    const made = { item: element("li"), title: element("h3"), state: element("span", "", "state"), name: element("span", `Broker ${id}`),
      role: element("p", "", "role"), what: element("p", "", "soft"), buttons: {} };
    made.item.dataset.broker = id;
    made.title.append(made.name, made.state);
    made.item.append(made.title, made.role, made.what);
    if (about.faults) {
      const row = element("div", "", "buttons");
      for (const action of ["kill", "stop", "pause", "isolate", "heal"].filter((one) => about.faults.actions.includes(one))) {
        const button = element("button", VERBS[action], action === "heal" ? "heal" : "harm");
        button.type = "button";
        button.setAttribute("aria-label", `${VERBS[action]} broker ${id}`);
        button.addEventListener("click", () => carryOut(`${action} broker ${id}`));
        made.buttons[action] = button;
        row.append(button);
      }
      made.item.append(row);
    }
    cards.set(id, made);
    const after = [...cards.keys()].map(Number).sort((a, b) => a - b).find((other) => other > Number(id));
    by("brokers").insertBefore(made.item, after === undefined ? null : cards.get(String(after)).item);
    return made;
  };
  const drawBrokers = () => {
    for (const [id, broker] of Object.entries(state.brokers)) {
      const made = card(id);
      if (made.state.textContent && made.state.textContent !== broker.state) announce(`Broker ${id}: ${broker.state}`);
      setText(made.state, broker.state);
      made.item.className = BAD.has(broker.state) ? "bad" : WARNING.has(broker.state) ? "warning" : "";
      const isController = state.cluster.controller === Number(id);
      const epoch = state.cluster.controller_epoch;
      setText(made.role, isController ? `controller${epoch === null || epoch === undefined ? "" : `, epoch ${epoch}`}` : "");
      made.role.hidden = !isController;
      setText(made.what, `${broker.address}\nleads ${number(broker.leads)} of its ${plural(broker.replicas, "replica")}`);
      for (const action of ["kill", "stop", "pause", "isolate"]) if (made.buttons[action]) made.buttons[action].disabled = broker.state === "down";
    }
    for (const [id, made] of cards) if (!(id in state.brokers)) { made.item.remove(); cards.delete(id); }
  };
  const announce = (text) => { by("news").textContent = text; };

  // ---- Health

  const drawHealth = () => {
    const { cluster } = state;
    const gone = Object.entries(state.brokers).filter(([, broker]) => broker.state !== "running");
    const bad = [], warning = [];
    if (cluster.problem) bad.push(cluster.problem);
    if (cluster.controller === null) bad.push("there is no controller");
    if (cluster.leaderless) bad.push(`${plural(cluster.leaderless, "partition")} without a leader`);
    for (const [id, broker] of gone) (BAD.has(broker.state) ? bad : warning).push(`broker ${id}: ${broker.state}`);
    if (cluster.under_replicated) warning.push(`${plural(cluster.under_replicated, "partition")} with a replica out of sync`);
    const kind = bad.length ? "bad" : warning.length ? "warning" : "good";
    by("health").className = `banner ${kind}`;
    setText(by("health").querySelector(".sign"), { good: "✓", warning: "!", bad: "✕" }[kind]);
    setText(by("verdict"), kind === "good" ? "Healthy" : [...bad, ...warning].slice(0, 3).join("; "));
    const controller = cluster.controller === null ? "none" : `broker ${cluster.controller}`;
    const epoch = cluster.controller_epoch === null || cluster.controller_epoch === undefined ? "" : `, epoch ${cluster.controller_epoch}`;
    setText(by("why"), `Controller: ${controller}${epoch}. ${plural(cluster.partitions, "partition")} of ${plural(cluster.topics, "topic")}.`);
    if (isConnected) setText(by("line"), "Live. The page shows changes as they happen.");
  };

  // ---- Partitions, groups, moves

  // A replica that a move adds is copied first: it is not missing.
  const addedTo = (name) => (state.moves[name] || { adding: [] }).adding;
  const outOf = (row, adding) => row[2].filter((replica) => !row[3].includes(replica) && !adding.includes(replica));
  const isTroubled = (name, row) => row[0] < 0 || outOf(row, addedTo(name)).length > 0 || (state.brokers[row[0]] || {}).state === "down";
  const collator = new Intl.Collator("en", { numeric: true });
  let names = [];
  const chosen = () => {
    const wanted = by("filter").value.trim().toLowerCase(), onlyTroubled = by("troubled").checked;
    const broker = /^broker (\d+)$/.exec(wanted);
    return names.filter((name) => {
      const row = state.partitions[name];
      if (onlyTroubled && !isTroubled(name, row)) return false;
      return broker ? row[2].includes(Number(broker[1])) : name.toLowerCase().includes(wanted);
    });
  };
  const drawPartitions = () => {
    if (dirty.has("partitions")) names = Object.keys(state.partitions).sort((a, b) => a.startsWith("__") - b.startsWith("__") || collator.compare(a, b));
    const found = chosen();
    place = Math.max(0, Math.min(place, Math.ceil(found.length / ROWS) - 1));
    const shown = found.slice(place * ROWS, (place + 1) * ROWS);
    fill(by("partitions"), shown.map((name) => {
      const row = state.partitions[name], [leader, epoch, , isr] = row;
      const copied = addedTo(name).filter((replica) => !isr.includes(replica));
      return [name, leader < 0 ? "none" : String(leader), String(epoch), [isr, outOf(row, copied), copied], number(state.offsets[name]), number(state.lags[name])];
    }), (cells, row) => {
      cells[0].textContent = row[0];
      cells[1].textContent = row[1];
      cells[1].className = row[1] === "none" ? "number none" : "number";
      cells[2].textContent = row[2];
      const [isr, out, copied] = row[3];
      cells[3].replaceChildren(isr.join(","), ...(out.length ? [" ", element("span", `without ${out.join(",")}`, "out")] : []),
        ...(copied.length ? [" ", element("span", `copied to ${copied.join(",")}`, "soft")] : []));
      cells[4].textContent = row[4];
      cells[5].textContent = row[5];
    }, [1, 2, 4, 5]);
    setText(by("place"), found.length ? `${number(place * ROWS + 1)} to ${number(place * ROWS + shown.length)} of ${number(found.length)}` : "no partition");
    by("earlier").disabled = place === 0;
    by("later").disabled = (place + 1) * ROWS >= found.length;
  };
  // Draws only the rows that differ from what they showed.
  const fill = (body, rows, draw, numeric) => {
    while (body.rows.length > rows.length) body.deleteRow(-1);
    rows.forEach((row, at) => {
      const key = JSON.stringify(row);
      let shown = body.rows[at];
      if (!shown) {
        shown = body.insertRow();
        row.forEach((_, column) => { shown.insertCell().className = numeric.includes(column) ? "number" : ""; });
      }
      if (shown.dataset.key === key) return;
      shown.dataset.key = key;
      draw(shown.cells, row);
    });
  };
  const texts = (cells, row) => row.forEach((text, at) => setText(cells[at], text));
  const drawGroups = () => {
    const all = Object.entries(state.groups).sort(([, a], [, b]) => (b.lag || 0) - (a.lag || 0));
    fill(by("groups"), all.slice(0, GROUPS_MAX).map(([name, group]) => [
      name, group.state, number(group.members), `${group.coordinator}`, number(group.partitions), number(group.lag)]), texts, [2, 3, 4, 5]);
    setText(by("no-groups"), all.length === 0 ? "No group." : all.length > GROUPS_MAX ? `The ${GROUPS_MAX} with the most lag, of ${number(all.length)}.` : "");
  };
  const drawMoves = () => {
    const rows = Object.entries(state.moves).map(([name, move]) => [name, move.adding.join(",") || "–", move.removing.join(",") || "–"]);
    by("moves-section").hidden = rows.length === 0;
    fill(by("moves"), rows.slice(0, 200), texts, []);
  };

  // ---- Timeline

  const clock = (ms) => {
    const at = new Date(ms), two = (value, digits = 2) => String(value).padStart(digits, "0");
    return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${two(at.getMilliseconds(), 3)}`;
  };
  const lineItem = (line) => {
    const item = element("li", "", line.is_trigger ? "trigger" : "");
    const when = element("time", clock(line.time_ms)), what = element("span", line.text);
    when.dateTime = new Date(line.time_ms).toISOString();
    if (line.rule) what.append(" ", element("i", `[${line.rule}]`));
    item.append(when, element("b", line.who), what);
    return item;
  };
  // The newest is at the top. A line that comes late goes to its place.
  const addLines = (added) => {
    const list = by("timeline");
    for (const line of added) {
      let at = lines.length;
      while (at > 0 && lines[at - 1].time_ms > line.time_ms) at -= 1;
      const before = list.children[lines.length - at];
      lines.splice(at, 0, line);
      list.insertBefore(lineItem(line), before || null);
    }
    while (lines.length > LINES_MAX) { lines.shift(); list.lastElementChild.remove(); }
  };

  // ---- Charts

  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const option = (series, unit) => ({
    animation: false, textStyle: { fontFamily: getComputedStyle(document.body).fontFamily },
    grid: { left: 6, right: 26, top: 12, bottom: series.length > 1 ? 26 : 6, containLabel: true },
    legend: series.length > 1 ? { type: "scroll", pageIconSize: 10, bottom: 0, itemWidth: 14, itemHeight: 8, icon: "roundRect", textStyle: { color: colour("soft"), fontSize: 11 } } : undefined,
    tooltip: { trigger: "axis", confine: true, valueFormatter: (value) => value === null || value === undefined ? "–" : `${Number(value.toPrecision(3)).toLocaleString("en")} ${unit}`,
      backgroundColor: colour("surface"), borderColor: colour("line"), textStyle: { color: colour("ink"), fontSize: 12 } },
    xAxis: { type: "time", axisLabel: { color: colour("soft"), fontSize: 11, hideOverlap: true }, axisLine: { lineStyle: { color: colour("line") } }, axisTick: { show: false } },
    yAxis: { type: "value", min: 0, minInterval: unit === "ms" ? 0 : 1, splitNumber: 3, axisLabel: { color: colour("soft"), fontSize: 11,
      formatter: (value) => unit === "ms" ? `${value} ms` : value >= 1000 ? `${value / 1000} k` : String(value) }, splitLine: { lineStyle: { color: colour("grid") } } },
    series: series.map((one, at) => ({ name: one.name, type: "line", showSymbol: false, lineStyle: { width: one.width || 1.5 }, color: colour(COLOURS[at % COLOURS.length]),
      areaStyle: series.length === 1 ? { opacity: .12 } : undefined, data: one.data })),
  });
  const drawCharts = () => {
    if (!window.echarts) return;
    charts = charts || { records: echarts.init(by("records"), null, { renderer: "svg" }), latency: echarts.init(by("latency"), null, { renderer: "svg" }) };
    const over = (value) => points.map((point) => [point.time_ms, value(point) ?? null]);
    charts.records.setOption(option([{ name: "records", data: over((point) => point.records) }], "records/s"), true);
    const latency = [];
    if (points.some((point) => point.produce_ms !== undefined)) latency.push({ name: "produce, mean", width: 2.5, data: over((point) => point.produce_ms) });
    for (const id of Object.keys(state.brokers)) latency.push({ name: `broker ${id} answers`, width: 1, data: over((point) => point.answer_ms[id]) });
    charts.latency.setOption(option(latency, "ms"), true);
    const last = points.at(-1) || {};
    const bytes = last.bytes_in === undefined ? "" : `, ${size(last.bytes_in)} in, ${size(last.bytes_out)} out`;
    setText(by("records-now"), last.records === undefined || last.records === null ? "" : `${number(last.records)} records/s${bytes}`);
    setText(by("latency-now"), last.produce_ms === undefined || last.produce_ms === null ? "" : `produce ${Number(last.produce_ms.toPrecision(3))} ms`);
  };

  // ---- Faults

  const carryOut = async (fault) => {
    setText(by("said"), `${fault} …`);
    let text;
    try {
      const answer = await fetch("/faults", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ fault }) });
      const told = await answer.json();
      text = answer.ok ? `Done: ${told.done.join("; ")}` : told.error;
    } catch { text = "The console does not answer."; }
    setText(by("said"), text);
  };
  const drawUnhealed = () => {
    const items = Object.entries(state.unhealed).map(([said, whom]) => {
      const item = element("li"), button = element("button", "Heal", "heal");
      button.type = "button";
      button.setAttribute("aria-label", `Heal ${said}`);
      button.addEventListener("click", async () => { for (const one of new Set(whom)) await carryOut(`heal ${one === "ZooKeeper" ? "zookeeper" : one}`); });
      item.append(element("span", `Not healed: ${said} (${whom.join(", ")})`), button);
      return item;
    });
    by("unhealed").replaceChildren(...items);
  };
  const ofPartition = () => by("role").value.includes("er of") && !by("role").value.startsWith("coordinator");
  const chooseRole = () => {
    const needsName = by("role").value.endsWith(" of");
    by("whose-label").hidden = !needsName;
    setText(by("whose-name"), ofPartition() ? "partition" : "group");
    if (needsName) offerNames();
  };
  const offerNames = () => {
    const known = ofPartition() ? names.filter((name) => !name.startsWith("__")) : Object.keys(state.groups);
    by("known").replaceChildren(...known.slice(0, 200).map((name) => { const one = element("option"); one.value = name; return one; }));
    if (!by("whose").value && known.length) by("whose").value = known[0];
  };
  const setUpFaults = () => {
    if (!about.faults) return;
    by("faults").hidden = false;
    for (const action of about.faults.actions) { const one = element("option", action); one.value = action; by("action").append(one); }
    if (about.faults.zookeeper) { const one = element("option", "ZooKeeper"); one.value = "zookeeper"; by("role").append(one); }
    by("role").addEventListener("change", () => { by("whose").value = ""; chooseRole(); });
    by("by-role").addEventListener("submit", (event) => {
      event.preventDefault();
      const role = by("role").value, whose = role.endsWith(" of") ? ` ${by("whose").value.trim()}` : "", lasts = by("lasts").value;
      carryOut(`${by("action").value} ${role}${whose}${lasts ? ` for ${lasts}` : ""}`);
    });
    by("in-words").addEventListener("submit", (event) => { event.preventDefault(); if (by("words").value.trim()) carryOut(by("words").value.trim()); });
    by("heal").addEventListener("click", () => carryOut("heal"));
  };

  // ---- The stream

  let drawnAt = 0, waiting = null;
  const draw = () => {
    waiting = null;
    drawnAt = performance.now();
    const has = (...sections) => sections.some((section) => dirty.has(section));
    if (has("partitions", "offsets", "lags", "brokers", "moves")) drawPartitions();
    if (has("groups")) drawGroups();
    if (has("moves")) drawMoves();
    if (has("unhealed")) drawUnhealed();
    if (has("points")) setTimeout(drawCharts);  // the slowest, so after all else is shown
    dirty.clear();
  };
  const drawSoon = () => { waiting = waiting ?? setTimeout(draw, Math.max(0, drawnAt + REDRAW_MS - performance.now())); };
  const take = (message) => {
    if (message.whole) {
      for (const section of Object.keys(state)) { state[section] = {}; dirty.add(section); }
      lines = []; points = []; by("timeline").replaceChildren();
    }
    for (const [section, entries] of Object.entries(message.change)) {
      for (const [name, value] of Object.entries(entries)) {
        if (value === null && section !== "cluster") delete state[section][name]; else state[section][name] = value;
      }
      dirty.add(section);
    }
    if (message.lines) addLines(message.lines);
    if (message.points) { points = points.concat(message.points).slice(-POINTS_MAX); dirty.add("points"); }
    // Who is alive is drawn at once, the rest at most five times a second.
    if (message.whole || message.change.brokers || message.change.cluster) { drawBrokers(); drawHealth(); }
    drawSoon();
  };
  const listen = () => {
    const stream = new EventSource("/changes");
    stream.addEventListener("open", () => { isConnected = true; root.classList.remove("stale"); });
    stream.addEventListener("message", (event) => take(JSON.parse(event.data)));
    stream.addEventListener("error", () => {
      isConnected = false;
      root.classList.add("stale");
      setText(by("line"), "The console does not answer; what is here is old. Trying again …");
      if (stream.readyState === EventSource.CLOSED) setTimeout(listen, 1000);
    });
  };

  addEventListener("DOMContentLoaded", () => {
    about = JSON.parse(by("about").textContent);
    by("title").textContent = about.cluster;
    document.title = `${about.cluster} – ottla console`;
    by("no-timeline").hidden = about.timeline;
    const nameTheme = () => setText(by("theme"), root.dataset.theme === "dark" ? "Light" : "Dark");
    nameTheme();
    by("theme").addEventListener("click", () => {
      root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
      nameTheme();
      drawCharts();
    });
    by("filter").addEventListener("input", () => { place = 0; drawPartitions(); });
    by("troubled").addEventListener("change", () => { place = 0; drawPartitions(); });
    by("earlier").addEventListener("click", () => { place -= 1; drawPartitions(); });
    by("later").addEventListener("click", () => { place += 1; drawPartitions(); });
    addEventListener("resize", () => { if (charts) { charts.records.resize(); charts.latency.resize(); } });
    setUpFaults();
    listen();
  });
})();
