"use strict";
const RUNS = JSON.parse(document.getElementById("data").textContent);
const OUTCOMES = ["right", "wrong", "tie", "failed"];

// -- elements --------------------------------------------------------------------------------------------------------
// What comes from a file is set as text or as an attribute, never as markup.
function el(name, properties, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(properties || {})) {
    if (value === null || value === undefined) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "share") node.style.setProperty("--share", Math.max(0, Math.min(1, value || 0)));
    else node.setAttribute(key, value);
  }
  node.append(...children.flat(2).filter((child) => child !== null && child !== undefined));
  return node;
}
function svg(name, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}
const at = (id) => document.getElementById(id);
const known = (value) => value !== null && value !== undefined;
const percent = (value) => (known(value) ? (100 * value).toFixed(2) : "–");
const interval = (figure) => (known(figure.low) ? `${percent(figure.low)} to ${percent(figure.high)}` : "");
const number = (value) => (Number.isInteger(value) ? value.toLocaleString("en") : Number(value).toPrecision(4));
function operations(value) {
  const step = Math.max(0, Math.min(5, Math.floor(Math.log10(Math.max(value, 1)) / 3)));
  return `${(value / 1000 ** step).toPrecision(3)} ${["", "k", "M", "G", "T", "P"][step]}`.trim();
}
const sumOf = (values) => values.reduce((sum, value) => sum + value, 0);
const nameOf = (run) => `${run.benchmark.title}: ${run.judge.name}`;

const words = (text, kind) => el("p", { class: kind }, text);
const pre = (text) => el("pre", {}, text);
const button = (text, onclick, properties) => el("button", { type: "button", onclick, ...properties }, text);
const folded = (title, ...children) => el("details", {}, el("summary", {}, title), ...children);

function figureCell(figure, shaded = false) {
  const text = figure ? interval(figure) : "";
  return el("td", shaded ? { share: figure && figure.value } : {}, percent(figure && figure.value),
    text ? el("span", { class: "interval" }, text) : null);
}
function table(label, head, rows, kind = "") {
  const cell = (value, column) => (column ? el("td", {}, String(value ?? "")) : el("th", { scope: "row" }, String(value ?? "")));
  const cells = (row) => row.map((value, column) => (value instanceof Node ? value : cell(value, column)));
  return el("div", { class: "wide" }, el("table", { class: kind, "aria-label": label },
    el("thead", {}, el("tr", {}, head.map((name, column) => (name ? el("th", { scope: "col" }, name) : el("td"))))),
    el("tbody", {}, rows.map((row) => el("tr", {}, cells(row))))));
}
function bars(distribution) {
  return Object.entries(distribution).map(([name, share]) => el("div", { class: "bar" },
    el("span", { title: name }, name), el("i", { share }), el("span", {}, percent(share))));
}

