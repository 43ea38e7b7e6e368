"use strict";
// Texts reach the page by textContent only, so that no name, reason or payload is ever markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const words = data.words;
  const NOTHING = "–";
  const PAGE_SIZES = [25, 100, 500];
  const TEXTS = new Set(["text", "id", "transaction", "list"]);

  function make(name, attributes = {}, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (value === true) element.setAttribute(key, "");
      else if (value !== false && value != null) element.setAttribute(key, value);
    }
    element.append(...children);
    return element;
  }

  const counted = (value) => value.toLocaleString("en-US");
  const at = (ms) => new Date(ms).toISOString().replace("T", " ").replace("Z", "");

  function seconds(value) {
    if (value < 120) return `${Math.round(value * 1000) / 1000} s`;
    if (value < 7200) return `${Math.round(value / 6) / 10} min`;
    if (value < 172800) return `${Math.round(value / 360) / 10} h`;
    return `${Math.round(value / 8640) / 10} d`;
  }

  function told(value, kind) {
    if (value == null) return NOTHING;
    if (kind === "list") return value.map((one) => words[one]).join(", ");
    if (TEXTS.has(kind)) return words[value];
    if (kind === "at") return at(value);
    if (kind === "seconds") return seconds(value);
    return kind === "commit" ? String(value) : counted(value);
  }

  // ------------------------------------------------------------------ long tables, page by page

  const filters = document.getElementById("filters");
  const tables = [];

  class LongTable {
    constructor(place) {
      const source = data.tables[place.dataset.table];
      Object.assign(this, { place, caption: source.caption, columns: source.columns });
      this.cells = source.cells;
      this.length = this.cells[0].length;
      this.found = null;
      this.order = null;
      this.page = 0;
      this.size = PAGE_SIZES[0];
      this.own = new Map();
      if (this.length) {
        this.build();
        this.filter();
      } else {
        place.append(make("p", { class: "quiet" }, `${this.caption}: there are none.`));
      }
    }

    build() {
      const tools = make("div", { class: "tools" });
      this.columns.forEach((column, index) => {
        if (!column.choose) return;
        const select = make("select", {}, make("option", { value: "" }, "all"));
        const known = [...new Set(this.cells[index])].filter((one) => one != null);
        known.sort((a, b) => (words[a] < words[b] ? -1 : 1));
        for (const one of known) select.append(make("option", { value: one }, words[one]));
        select.addEventListener("change", () => {
          this.own.set(index, select.value);
          this.filter();
        });
        tools.append(make("label", {}, `${column.label} `, select));
      });
      this.status = make("span", { role: "status", class: "quiet" });
      const size = make("select");
      for (const one of PAGE_SIZES) size.append(make("option", { value: one }, String(one)));
      size.addEventListener("change", () => {
        this.size = Number(size.value);
        this.show(0);
      });
      const step = (label, where) => {
        const button = make("button", { class: "do", type: "button" }, label);
        button.addEventListener("click", () => this.show(where()));
        return button;
      };
      this.back = step("Previous", () => this.page - 1);
      this.on = step("Next", () => this.page + 1);
      tools.append(make("label", {}, "rows ", size), this.back, this.on, this.status);
      const head = make("tr");
      this.heads = this.columns.map((column, index) => {
        const button = make("button", { type: "button" }, column.label);
        button.addEventListener("click", () => this.sort(index));
        const cell = make("th", { scope: "col", class: shape(column) }, button);
        head.append(cell);
        return cell;
      });
      this.body = make("tbody");
      const table = make("table", { class: "rows" }, make("caption", {}, this.caption));
      table.append(make("thead", {}, head), this.body);
      const scroll = { class: "scroll", tabindex: "0", role: "region", "aria-label": this.caption };
      this.place.append(tools, make("div", scroll, table));
    }

    filter() {
      const wanted = [...this.own].filter(([, value]) => value !== "");
      const fixed = wanted.map(([index, value]) => [index, Number(value)]);
      for (const name of ["queue", "run_id", "actor"]) {
        const value = filters.elements[name].value;
        const index = this.columns.findIndex((column) => column.name === name);
        if (value !== "" && index >= 0) fixed.push([index, Number(value)]);
        if (value !== "" && index < 0 && name === "queue") {
          const list = this.columns.findIndex((column) => column.kind === "list");
          if (list >= 0) fixed.push([list, Number(value)]);
        }
      }
      const text = filters.elements.text.value.trim().toLowerCase();
      const hits = text ? words.map((word) => word.toLowerCase().includes(text)) : null;
      const found = [];
      for (let row = 0; row < this.length; row++) {
        const kept = fixed.every(([index, value]) => {
          const cell = this.cells[index][row];
          return Array.isArray(cell) ? cell.includes(value) : cell === value;
        });
        if (kept && (!hits || this.has(row, hits, text))) found.push(row);
      }
      this.found = found;
      this.arrange();
    }

    has(row, hits, text) {
      return this.columns.some(({ kind }, index) => {
        const cell = this.cells[index][row];
        if (cell == null) return false;
        if (kind === "list") return cell.some((one) => hits[one]);
        return TEXTS.has(kind) ? hits[cell] : kind === "commit" && String(cell) === text;
      });
    }

    sort(index) {
      const down = this.order && this.order.index === index && !this.order.down;
      this.order = { index, down: Boolean(down) };
      this.heads.forEach((head, one) => {
        if (one === index) head.setAttribute("aria-sort", down ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
        const mark = one === index ? (down ? " ▼" : " ▲") : "";
        head.firstChild.textContent = this.columns[one].label + mark;
      });
      this.arrange();
    }

    arrange() {
      this.rows = this.found;
      if (this.order) {
        const { index, down } = this.order;
        const cells = this.cells[index];
        const text = TEXTS.has(this.columns[index].kind);
        const value = (row) => {
          const cell = cells[row];
          if (cell == null) return text ? "" : -Infinity;
          return Array.isArray(cell) ? told(cell, "list") : text ? words[cell] : cell;
        };
        const sign = down ? -1 : 1;
        this.rows = [...this.found].sort((a, b) => {
          const [one, other] = [value(a), value(b)];
          return one < other ? -sign : one > other ? sign : a - b;
        });
      }
      this.show(0);
    }

    show(page) {
      const last = Math.max(0, Math.ceil(this.rows.length / this.size) - 1);
      this.page = Math.min(Math.max(0, page), last);
      const from = this.page * this.size;
      const shown = this.rows.slice(from, from + this.size);
      this.body.replaceChildren(...shown.map((row) => this.line(row)));
      this.back.disabled = this.page === 0;
      this.on.disabled = this.page === last;
      const of = this.rows.length === this.length ? "" : ` (of ${counted(this.length)})`;
      this.status.textContent = shown.length
        ? `${counted(from + 1)} to ${counted(from + shown.length)} of ${counted(this.rows.length)}${of}`
        : `none${of}`;
    }

    line(row) {
      const line = make("tr");
      this.columns.forEach((column, index) => {
        const value = this.cells[index][row];
        const cell = make("td", { class: shape(column) });
        if (column.kind === "transaction" && value != null) {
          const button = make("button", { type: "button", class: "link" }, words[value]);
          button.addEventListener("click", () => follow(value));
          cell.append(button);
        } else {
          cell.append(make("bdi", {}, told(value, column.kind)));
        }
        line.append(cell);
      });
      return line;
    }
  }

  function shape({ kind, choose }) {
    if (choose) return "k";
    if (kind === "count" || kind === "seconds" || kind === "commit") return "n";
    if (kind === "at") return "t";
    if (kind === "list") return "l";
    return kind === "id" || kind === "transaction" ? "id" : null;
  }

  // ----------------------------------------------------------------- a transaction's timeline

  const columnsOf = (name) => {
    const { columns, cells } = data.tables[name];
    return Object.fromEntries(columns.map((column, index) => [column.name, cells[index]]));
  };

  function follow(word) {
    const way = document.getElementById("way");
    const heading = document.getElementById("timeline");
    const input = document.getElementById("transaction");
    input.value = words[word] ?? input.value;
    const events = columnsOf("events");
    const rows = [];
    events.transaction_id.forEach((one, row) => {
      if (one === word) rows.push(row);
    });
    if (!rows.length) {
      way.replaceChildren(make("p", {}, "No entry of this transaction is listed on this page."));
      return;
    }
    const attempts = columnsOf("attempts");
    const told_of = [];
    attempts.transaction_id.forEach((one, row) => {
      if (one !== word) return;
      const who = [attempts.actor[row], attempts.run_id[row]].filter((x) => x != null);
      const reason = attempts.reason[row] == null ? "" : `, because: ${words[attempts.reason[row]]}`;
      const by = who.map((x) => words[x]).join(", run ");
      told_of.push(make("p", {}, make("bdi", {}, `${words[attempts.status[row]]} by ${by}${reason}`)));
    });
    const start = Math.min(...rows.map((row) => events.at[row]));
    const table = make("table", { class: "rows" });
    table.append(make("caption", {}, `What transaction ${words[word]} wrote, in commit order`));
    const head = make("tr");
    for (const [name, kind] of [
      ["step", null], ["commit", "n"], ["time (UTC)", "t"], ["after", "n"],
      ["queue or table", null], ["lane", "n"], ["messages", "n"], ["reason", null],
    ]) {
      head.append(make("th", { scope: "col", class: kind }, name));
    }
    const body = make("tbody");
    for (const row of rows) {
      const line = make("tr", {}, make("th", { scope: "row" }, words[events.kind[row]]));
      for (const [text, kind] of [
        [told(events.commit_seq[row], "commit"), "n"],
        [at(events.at[row]), "t"],
        [seconds((events.at[row] - start) / 1000), "n"],
        [told(events.queue[row] ?? events.table[row], "text"), null],
        [told(events.lane[row], "count"), "n"],
        [told(events.count[row], "count"), "n"],
        [told(events.reason[row], "text"), null],
      ]) {
        line.append(make("td", { class: kind }, make("bdi", {}, text)));
      }
      body.append(line);
    }
    table.append(make("thead", {}, head), body);
    const label = `Steps of transaction ${words[word]}`;
    const scroll = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table);
    way.replaceChildren(...told_of, picture(rows, events, start), scroll);
    heading.focus({ preventScroll: true });
    heading.scrollIntoView({ block: "start" });
    history.replaceState(null, "", `#transaction=${encodeURIComponent(words[word])}`);
  }

  function picture(rows, events, start) {
    const space = "http://www.w3.org/2000/svg";
    const draw = (name, attributes, text) => {
      const element = document.createElementNS(space, name);
      for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
      if (text) element.textContent = text;
      return element;
    };
    const svg = draw("svg", { class: "way", viewBox: "0 0 960 88", "aria-hidden": "true" });
    const whole = Math.max(...rows.map((row) => events.at[row])) - start;
    const steps = [...new Set(rows.map((row) => `${events.at[row]} ${words[events.kind[row]]}`))];
    svg.append(draw("line", { x1: 30, x2: 930, y1: 44, y2: 44 }));
    const ends = [-Infinity, -Infinity, -Infinity, -Infinity];
    for (const step of steps.slice(0, 200)) {
      const [when, ...kind] = step.split(" ");
      const x = 30 + (whole ? ((Number(when) - start) / whole) * 900 : 0);
      svg.append(draw("circle", { cx: x, cy: 44, r: 5 }));
      const label = kind.join(" ");
      const anchor = x > 800 ? "end" : "start";
      const left = anchor === "end" ? x - label.length * 7 : x - 4;
      const level = ends.findIndex((end) => end < left);
      if (level < 0) continue; // the table has it
      ends[level] = left + label.length * 7 + 8;
      svg.append(draw("text", { x: anchor === "end" ? x + 4 : left, y: [32, 64, 16, 80][level], "text-anchor": anchor }, label));
    }
    return svg;
  }

  // ---------------------------------------------------------------------------------- charts

  const LINES = [
    ["available", "available", 1, []],
    ["delayed", "delayed", 2, [9, 4]],
    ["in_flight", "in flight", 3, [2, 3]],
    ["expired", "expired", 5, [9, 3, 2, 3]],
  ];
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function chart(place, title, x, lines, values) {
    place.replaceChildren();
    const axis = {
      stroke: color("--quiet"),
      grid: { stroke: color("--faint"), width: 1 },
      ticks: { stroke: color("--faint") },
      font: "13px system-ui, DejaVu Sans, sans-serif",
    };
    const borders = ["solid", ...lines.map((line) => (!line[2].length ? "solid" : line[2][0] < 4 ? "dotted" : "dashed"))];
    const whole = (u, splits) => splits.map((one) => (Number.isInteger(one) ? String(one) : ""));
    const plot = new uPlot(
      {
        title,
        width: Math.max(320, place.clientWidth),
        height: 260,
        scales: { x: { time: false } },
        legend: { markers: { width: 3, dash: (u, one) => borders[one] } },
        axes: [
          { ...axis, label: "commit", values: whole, size: 45, labelSize: 20 },
          { ...axis, size: 75, values: (u, splits) => splits.map(values) },
        ],
        series: [
          { label: "commit", value: (u, value) => (value == null ? NOTHING : String(value)) },
          ...lines.map(([label, number, dash]) => ({
            label,
            stroke: color(`--series-${number}`),
            width: 2,
            dash,
            paths: uPlot.paths.stepped({ align: 1 }),
            points: { show: x.length < 60, size: 6 },
            value: (u, value) => (value == null ? NOTHING : values(value)),
          })),
        ],
      },
      [x, ...lines.map((line) => line[3])],
      place,
    );
    plot.root.querySelector("canvas").setAttribute("role", "img");
    plot.root.querySelector("canvas").setAttribute("aria-label", `${title}; the table below has its figures`);
  }

  function drawCharts() {
    const select = document.getElementById("chart-queue");
    const points = columnsOf("depths");
    const rows = [];
    points.queue.forEach((one, row) => {
      if (one === Number(select.value)) rows.push(row);
    });
    const places = ["chart-depth", "chart-age"].map((id) => document.getElementById(id));
    if (!rows.length) {
      places[0].replaceChildren(make("p", { class: "quiet" }, "There is nothing to draw."));
      places[1].replaceChildren();
      return;
    }
    const name = words[Number(select.value)];
    const pick = (column) => rows.map((row) => points[column][row]);
    const x = pick("commit_seq");
    const lines = LINES.map(([column, label, number, dash]) => [label, number, dash, pick(column)]);
    chart(places[0], `Messages in ${name}, by state`, x, lines, counted);
    const ages = [["oldest available", 4, [], pick("oldest_age_seconds")]];
    chart(places[1], `Age of the oldest available message in ${name}`, x, ages, seconds);
  }

  // ------------------------------------------------------------------------------------ begin

  function begin() {
    for (const [name, known] of Object.entries(data.filters)) {
      const select = filters.elements[name];
      for (const one of known) select.append(make("option", { value: one }, words[one]));
    }
    const queue = document.getElementById("chart-queue");
    for (const one of data.charted) queue.append(make("option", { value: one }, words[one]));
    for (const place of document.querySelectorAll("[data-table]")) {
      const table = new LongTable(place);
      if (table.length) tables.push(table);
    }
    let waiting = 0;
    const refilter = () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => tables.forEach((table) => table.filter()), 120);
    };
    filters.addEventListener("input", refilter);
    filters.addEventListener("reset", () => setTimeout(refilter));
    filters.addEventListener("submit", (event) => event.preventDefault());
    queue.addEventListener("change", drawCharts);
    document.getElementById("choose").addEventListener("submit", (event) => {
      event.preventDefault();
      follow(words.indexOf(document.getElementById("transaction").value.trim()));
    });
    const hash = /^#transaction=(.+)$/.exec(location.hash);
    drawCharts();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
    let width = innerWidth;
    addEventListener("resize", () => {
      if (innerWidth !== width) drawCharts();
      width = innerWidth;
    });
    if (hash) follow(words.indexOf(decodeURIComponent(hash[1])));
  }

  begin();
})();
