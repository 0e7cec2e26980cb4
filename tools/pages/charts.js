"use strict";
// Draws the charts of the page with ECharts. What they show is in the JSON element `charts`: the classes of charts.py.
(() => {
  const root = document.documentElement;
  const specs = JSON.parse(document.getElementById("charts").textContent);
  const PALETTE = ["blue", "orange", "green", "purple", "sky", "yellow", "red", "brown", "indigo", "teal", "grey"];
  const isTouch = matchMedia("(pointer: coarse)").matches;
  const drawn = new Map();

  // ---- Numbers

  const digits = (value) => {
    const size = Math.abs(value);
    if (size === 0) return "0";
    return size >= 100 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
  };
  const scaled = (value, unit) => {
    const prefixes = ["", "k", "M", "G", "T"];
    let at = 0;
    while (Math.abs(value) >= 999.5 && at < prefixes.length - 1) { value /= 1000; at += 1; }
    return `${digits(value)} ${prefixes[at]}${unit}`.trim();
  };
  const quantity = (value, unit) => {
    if (value === null || value === undefined) return "–";
    if (unit === "ms") return Math.abs(value) >= 1000 ? `${digits(value / 1000)} s` : `${digits(value)} ms`;
    if (unit.startsWith("B")) return scaled(value, unit);
    return Math.abs(value) < 10000 ? `${digits(value)} ${unit}` : scaled(value, "") + " " + unit;
  };
  // On an axis the unit stands in the axis's name, if it is not part of the prefix.
  const tick = (value, unit) => unit === "ms" || unit.startsWith("B") ? quantity(value, unit) : scaled(value, "");
  const second = (value) => {
    const whole = Math.floor(value);
    if (value < 600) return `${Number(value.toFixed(value < 10 ? 2 : 1))} s`;
    const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
    const two = (number) => String(number).padStart(2, "0");
    return hours ? `${hours}:${two(minutes)}:${two(whole % 60)} h` : `${minutes}:${two(whole % 60)} min`;
  };
  const escaped = (text) => String(text).replace(/[&<>"']/g, (one) => `&#${one.charCodeAt(0)};`);

  // ---- Options

  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const quantileAt = (x) => {
    const share = 100 * (1 - 10 ** -x);
    return `${Number(share.toFixed(Math.max(0, Math.round(x) - 2)))} %`;
  };
  const rare = (quantile) => -Math.log10(1 - quantile);

  const axisText = () => ({ color: colour("soft"), fontSize: 11.5, fontFamily: "inherit" });
  const axis = (more) => ({
    axisLine: { lineStyle: { color: colour("line") } }, axisTick: { show: false },
    splitLine: { lineStyle: { color: colour("grid") } }, nameTextStyle: axisText(), ...more,
    axisLabel: { ...axisText(), hideOverlap: true, ...(more.axisLabel || {}) },
  });

  const frame = (spec, view, series) => ({
    animation: false,
    textStyle: { fontFamily: getComputedStyle(document.body).fontFamily, color: colour("ink") },
    aria: { enabled: false },
    grid: { left: 8, right: 26, top: spec.marks.length ? 20 + 14 * (1 + Math.max(...levels(spec))) : 22, bottom: view.lines.length ? 34 : 6, containLabel: true },
    legend: {
      show: view.lines.length > 0, type: "scroll", bottom: 0, left: "center", itemWidth: 18, itemHeight: 8, itemGap: 16,
      textStyle: { color: colour("ink"), fontSize: 12 }, inactiveColor: colour("line"), pageTextStyle: { color: colour("soft") },
      pageIconColor: colour("soft"), pageIconInactiveColor: colour("line"), data: view.lines.map((line) => line.name),
      formatter: (name) => (name.length > 28 ? `${name.slice(0, 27)}…` : name),
    },
    tooltip: {
      confine: true, backgroundColor: colour("surface"), borderColor: colour("line"), padding: [8, 12],
      textStyle: { color: colour("ink"), fontSize: 12.5 }, extraCssText: "box-shadow: 0 4px 16px rgba(0,0,0,.16);",
      axisPointer: { lineStyle: { color: colour("soft") }, shadowStyle: { color: colour("soft"), opacity: 0.08 }, label: { show: false } },
    },
    series,
  });

  const hint = (head, rows) => `<b>${escaped(head)}</b><table style="width:auto;font-size:inherit">` + rows.map(
    ([marker, name, value]) => `<tr><td style="border:0;padding:1px 12px 1px 0">${marker}${escaped(name)}</td>`
      + `<td style="border:0;padding:1px 0;text-align:right">${escaped(value)}</td></tr>`).join("") + "</table>";

  const hints = (unit, head, isStacked) => (params) => {
    const points = params.filter((one) => one.value[1] !== null && one.value[1] !== undefined);
    if (!points.length) return "";
    const rows = points.map((one) => [one.marker, one.seriesName, quantity(one.value[1], unit)]);
    if (isStacked && rows.length > 1) rows.push(["", "together", quantity(points.reduce((sum, one) => sum + one.value[1], 0), unit)]);
    return hint(head(points[0].value[0]), rows);
  };

  const lines = (view, places, toAxis = (x) => x) => view.lines.map((line, at) => {
    const paint = colour(line.colour || PALETTE[at % PALETTE.length]);
    const isGap = (place) => (line.values[place] ?? null) === null;
    const isAlone = (place) => !isGap(place) && isGap(place - 1) && isGap(place + 1);
    const hasAlone = line.values.some((_, place) => isAlone(place));
    return {
      type: "line", name: line.name, symbol: "circle", connectNulls: false, showAllSymbol: true,
      // A value between two gaps is a dot, because no line leads to it.
      showSymbol: hasAlone || line.values.length < 30,
      symbolSize: hasAlone ? (_, params) => (isAlone(params.dataIndex) ? 5 : 0) : 5,
      data: (line.x.length ? line.x : places).map((x, place) => {
        const value = line.values[place] ?? null;
        return [toAxis(x), view.is_log && value !== null && value <= 0 ? null : value];
      }),
      color: paint, stack: view.is_stacked ? "all" : undefined, areaStyle: view.is_stacked ? { opacity: 0.82 } : undefined,
      lineStyle: { width: view.is_stacked ? 0.5 : 1.8, type: line.is_dashed ? [5, 4] : "solid", opacity: line.is_faint ? 0.75 : 1 },
      emphasis: { disabled: true },
    };
  });

  // Labels of marks that would overlap stand above each other, at most LEVELS high.
  const LEVELS = 4;
  const levels = (spec) => {
    const width = document.querySelector(`[data-chart="${spec.id}"] .chart`).clientWidth - 90;
    const end = spec.seconds || Math.max(...spec.x);
    const taken = Array(LEVELS).fill(-Infinity);
    const found = Array(spec.marks.length).fill(0);
    spec.marks.map((mark, at) => [mark.at / end * width, mark.label.length * 3.6 + 4, at]).sort((a, b) => a[0] - b[0])
      .forEach(([middle, half, at]) => {
        const free = taken.findIndex((until) => until <= middle - half);
        found[at] = free < 0 ? LEVELS - 1 : free;
        taken[found[at]] = middle + half;
      });
    return found;
  };

  const area = (name) => (span) => [
    { xAxis: span.begin, itemStyle: { color: colour(name), opacity: 0.16 } }, { xAxis: span.end },
  ];

  // A series without data that carries what stands across the chart, so that no click in the legend hides it.
  const across = (spec, withSpans) => ({
    type: "line", name: " ", data: [], silent: true, tooltip: { show: false },
    markLine: {
      symbol: "none", animation: false,
      data: spec.marks.map((mark, at) => ({
        xAxis: mark.at, lineStyle: { color: colour(mark.colour), type: "dashed", width: 1.5 },
        label: {
          formatter: () => mark.label, position: "end", distance: 4 + 14 * levels(spec)[at], color: colour(mark.colour), fontSize: 11.5,
          fontWeight: 600,
        },
      })),
    },
    markArea: {
      data: [...(withSpans ? spec.spans.map(area("red")) : []), ...spec.bands.map(area("purple"))],
    },
  });

  const LEAST = 0.01; // of a logarithmic axis: ten microseconds
  const valueAxis = (view) => axis({
    type: view.is_log ? "log" : "value", scale: false, splitNumber: 4,
    min: view.is_log ? ({ min }) => (Number.isFinite(min) && min > 0 ? Math.max(10 ** Math.floor(Math.log10(min)), LEAST) : null) : null,
    name: view.unit === "ms" || view.unit.startsWith("B") ? "" : view.unit, nameLocation: "end", nameGap: 9,
    nameTextStyle: { ...axisText(), align: "left" },
    axisLabel: { formatter: (value) => tick(value, view.unit) },
  });
  const timeAxis = (spec) => axis({
    type: "value", min: 0, max: spec.seconds, splitLine: { show: false }, minInterval: 0.1, axisLabel: { formatter: second },
  });
  // Zoom: drag with a mouse, pinch on a touch screen. The page keeps scrolling.
  const zoom = () => ({
    dataZoom: [{
      type: "inside", filterMode: "none", zoomOnMouseWheel: isTouch, moveOnMouseMove: false, moveOnMouseWheel: false,
      preventDefaultMouseMove: false,
    }],
    toolbox: {
      show: true, itemSize: 0, showTitle: false, top: -40,
      feature: { dataZoom: { yAxisIndex: "none", filterMode: "none", brushStyle: { color: colour("blue"), opacity: 0.15, borderWidth: 0 } } },
    },
  });

  const OPTIONS = {
    time(spec, view) {
      // A value stands in the middle of its interval.
      const base = frame(spec, view, [...lines(view, spec.x, (x) => x + spec.interval / 2), across(spec, true)]);
      const head = (x) => spec.interval
        ? `${second(x - spec.interval / 2)} to ${second(x + spec.interval / 2)}` : second(x);
      Object.assign(base.tooltip, { trigger: "axis", formatter: hints(view.unit, head, view.is_stacked) });
      return { ...base, ...zoom(), xAxis: timeAxis(spec), yAxis: valueAxis(view) };
    },
    rates(spec, view) {
      const base = frame(spec, view, [...lines(view, spec.x), across(spec, false)]);
      const head = (value) => `${quantity(value, "operations/s")} offered`;
      Object.assign(base.tooltip, { trigger: "axis", formatter: hints(view.unit, head, false) });
      const offered = axis({
        type: "value", name: "offered operations/s", nameLocation: "middle", nameGap: 26, splitLine: { show: false },
        axisLabel: { formatter: (value) => scaled(value, "") },
      });
      base.grid.bottom += 16;
      return { ...base, ...zoom(), xAxis: offered, yAxis: valueAxis(view) };
    },
    quantiles(spec, view) {
      const base = frame(spec, view, lines(view, spec.x, rare));
      const head = (x) => `${Number((100 * (1 - 10 ** -x)).toPrecision(7))} % are at least as fast as`;
      Object.assign(base.tooltip, { trigger: "axis", formatter: hints(view.unit, head, false) });
      const rarest = Math.max(...base.series.flatMap((one) => one.data.map(([x]) => x)), 1);
      const steps = axis({ type: "value", min: 0, max: Math.ceil(rarest - 0.01), interval: 1, axisLabel: { formatter: quantileAt } });
      base.series.forEach((one) => { one.showSymbol = false; });
      return { ...base, ...zoom(), xAxis: steps, yAxis: valueAxis(view) };
    },
    bars(spec, view) {
      const base = frame(spec, view, view.lines.map((line, at) => ({
        type: "bar", name: line.name, stack: "all", barMaxWidth: 16, data: line.values, emphasis: { disabled: true },
        color: colour(line.colour || PALETTE[at]),
      })));
      Object.assign(base.tooltip, {
        trigger: "axis", axisPointer: { ...base.tooltip.axisPointer, type: "shadow" },
        formatter: (params) => hint(params[0].name, params.map((one) => [one.marker, one.seriesName, quantity(one.value, view.unit)])),
      });
      return { ...base, xAxis: { ...valueAxis(view), splitNumber: 3 }, yAxis: { ...rows(view.categories), inverse: true } };
    },
    spans(spec, view) {
      const bar = (params, api) => {
        const [from, y] = api.coord([api.value(0), api.value(2)]);
        const [to] = api.coord([api.value(1), api.value(2)]);
        const height = Math.min(14, api.size([0, 1])[1] * 0.6);
        const area = params.coordSys;
        const shape = echarts.graphic.clipRectByRect(
          { x: from, y: y - height / 2, width: Math.max(to - from, 2), height },
          { x: area.x, y: area.y, width: area.width, height: area.height });
        return shape && { type: "rect", shape: { ...shape, r: 2 }, style: { fill: colour("red") } };
      };
      const base = frame(spec, view, [{
        type: "custom", name: "out", renderItem: bar, encode: { x: [0, 1], y: 2 }, clip: true,
        data: spec.spans.map((span) => ({ value: [span.begin, span.end, span.row], label: span.label })),
      }, across(spec, false)]);
      Object.assign(base.tooltip, {
        trigger: "item",
        formatter: (one) => `<b>${escaped(view.categories[one.value[2]])}</b><br>${escaped(one.data.label)}<br>`
          + escaped(`from ${second(one.value[0])} to ${second(one.value[1])}`),
      });
      return { ...base, ...zoom(), xAxis: timeAxis(spec), yAxis: rows(view.categories) };
    },
  };
  const rows = (categories) => axis({
    type: "category", data: categories, splitLine: { show: false },
    axisLabel: { width: 150, overflow: "truncate", interval: 0 },
  });

  // ---- Drawing

  const draw = (one) => {
    one.chart.setOption(OPTIONS[one.spec.kind](one.spec, one.spec.views[one.view]), true);
    if (!isTouch) {
      one.chart.dispatchAction({ type: "takeGlobalCursor", key: "dataZoomSelect", dataZoomSelectActive: one.spec.kind !== "bars" });
    }
  };
  const IN_TIME = new Set(["time", "spans"]);
  const zoomAll = (source, range) => drawn.forEach((other) => {
    if (other !== source && IN_TIME.has(other.spec.kind)) other.chart.dispatchAction({ type: "dataZoom", dataZoomIndex: 0, ...range }, { silent: true });
  });
  let isZooming = false;
  let isPrinting = false;

  document.querySelectorAll("figure[data-chart]").forEach((figure) => {
    const place = figure.querySelector(".chart");
    const spec = specs.find((candidate) => candidate.id === figure.dataset.chart);
    const one = { spec, place, view: 0, chart: echarts.init(place, null, { renderer: "svg" }) };
    drawn.set(spec.id, one);
    one.chart.on("datazoom", (event) => {
      if (isZooming || !IN_TIME.has(spec.kind)) return;
      isZooming = true;
      const { startValue, endValue, start, end } = event.batch ? event.batch[0] : event;
      zoomAll(one, startValue === undefined ? { start, end } : { startValue, endValue });
      isZooming = false;
    });
    one.chart.getZr().on("dblclick", () => one.chart.dispatchAction({ type: "dataZoom", dataZoomIndex: 0, start: 0, end: 100 }));
    figure.querySelectorAll("button[data-view]").forEach((button) => button.addEventListener("click", () => {
      one.view = Number(button.dataset.view);
      figure.querySelectorAll("button[data-view]").forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
      draw(one);
    }));
    let width = place.clientWidth;
    new ResizeObserver(() => {
      if (isPrinting) return;
      one.chart.resize();
      if (place.clientWidth !== width) draw(one);
      width = place.clientWidth;
    }).observe(place);
  });

  // ---- Light and dark

  const wantsDark = matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  let chosen = null;
  try { chosen = localStorage.getItem("ottla-theme"); } catch { /* a page opened as a file may have no storage */ }
  const show = (theme) => {
    root.dataset.theme = theme;
    button.textContent = theme === "dark" ? "Light" : "Dark";
    drawn.forEach(draw);
  };
  const wanted = () => chosen || (wantsDark.matches ? "dark" : "light");
  button.hidden = false;
  button.addEventListener("click", () => {
    chosen = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("ottla-theme", chosen); } catch { /* it holds until the page is closed */ }
    show(chosen);
  });
  wantsDark.addEventListener("change", () => show(wanted()));
  show(wanted());

  // Paper is white, and narrower than a window. The style sheet fits the drawings to it.
  addEventListener("beforeprint", () => {
    isPrinting = true;
    drawn.forEach((one) => one.chart.resize({ width: 680 }));
    show("light");
    drawn.forEach((one) => one.place.querySelector("svg").setAttribute("viewBox", `0 0 680 ${one.chart.getHeight()}`));
  });
  addEventListener("afterprint", () => {
    isPrinting = false;
    drawn.forEach((one) => one.place.querySelector("svg").removeAttribute("viewBox"));
    drawn.forEach((one) => one.chart.resize({ width: "auto" }));
    show(wanted());
  });
})();