// -- results ---------------------------------------------------------------------------------------------------------
function drawResults() {
  const place = at("results"), measured = RUNS.filter((run) => run.headline);
  at("intro").textContent = measured.length
    ? "Shares in percent, 95 % intervals from a bootstrap over questions. Ties and failed verdicts are never half right."
    : "What a judge said, and how each reward came about.";
  if (measured.length > 1)
    place.append(el("h2", {}, "Runs"), table("Runs", ["", "%", "questions", "new tokens a question", "seconds a question"],
      measured.map((run) => [
        el("th", { scope: "row" }, nameOf(run), el("span", { class: "interval" }, run.headline.name)),
        figureCell(run.headline), run.data.questions,
        run.figures.cost.new_tokens_per_question.toFixed(1), run.figures.cost.seconds_per_question.toFixed(3)])));
  for (const run of RUNS) drawRun(place, run);
}
function drawRun(place, run) {
  place.append(el("h2", {}, nameOf(run)));
  if (run.headline)
    place.append(el("p", { class: "headline" }, `${run.headline.name}: ${percent(run.headline.value)} % `,
      el("span", { class: "interval" }, `${interval(run.headline)}, over ${run.data.questions} questions`)),
      el("p", {}, run.beaten));
  for (const note of run.notes) place.append(words(`Note: ${note}`, "note"));
  const parts = run.tables.map((part) => [part.title, part.title === "RM-Bench, styles" ? heat(part) : plain(part)]);
  if (run.rivals.length) parts.push(["Rivals", rivals(run)]);
  if (run.figures) parts.push(["What happened, and what the judge leans on", happened(run.figures)]);
  else parts.push(["What happened", counted(run.items)]);
  const said = () => run.items.flatMap((item) => item.asks.map((ask) => ask.verdict));
  const verdicts = Object.entries(run.figures ? run.figures.verdicts : counts(said()));
  const total = sumOf(verdicts.map(([, count]) => count));
  const shares = Object.fromEntries(verdicts.slice(0, 12).map(([name, count]) => [name, count / total]));
  if (total) parts.push(["Verdicts", el("div", { class: "verdicts" }, bars(shares))]);
  place.append(el("div", { class: "tables" },
    parts.map(([title, drawing]) => el("div", {}, el("h3", {}, title), drawing))));
}
function plain(part) {
  const rows = part.rows.map((row) => [row.label, row.n, ...row.values.map((figure) => figureCell(figure))]);
  return table(part.title, ["", "n", ...part.columns], rows);
}
function heat(part) {
  const rows = part.rows.map((row) => [row.label, ...row.values.map((figure) => figureCell(figure, true))]);
  return table(part.title, ["", ...part.columns], rows, "heat");
}
function rivals(run) {
  return table("Rivals", ["", run.headline.name, "ahead, points"], run.rivals.map((rival) => rival.reason
    ? [rival.name, el("td", { class: "soft", title: rival.reason }, "not applicable"), ""]
    : [rival.name, figureCell(rival.headline), figureCell(rival.ahead)]));
}
function happened(figures) {
  const { length, sureness, comparisons, outcomes } = figures;
  const routes = Object.entries(figures.right_by_route).map(([route, figure]) => [`right on route ${route}`, figure]);
  const shares = {
    "orders that disagree": figures.position_flips,
    "prefers the longer answer": length.prefers_longer,
    "right where the better answer is longer": length.right_where_better_is_longer,
    "right where the worse answer is longer": length.right_where_worse_is_longer,
    "right at equal length": length.right_at_equal_length,
    ...Object.fromEntries(routes),
    "AUROC of consensus for right": sureness.auroc,
    "sure, of the wrong": sureness.false_sure,
    "not sure, of the right": sureness.false_unsure,
  };
  const measured = Object.entries(shares).filter(([, figure]) => figure && known(figure.value));
  return table("What happened", ["", "n", "%"], [
    ...OUTCOMES.map((name) => [name, outcomes[name], percent(comparisons ? outcomes[name] / comparisons : null)]),
    ...measured.map(([name, figure]) => [name, figure.n ?? "", figureCell(figure)]),
  ]);
}
function counts(values) {
  const found = {};
  for (const value of values) if (known(value)) found[value] = (found[value] || 0) + 1;
  return Object.fromEntries(Object.entries(found).sort((one, other) => other[1] - one[1]));
}
function counted(items) {
  const asks = items.flatMap((item) => item.asks), rewards = asks.map((ask) => ask.reward).filter(known);
  const rows = (word, values) =>
    Object.entries(counts(values)).map(([name, count]) => [`${word} ${name}`, count, percent(count / asks.length)]);
  const status = rows("status", asks.map((ask) => ask.status ?? "ok")), route = rows("route", asks.map((ask) => ask.route));
  return [table("What happened", ["", "n", "%"], [...status, ...route]),
    rewards.length ? words(`Mean reward: ${number(sumOf(rewards) / rewards.length)}`) : null];
}

// -- charts ----------------------------------------------------------------------------------------------------------
const W = 380, H = 270, LEFT = 32, RIGHT = 12, TOP = 22, BOTTOM = 36;
const X = (share) => LEFT + share * (W - RIGHT - LEFT), Y = (share) => H - BOTTOM - share * (H - BOTTOM - TOP);
const COSTS = { "new tokens": (cost) => cost.new_tokens_per_question, operations: (cost) => cost.flops_per_question,
  seconds: (cost) => cost.seconds_per_question };

