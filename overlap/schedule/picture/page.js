"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const [view, axis, chart, names, tip] = ["view", "axis", "chart", "names", "tip"].map((id) => document.getElementById(id));
  const FIELDS = 8; // of an event: see rows.py
  const LEFT = 6, RIGHT = 24, AXIS = 30, NAMES = 176;
  const TILES = 20, GAP = 14, WIDEST = 200000;

  const byOp = new Map();
  for (let i = 0; i < data.flags.length; i += 4) {
    byOp.set(`${data.flags[i]},${data.flags[i + 1]}`, `${data.flags[i + 3]} of rank ${data.flags[i + 2]}`);
  }

  // Events, and the height at which each lane stands.
  const events = [], rowsOf = new Map(data.ranks.map((rank) => [rank, []]));
  const lanes = data.lanes.map(([rank, name, flat]) => {
    const lane = { rank, name, first: events.length, top: 0, height: TILES };
    let end = 0;
    for (let i = 0; i < flat.length; i += FIELDS) {
      const [kind, gap, length, label, chunk, opRank, opIndex, source] = flat.slice(i, i + FIELDS);
      const start = end + gap;
      end = start + length;
      const text = data.labels[label].replaceAll("\u0001", () => data.chunks[chunk]).replaceAll("\u0002", () => `${source} -> ${rank}`);
      events.push({ lane, kind: data.kinds[kind], start, end, label: text, chunk, opRank, opIndex, source, critical: false });
    }
    rowsOf.get(rank).push(lane);
    return lane;
  });
  const critical = data.critical.map(([lane, position]) => events[lanes[lane].first + position]);
  for (const event of critical) event.critical = true;
  const tops = [];
  let height = 0;
  for (const own of rowsOf.values()) {
    tops.push(height);
    let top = height + GAP / 2;
    const copies = own.filter((lane) => lane.name.startsWith("copy")).length;
    for (const lane of own) {
      if (lane.name.startsWith("copy")) lane.height = Math.max(5, Math.min(16, Math.floor(48 / copies)));
      lane.top = top;
      top += lane.height + 2;
    }
    height = Math.max(top + GAP / 2, height + 46);
  }

  const digits = data.total > 0 ? 3 - Math.floor(Math.log10(data.total * data.unit * 1e3)) : 3;
  const ms = (ticks) => (ticks * data.unit * 1e3).toFixed(Math.min(6, Math.max(1, digits)));

  const make = (parent, tag, attributes, text) => {
    const node = document.createElementNS(parent.namespaceURI, tag);
    for (const [name, value] of Object.entries(attributes)) {
      node.setAttribute(name, typeof value === "number" ? Math.round(value * 100) / 100 : value);
    }
    if (text !== undefined) node.textContent = text;
    parent.appendChild(node);
    return node;
  };

  function drawNames() {
    names.style.height = `${height}px`;
    data.ranks.forEach((rank, i) => {
      const block = make(names, "div", { class: "rank", style: `top:${tops[i]}px` });
      make(block, "b", {}, `rank ${rank}`);
      make(block, "span", {}, `exposed ${ms(data.exposed[i])} ms`);
    });
    for (const lane of lanes) {
      if (lane.height >= 10) make(names, "div", { class: "lane", style: `top:${lane.top + (lane.height - 10) / 2}px` }, lane.name);
    }
  }

  // The ms from one label of the axis to the next, 1, 2 or 5 times a power of ten, where a ms has that many pixels.
  function step(pixels) {
    const least = 80 / pixels, power = 10 ** Math.floor(Math.log10(least));
    return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= least);
  }

  let scale = 0; // pixels a tick
  let fitted = true;
  let barsOf = new Map(); // chunk -> its bars

  function draw() {
    const room = Math.max(200, view.clientWidth - NAMES - LEFT - RIGHT);
    const total = Math.max(1, data.total);
    if (fitted) scale = room / total;
    const x = (ticks) => LEFT + ticks * scale;
    const width = Math.ceil(x(total) + RIGHT);
    barsOf = new Map();
    axis.replaceChildren();
    chart.replaceChildren();
    for (const [svg, tall] of [[axis, AXIS], [chart, height]]) {
      svg.setAttribute("width", width);
      svg.setAttribute("height", tall);
    }
    const defs = make(chart, "defs", {});
    const hatch = make(defs, "pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
    make(hatch, "path", { d: "M0 0V6" });
    const dots = make(defs, "pattern", { id: "dots", width: 5, height: 5, patternUnits: "userSpaceOnUse" });
    make(dots, "circle", { cx: 2.5, cy: 2.5, r: 1 });

    if (data.total > data.tiles) {
      make(chart, "rect", { class: "gap", x: x(data.tiles), y: 0, width: (data.total - data.tiles) * scale, height });
    }
    const every = step(scale / (data.unit * 1e3)); // in ms
    const tick = every / (data.unit * 1e3);
    const shown = Math.max(0, -Math.floor(Math.log10(every) + 1e-9));
    for (let n = 0; n * tick <= total; n += 1) {
      make(chart, "line", { class: "grid", x1: x(n * tick), x2: x(n * tick), y1: 0, y2: height });
      make(axis, "line", { class: "grid", x1: x(n * tick), x2: x(n * tick), y1: 22, y2: AXIS });
      make(axis, "text", { x: x(n * tick) + (n ? 0 : -2), y: 18, "text-anchor": n ? "middle" : "start" }, n ? (n * every).toFixed(shown) : "0 ms");
    }
    for (const top of tops) make(chart, "line", { class: "grid", x1: 0, x2: width, y1: top + 0.5, y2: top + 0.5 });
    make(chart, "line", { class: "ends", x1: x(data.tiles), x2: x(data.tiles), y1: 0, y2: height });

    events.forEach((event, i) => drawEvent(event, i, x));

    // The path last, so that no bar lies over it.
    critical.forEach((event, i) => {
      const { top, height: tall } = event.lane, before = critical[i - 1];
      if (before && before.lane !== event.lane) {
        const [y1, y2] = [before.lane, event.lane].map((lane) => lane.top + lane.height / 2);
        make(chart, "path", { class: "step", d: `M${x(before.end)} ${y1}L${x(event.start)} ${y2}` });
      }
      make(chart, "rect", { class: "critical", x: x(event.start), y: top, width: Math.max(1, (event.end - event.start) * scale), height: tall });
    });
    document.documentElement.dataset.drawn = events.length;
  }

  function drawEvent(event, i, x) {
    const { top, height: tall } = event.lane, wide = (event.end - event.start) * scale;
    const box = { x: x(event.start), y: top, width: Math.max(1.5, wide), height: tall };
    const own = event.chunk < 0 && event.kind !== "flag" ? " own" : "";
    const bar = make(chart, "rect", { ...box, class: `bar ${event.kind}${own}`, "data-event": i, style: `--h:${data.hues[event.chunk] ?? 0}` });
    if (event.chunk >= 0) {
      if (!barsOf.has(event.chunk)) barsOf.set(event.chunk, []);
      barsOf.get(event.chunk).push(bar);
    }
    if (event.kind === "wait" && wide > 0) make(chart, "rect", { ...box, class: "hatch" });
    if (event.kind === "sum" && wide > 0) make(chart, "rect", { ...box, class: "dots" });
    if (tall < 12 || event.kind === "wait" || event.kind === "flag") return;
    const text = worded(event, Math.floor((wide - 8) / 6));
    if (text) make(chart, "text", { class: "on-bar", x: x(event.start) + 4, y: top + tall / 2 + 4 }, text);
  }

  // The label where it fits, else where the data is from, which is shorter, else what fits of the label.
  function worded({ label, source, lane }, letters) {
    if (label.length <= letters) return label;
    if (source >= 0 && source !== lane.rank) return [`rank ${source}`, `${source}`].find((text) => text.length <= letters);
    return letters < 4 ? "" : `${label.slice(0, letters - 1)}\u2026`;
  }

  function tell(event, at) {
    tip.replaceChildren();
    make(tip, "b", {}, event.label);
    const op = event.opRank >= 0;
    const lines = [
      ["what", event.kind + (event.critical ? ", on the critical path" : "")],
      ["where", `rank ${event.lane.rank}, ${event.lane.name}`],
      ["chunk", event.chunk >= 0 ? data.chunks[event.chunk] : ""],
      ["flag", op ? byOp.get(`${event.opRank},${event.opIndex}`) ?? "" : ""],
      ["operation", op ? `${event.opIndex} of rank ${event.opRank}` : ""],
      ["from", event.source >= 0 ? `rank ${event.source}` : ""],
      ["time", `${ms(event.start)} to ${ms(event.end)} ms`],
      ["length", `${ms(event.end - event.start)} ms`],
    ];
    for (const [name, value] of lines) {
      if (!value) continue;
      const line = make(tip, "div", {});
      make(line, "span", {}, name);
      make(line, "span", {}, value);
    }
    tip.hidden = false;
    const { width, height: tall } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(at.clientX + 14, window.innerWidth - width - 8))}px`;
    tip.style.top = `${at.clientY + 18 + tall > window.innerHeight ? Math.max(4, at.clientY - tall - 10) : at.clientY + 18}px`;
  }

  let lit = -1;
  function light(chunk) {
    if (chunk === lit) return;
    for (const bar of barsOf.get(lit) ?? []) bar.classList.remove("lit");
    for (const bar of barsOf.get(chunk) ?? []) bar.classList.add("lit");
    chart.classList.toggle("chosen", chunk >= 0);
    lit = chunk;
  }

  chart.addEventListener("pointermove", (at) => {
    const event = events[at.target.dataset.event];
    light(event ? event.chunk : -1);
    if (event) tell(event, at);
    else tip.hidden = true;
  });
  chart.addEventListener("pointerleave", () => {
    light(-1);
    tip.hidden = true;
  });

  // The time under the middle of the view (or under the pointer) stays where it is.
  function zoom(factor, at) {
    const room = view.clientWidth - NAMES;
    const offset = at === undefined ? room / 2 : at;
    const ticks = (view.scrollLeft + offset - LEFT) / scale;
    const least = Math.max(200, room - LEFT - RIGHT) / Math.max(1, data.total);
    scale = Math.min(WIDEST / Math.max(1, data.total), Math.max(least, scale * factor));
    fitted = scale <= least;
    light(-1);
    draw();
    view.scrollLeft = LEFT + ticks * scale - offset;
  }
  document.getElementById("in").addEventListener("click", () => zoom(2));
  document.getElementById("out").addEventListener("click", () => zoom(0.5));
  document.getElementById("fit").addEventListener("click", () => zoom(0));
  view.addEventListener("wheel", (at) => {
    if (!at.ctrlKey) return;
    at.preventDefault();
    zoom(at.deltaY < 0 ? 1.25 : 0.8, at.clientX - view.getBoundingClientRect().left - NAMES);
  }, { passive: false });
  window.addEventListener("resize", () => { if (fitted) draw(); });

  drawNames();
  draw();
})();