function frame(title, across, up) {
  const drawing = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": title });
  for (const share of [0, 0.25, 0.5, 0.75, 1])
    drawing.append(svg("line", { class: "axis", x1: X(0), x2: X(1), y1: Y(share), y2: Y(share) }),
      svg("text", { x: X(0) - 6, y: Y(share) + 4, "text-anchor": "end" }, (100 * share).toFixed(0)));
  drawing.append(svg("text", { x: X(0.5), y: H - 4, "text-anchor": "middle" }, across));
  drawing.append(svg("text", { x: 2, y: 12 }, up));
  return drawing;
}
function drawCharts() {
  const place = at("charts"), measured = RUNS.filter((run) => run.headline && known(run.headline.value));
  const sure = RUNS.filter((run) => run.figures && run.figures.by_consensus.length);
  if (measured.length + sure.length === 0) { document.querySelector("nav [href='#charts']").remove(); return; }
  const costs = Object.keys(COSTS).filter((name) => {
    const values = measured.map((run) => COSTS[name](run.figures.cost));
    return values.every(known) && values.some((value) => value > 0);
  });
  const trade = el("div", { class: "charts", id: "trade" });
  const titles = [...new Set(measured.map((run) => run.benchmark.title))];
  const draw = (name) => trade.replaceChildren(...titles.map((title) =>
    el("div", {}, el("h3", {}, title), pareto(measured.filter((run) => run.benchmark.title === title), name))));
  place.append(el("h2", {}, "Charts"));
  if (costs.length) {
    const select = el("select", { id: "cost", onchange: () => draw(select.value) }, costs.map((name) => el("option", {}, name)));
    place.append(el("div", { class: "tools" }, el("label", {}, "Accuracy against cost in ", select, " a question")), trade);
    draw(costs[0]);
  }
  if (sure.length)
    place.append(el("h3", {}, "Reliability: is consensus worth its name?"), el("div", { class: "charts" },
      sure.map((run) => el("div", {}, el("h4", {}, nameOf(run)), reliability(run.figures.by_consensus)))));
}
function pareto(runs, name) {
  const cost = (run) => COSTS[name](run.figures.cost), value = (run) => run.headline.value;
  const most = Math.max(...runs.map(cost)), x = (run) => X(most ? (0.9 * cost(run)) / most : 0), y = (run) => Y(value(run));
  const drawing = frame(`Accuracy against ${name} a question`, `${name} a question`, `${runs[0].headline.name}, %`);
  const shown = name === "operations" ? operations : number;
  drawing.append(svg("text", { x: X(0), y: Y(0) + 16 }, "0"));
  if (most) drawing.append(svg("text", { x: X(0.9), y: Y(0) + 16, "text-anchor": "middle" }, shown(most)));
  const beats = (one, other) => cost(one) <= cost(other) && value(one) >= value(other)
    && (cost(one) < cost(other) || value(one) > value(other));
  const beaten = (run) => runs.some((other) => beats(other, run));
  const front = runs.filter((run) => !beaten(run)).sort((one, other) => cost(one) - cost(other));
  const steps = front.map((run, place) => (place ? `H${x(run)}V${y(run)}` : `M${x(run)},${y(run)}`));
  drawing.append(svg("path", { class: "curve", d: `${steps.join("")}H${X(1)}` }));
  bestRival(drawing, runs);
  for (const run of runs) {
    const { low, high } = run.headline;
    if (known(low)) drawing.append(svg("line", { class: "spread", x1: x(run), x2: x(run), y1: Y(low), y2: Y(high) }));
    const dot = svg("circle", { class: beaten(run) ? "dot behind" : "dot", cx: x(run), cy: y(run), r: 5 });
    dot.append(svg("title", {}, `${nameOf(run)}: ${percent(value(run))} % at ${shown(cost(run))} ${name}`));
    drawing.append(dot);
  }
  drawLabels(drawing, runs.map((run) => ({ x: x(run), y: y(run) - 7, text: run.judge.name })));
  return drawing;
}
// Rivals write nothing: whatever they reach is free, so a judge below the line is not worth its cost.
function bestRival(drawing, runs) {
  const found = runs.flatMap((run) => run.rivals).filter((rival) => rival.headline && known(rival.headline.value));
  if (!found.length) return;
  const best = found.reduce((one, other) => (other.headline.value > one.headline.value ? other : one));
  const y = Y(best.headline.value);
  drawing.append(svg("line", { class: "rival", x1: X(0), x2: X(1), y1: y, y2: y }));
  drawing.append(svg("text", { x: X(0) + 4, y: y - 4 }, `best rival: ${best.name}`));
}
function drawLabels(drawing, labels) {
  let last = -Infinity;
  for (const label of labels.sort((one, other) => one.y - other.y)) {
    const text = label.text.length > 30 ? `…${label.text.slice(-29)}` : label.text;
    const side = label.x > W / 2 ? { x: label.x - 8, "text-anchor": "end" } : { x: label.x + 8 };
    last = Math.max(label.y, last + 13);
    drawing.append(svg("text", { class: "name", y: last, ...side }, text));
  }
}
function reliability(bins) {
  const drawing = frame("Share of right verdicts at each consensus", "consensus, %", "right, %");
  const most = Math.max(...bins.map((bin) => bin.n)), steps = bins.map((bin) => `${X(bin.consensus)},${Y(bin.right)}`);
  drawing.append(svg("line", { class: "diagonal", x1: X(0), y1: Y(0), x2: X(1), y2: Y(1) }));
  drawing.append(svg("path", { class: "curve", d: `M${steps.join("L")}` }));
  for (const bin of bins) {
    const r = 3 + 6 * Math.sqrt(bin.n / most), dot = svg("circle", { class: "dot", cx: X(bin.consensus), cy: Y(bin.right), r });
    dot.append(svg("title", {}, `${bin.n} comparisons: consensus ${percent(bin.consensus)} %, right ${percent(bin.right)} %`));
    drawing.append(dot);
  }
  for (const share of [0, 0.5, 1])
    drawing.append(svg("text", { x: X(share), y: Y(0) + 16, "text-anchor": "middle" }, (100 * share).toFixed(0)));
  const rows = bins.map((bin) => [percent(bin.consensus), bin.n, percent(bin.right)]);
  return [drawing, folded("As a table", table("Reliability", ["consensus, %", "n", "right, %"], rows))];
}

// -- items -----------------------------------------------------------------------------------------------------------
const MORE = 100;
const is = (outcome) => (item) => item.outcome === outcome;
const FILTERS = { wrong: is("wrong"), tie: is("tie"), failed: is("failed"), right: is("right"),
  long: (item) => item.asks.some((ask) => ask.route === "long"), flipped: (item) => item.flipped,
  truncated: (item) => item.asks.some((ask) => ask.truncated) };
const state = { run: 0, filters: new Set(), subset: "", text: "", item: null, shown: MORE };
const searched = new WeakMap();

function textOf(prompt) {
  const content = (message) => (typeof message.content === "string" ? message.content : JSON.stringify(message.content));
  return typeof prompt === "string" ? prompt : prompt.map((one) => `${one.role}: ${content(one)}`).join("\n\n");
}
function searchable(item) {
  if (!searched.has(item))
    searched.set(item, [item.id, textOf(item.prompt), ...item.responses].join("\n").toLowerCase());
  return searched.get(item);
}
// Outcomes add up: a click on `wrong` and `failed` shows both. Everything else narrows.
function kept() {
  const outcomes = OUTCOMES.filter((name) => state.filters.has(name));
  const others = [...state.filters].filter((name) => !OUTCOMES.includes(name));
  return RUNS[state.run].items.filter((item) => (!outcomes.length || outcomes.includes(item.outcome))
    && others.every((name) => FILTERS[name](item)) && (!state.subset || item.subset === state.subset)
    && (!state.text || searchable(item).includes(state.text)));
}
function readAddress() {
  const found = new URLSearchParams(location.hash.slice(1));
  if (!["run", "filter", "item"].some((name) => found.has(name))) return false;
  state.run = Math.min(RUNS.length - 1, Math.max(0, Number(found.get("run")) || 0));
  state.filters = new Set((found.get("filter") || "").split(",").filter((name) => Object.hasOwn(FILTERS, name)));
  state.item = found.get("item");
  return true;
}
function writeAddress() {
  const found = new URLSearchParams({ run: state.run, filter: [...state.filters].join(",") });
  if (state.item !== null) found.set("item", state.item);
  history.replaceState(null, "", `#${found}`);
}
function startItems() {
  at("run").append(...RUNS.map((run, place) => el("option", { value: place }, nameOf(run))));
  at("run").hidden = RUNS.length < 2;
  at("run").addEventListener("change", (event) => {
    Object.assign(state, { run: Number(event.target.value), subset: "", filters: new Set() });
    narrow();
  });
  at("subset").addEventListener("change", (event) => { state.subset = event.target.value; narrow(); });
  let waiting;
  at("search").addEventListener("input", (event) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { state.text = event.target.value.toLowerCase(); narrow(); }, 150);
  });
  addEventListener("hashchange", () => { if (readAddress()) { drawTools(); drawList(); } });
  drawTools();
  drawList();
}
function narrow() {
  Object.assign(state, { item: null, shown: MORE });
  writeAddress();
  drawTools();
  drawList();
}
function drawTools() {
  const items = RUNS[state.run].items, names = [...new Set(items.map((item) => item.subset))];
  const options = names.map((name) => el("option", { value: name }, name));
  at("run").value = state.run;
  at("subset").replaceChildren(el("option", { value: "" }, "all subsets"), ...options);
  at("subset").value = state.subset;
  at("subset").hidden = names.length < 2;
  const always = ["failed", "long", ...(items.some((item) => item.outcome) ? ["wrong"] : [])];
  const focused = document.activeElement && document.activeElement.dataset.filter;
  at("filters").replaceChildren(...Object.keys(FILTERS).flatMap((name) => {
    const count = items.filter(FILTERS[name]).length, pressed = state.filters.has(name);
    const turn = () => { if (!state.filters.delete(name)) state.filters.add(name); narrow(); };
    return count || pressed || always.includes(name)
      ? [button(`${name} ${count}`, turn, { "data-filter": name, "aria-pressed": pressed })] : [];
  }));
  if (focused) at("filters").querySelector(`[data-filter="${focused}"]`)?.focus();
}
function drawList() {
  const items = kept();
  state.shown = Math.max(state.shown, items.findIndex((item) => item.id === state.item) + 1); // what is open is listed
  const more = Math.min(MORE, items.length - state.shown);
  at("count").textContent = `${items.length} of ${RUNS[state.run].items.length} items`;
  at("list").replaceChildren(...items.slice(0, state.shown).map((item) => el("li", {}, listed(item))));
  const show = () => { state.shown += MORE; drawList(); };
  if (more > 0) at("list").append(el("li", {}, button(`Show ${more} more`, show)));
  drawOpen(items);
}
function listed(item) {
  // An item without a truth is listed by what was said of it.
  const said = (ask) => (known(ask.reward) ? `reward ${number(ask.reward)}` : (ask.verdict ?? ask.status));
  const text = textOf(item.prompt).slice(0, 160) || item.responses.join(" ").slice(0, 160);
  return button([
    el("span", { class: `tag ${item.outcome || ""}` }, item.outcome || item.asks.map(said).join(", ")),
    el("span", { class: "tag soft" }, item.id), el("span", { class: "text" }, text),
  ], () => openItem(item.id), { "data-item": item.id, "aria-current": item.id === state.item });
}
function openItem(id, moved) {
  const before = state.item, rows = () => [...at("list").querySelectorAll("[data-item]")];
  const row = (name) => rows().find((one) => one.dataset.item === name);
  state.item = id;
  writeAddress();
  if (id !== null && !row(id)) drawList();
  else drawOpen(kept());
  for (const one of rows()) one.setAttribute("aria-current", one.dataset.item === id);
  if (id === null) { row(before)?.focus(); return; }
  row(id)?.scrollIntoView({ block: "nearest" });
  const alone = getComputedStyle(at("list")).display === "none"; // a narrow window shows list or item
  if (alone || at("open").getBoundingClientRect().top < 0) at("browser").scrollIntoView();
  // Where the reader was is drawn anew: the focus goes to the same place.
  const again = moved && at("open").querySelector(`[data-move="${moved}"]:enabled`);
  if (moved || alone) (again || at("open").querySelector("h3")).focus({ preventScroll: true });
}
function drawOpen(items) {
  const item = RUNS[state.run].items.find((one) => one.id === state.item), place = items.indexOf(item);
  at("browser").classList.toggle("opened", Boolean(item));
  at("open").replaceChildren(...(item
    ? [moves(items[place - 1], place < 0 ? undefined : items[place + 1]), ...partsOf(item)]
    : [words("Open an item to see its prompt, its answers and how they were judged.", "soft")]));
}
function moves(before, after) {
  const move = (text, to) => button(text, () => openItem(to.id, text), { "data-move": text, disabled: to ? null : "" });
  const back = button("All items", () => openItem(null), { class: "back" });
  return el("div", { class: "moves" }, back, move("Previous", before), move("Next", after));
}
function partsOf(item) {
  const prompt = textOf(item.prompt);
  const answer = (text, index) => [el("h4", {}, `Answer ${index + 1}`, worthOf(item, index), rewardOf(item, index)), pre(text)];
  return [
    el("h3", { tabindex: "-1" }, item.outcome ? el("span", { class: `tag ${item.outcome}` }, item.outcome) : null, item.id),
    item.flipped ? words("The order of the answers changed the verdict.", "note") : null,
    prompt || item.responses.length ? null : words("The texts were not kept: judge with --keep to see them here.", "note"),
    prompt ? [el("h4", {}, "Prompt"), pre(prompt)] : null,
    known(item.answer) ? words(`True answer: ${item.answer}`) : null,
    item.responses.map(answer),
    item.asks.length > 1 ? words(costOf(item.asks)) : null,
    item.asks.map((ask) => drawAsk(ask, item.asks.length <= 2)),
  ].flat(2).filter(known);
}
function costOf(asks) {
  const tokens = sumOf(asks.map((ask) => ask.tokens || 0)), spent = sumOf(asks.map((ask) => ask.flops || 0));
  return `${asks.length} judgements: ${number(tokens)} new tokens${spent ? `, ${operations(spent)} operations` : ""}.`;
}
function worthOf(item, index) {
  const place = item.pairs.length === 1 ? item.pairs[0].indexOf(index) : -1, word = ["better", "worse"][place];
  if (word) return [", ", el("span", { class: word }, word)];
  return item.truths.length > index ? `, truth ${number(item.truths[index])}` : null;
}
function rewardOf(item, index) {
  const alone = item.asks.find((ask) => ask.shown.length === 1 && ask.shown[0] === index);
  return alone && known(alone.reward) ? `, reward ${number(alone.reward)}` : null;
}

// -- how a reward came about -----------------------------------------------------------------------------------------
function drawAsk(ask, open) {
  const shown = ask.shown.length ? ` of answer ${ask.shown.map((index) => index + 1).join(" against ")}` : "";
  const { probes = [], candidates = [], rationale, cost = {}, stage, ...rest } = ask.details || {};
  const said = known(ask.reward) ? `reward ${number(ask.reward)}` : "no reward";
  const told = candidates.some((one) => one.chosen && one.text === rationale);
  return el("details", { class: "ask", open: open ? "" : null },
    el("summary", {}, `Judgement${shown}: ${said}${ask.route ? `, ${ask.route} path` : ""}`),
    facts(ask, cost),
    probes.length ? [el("h4", {}, "Probes, rung by rung"), el("div", { class: "probes" }, probes.map(drawProbe))] : null,
    candidates.length ? [el("h4", {}, "Candidates"), candidates.map(drawCandidate)] : null,
    rationale && !told ? [el("h4", {}, "The text that was believed"), pre(rationale)] : null,
    Object.keys(rest).length ? pre(JSON.stringify(rest, null, 2)) : null);
}
function facts(ask, cost) {
  const alone = (ask.order_rewards || []).map((reward) => (known(reward) ? number(reward) : "none"));
  const found = {
    verdict: ask.verdict, status: ask.status ?? "ok", consensus: known(ask.consensus) ? ask.consensus.toFixed(3) : null,
    route: ask.route, "each order alone": alone.join(", "), prompt: ask.truncated ? "truncated" : null,
    "prompt tokens": cost.prefill_tokens && number(cost.prefill_tokens), "new tokens": ask.tokens && number(ask.tokens),
    "of them probes'": cost.probe_tokens && number(cost.probe_tokens), operations: ask.flops && operations(ask.flops),
    error: ask.error,
  };
  const told = Object.entries(found).filter(([, value]) => known(value) && value !== 0 && value !== "");
  return el("dl", { class: "facts" }, told.map(([name, value]) =>
    el("div", { class: name === "error" ? "whole" : null }, el("dt", {}, name), el("dd", {}, String(value)))));
}
function drawProbe(probe, place) {
  return el("div", { class: "probe" }, words(probe.name || `Rung ${place + 1}`, "soft"), bars(probe.distribution || {}));
}
function drawCandidate(one, place) {
  const parts = [`Candidate ${place + 1}${one.kind ? `, a ${one.kind}` : ""}: ${one.verdict ?? "no verdict"}`];
  if (known(one.score)) parts.push(`score ${Number(one.score).toPrecision(4)}`);
  if (one.chosen) parts.push("chosen");
  const title = el("p", {}, one.chosen ? el("strong", {}, parts.join(", ")) : parts.join(", "));
  return el("div", { class: one.chosen ? "candidate chosen" : "candidate" }, title, one.text ? pre(one.text) : null);
}

// -- origin ----------------------------------------------------------------------------------------------------------
function drawOrigin() {
  at("origin").append(el("h2", {}, "Where it comes from"));
  for (const run of RUNS) {
    const { benchmark, data, judge, settings, provenance } = run;
    const all = JSON.stringify({ source: benchmark.source, data, judge, settings, provenance }, null, 2);
    const parts = [words(benchmark.rule), folded("Data, judge, settings, versions", pre(all))];
    at("origin").append(el("h3", {}, nameOf(run)), ...parts);
  }
}

readAddress();
drawResults();
drawCharts();
startItems();
drawOrigin();
if (state.item !== null) at("items").scrollIntoView();
