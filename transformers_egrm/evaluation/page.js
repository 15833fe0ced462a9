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
const nameOf = (run) => `${run.benchmark.title}: ${run.judge.name}`;

function figureCell(figure, shaded = false) {
  const text = figure ? interval(figure) : "";
  return el("td", shaded ? { share: figure && figure.value } : {}, percent(figure && figure.value),
    text ? el("span", { class: "interval" }, text) : null);
}
function table(label, head, rows, kind = "") {
  const cells = (row) => row.map((value, column) =>
    value instanceof Node ? value : column ? el("td", {}, String(value ?? "")) : el("th", { scope: "row" }, String(value ?? "")));
  return el("div", { class: "wide" }, el("table", { class: kind, "aria-label": label },
    el("thead", {}, el("tr", {}, head.map((name, column) => (name ? el("th", { scope: "col" }, name) : el("td"))))),
    el("tbody", {}, rows.map((row) => el("tr", {}, cells(row))))));
}
function bars(distribution) {
  return Object.entries(distribution).map(([name, share]) =>
    el("div", { class: "bar" }, el("span", { title: name }, name), el("i", { share }), el("span", {}, percent(share))));
}

// -- results ---------------------------------------------------------------------------------------------------------
function drawResults() {
  const place = at("results"), measured = RUNS.filter((run) => run.headline);
  at("intro").textContent = measured.length
    ? "Shares in percent, with 95 % intervals from a bootstrap over questions. Ties and failed verdicts are never half right."
    : "What a judge said, and how each reward came about.";
  if (measured.length > 1)
    place.append(el("h2", {}, "Runs"), table("Runs", ["", "%", "questions", "new tokens a question", "seconds a question"],
      measured.map((run) => [el("th", { scope: "row" }, nameOf(run), el("span", { class: "interval" }, run.headline.name)),
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
  for (const note of run.notes) place.append(el("p", { class: "note" }, `Note: ${note}`));
  const parts = run.tables.map((part) => [part.title, part.title === "RM-Bench, styles" ? heat(part)
    : table(part.title, ["", "n", ...part.columns], part.rows.map((row) => [row.label, row.n, ...row.values.map((figure) => figureCell(figure))]))]);
  if (run.rivals.length) parts.push(["Rivals", rivals(run)]);
  if (run.figures) parts.push(["What happened, and what the judge leans on", happened(run.figures)]);
  else parts.push(["What happened", counted(run.items)]);
  const verdicts = run.figures ? run.figures.verdicts : counts(run.items.flatMap((item) => item.asks.map((ask) => ask.verdict)));
  const total = Object.values(verdicts).reduce((sum, count) => sum + count, 0);
  if (total) parts.push(["Verdicts", el("div", { class: "verdicts" }, bars(Object.fromEntries(
    Object.entries(verdicts).slice(0, 12).map(([name, count]) => [name, count / total]))))]);
  place.append(el("div", { class: "tables" }, parts.map(([title, drawing]) => el("div", {}, el("h3", {}, title), drawing))));
}
function heat(part) {
  return table(part.title, ["", ...part.columns], part.rows.map((row) => [row.label, ...row.values.map((figure) => figureCell(figure, true))]), "heat");
}
function rivals(run) {
  return table("Rivals", ["", run.headline.name, "ahead, points"], run.rivals.map((rival) => rival.reason
    ? [rival.name, el("td", { class: "soft", title: rival.reason }, "not applicable"), ""]
    : [rival.name, figureCell(rival.headline), figureCell(rival.ahead)]));
}
function happened(figures) {
  const shares = { "orders that disagree": figures.position_flips, "prefers the longer answer": figures.length.prefers_longer,
    "right where the better answer is longer": figures.length.right_where_better_is_longer,
    "right where the worse answer is longer": figures.length.right_where_worse_is_longer,
    "right at equal length": figures.length.right_at_equal_length,
    ...Object.fromEntries(Object.entries(figures.right_by_route).map(([route, figure]) => [`right on route ${route}`, figure])),
    "AUROC of consensus for right": figures.sureness.auroc, "sure, of the wrong": figures.sureness.false_sure,
    "not sure, of the right": figures.sureness.false_unsure };
  const rows = OUTCOMES.map((name) => [name, figures.outcomes[name], percent(figures.comparisons ? figures.outcomes[name] / figures.comparisons : null)]);
  for (const [name, figure] of Object.entries(shares)) if (figure && known(figure.value)) rows.push([name, figure.n ?? "", figureCell(figure)]);
  return table("What happened", ["", "n", "%"], rows);
}
function counts(values) {
  const found = {};
  for (const value of values) if (known(value)) found[value] = (found[value] || 0) + 1;
  return Object.fromEntries(Object.entries(found).sort((one, other) => other[1] - one[1]));
}
function counted(items) {
  const asks = items.flatMap((item) => item.asks), share = (count) => percent(count / asks.length);
  const rows = Object.entries(counts(asks.map((ask) => ask.status ?? "ok"))).map(([name, count]) => [`status ${name}`, count, share(count)]);
  for (const [name, count] of Object.entries(counts(asks.map((ask) => ask.route)))) rows.push([`route ${name}`, count, share(count)]);
  const rewards = asks.map((ask) => ask.reward).filter(known);
  const mean = rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length;
  return [table("What happened", ["", "n", "%"], rows), rewards.length ? el("p", {}, `Mean reward: ${number(mean)}`) : null];
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
  drawing.append(svg("text", { x: X(0.5), y: H - 4, "text-anchor": "middle" }, across), svg("text", { x: 2, y: 12 }, up));
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
  const trade = el("div", { class: "charts", id: "trade" }), titles = [...new Set(measured.map((run) => run.benchmark.title))];
  const draw = (name) => trade.replaceChildren(...titles.map((title) =>
    el("div", {}, el("h3", {}, title), pareto(measured.filter((run) => run.benchmark.title === title), name))));
  place.append(el("h2", {}, "Charts"));
  if (costs.length) {
    place.append(el("div", { class: "tools" }, el("label", {}, "Accuracy against cost in ",
      el("select", { id: "cost", onchange: (event) => draw(event.target.value) }, costs.map((name) => el("option", {}, name))), " a question")), trade);
    draw(costs[0]);
  }
  if (sure.length)
    place.append(el("h3", {}, "Reliability: is consensus worth its name?"), el("div", { class: "charts" },
      sure.map((run) => el("div", {}, el("h4", {}, nameOf(run)), reliability(run.figures.by_consensus)))));
}
function pareto(runs, name) {
  const cost = (run) => COSTS[name](run.figures.cost), most = Math.max(...runs.map(cost)) || 1, x = (run) => X(0.9 * cost(run) / most);
  const drawing = frame(`Accuracy against ${name} a question`, `${name} a question`, `${runs[0].headline.name}, %`);
  const shown = name === "operations" ? operations : number;
  drawing.append(svg("text", { x: X(0), y: Y(0) + 16 }, "0"));
  if (runs.some(cost)) drawing.append(svg("text", { x: X(0.9), y: Y(0) + 16, "text-anchor": "middle" }, shown(most)));
  const beaten = (run) => runs.some((other) => cost(other) <= cost(run) && other.headline.value >= run.headline.value
    && (cost(other) < cost(run) || other.headline.value > run.headline.value));
  const front = runs.filter((run) => !beaten(run)).sort((one, other) => cost(one) - cost(other));
  const steps = front.map((run, place) => (place ? `H${x(run)}V${Y(run.headline.value)}` : `M${x(run)},${Y(run.headline.value)}`));
  drawing.append(svg("path", { class: "curve", d: `${steps.join("")}H${X(1)}` }));
  bestRival(drawing, runs);
  const labels = [];
  for (const run of runs) {
    const figure = run.headline, dot = svg("circle", { class: beaten(run) ? "dot behind" : "dot", cx: x(run), cy: Y(figure.value), r: 5 });
    dot.append(svg("title", {}, `${nameOf(run)}: ${percent(figure.value)} % at ${shown(cost(run))} ${name}`));
    if (known(figure.low)) drawing.append(svg("line", { class: "spread", x1: x(run), x2: x(run), y1: Y(figure.low), y2: Y(figure.high) }));
    drawing.append(dot);
    labels.push({ x: x(run), y: Y(figure.value) - 7, text: run.judge.name });
  }
  drawLabels(drawing, labels);
  return drawing;
}
// Rivals write nothing: whatever they reach is free, so a judge below the line is not worth its cost.
function bestRival(drawing, runs) {
  const found = runs.flatMap((run) => run.rivals).filter((rival) => rival.headline && known(rival.headline.value));
  if (!found.length) return;
  const best = found.reduce((one, other) => (other.headline.value > one.headline.value ? other : one));
  drawing.append(svg("line", { class: "rival", x1: X(0), x2: X(1), y1: Y(best.headline.value), y2: Y(best.headline.value) }),
    svg("text", { x: X(0) + 4, y: Y(best.headline.value) - 4 }, `best rival: ${best.name}`));
}
function drawLabels(drawing, labels) {
  let last = -Infinity;
  for (const label of labels.sort((one, other) => one.y - other.y)) {
    last = Math.max(label.y, last + 13);
    const late = label.x > W / 2, text = label.text.length > 30 ? `…${label.text.slice(-29)}` : label.text;
    drawing.append(svg("text", { class: "name", x: late ? label.x - 8 : label.x + 8, y: last, "text-anchor": late ? "end" : "start" }, text));
  }
}
function reliability(bins) {
  const drawing = frame("Share of right verdicts at each consensus", "consensus, %", "right, %");
  drawing.append(svg("line", { class: "diagonal", x1: X(0), y1: Y(0), x2: X(1), y2: Y(1) }),
    svg("path", { class: "curve", d: bins.map((bin, place) => `${place ? "L" : "M"}${X(bin.consensus)},${Y(bin.right)}`).join("") }));
  const most = Math.max(...bins.map((bin) => bin.n));
  for (const bin of bins) {
    const dot = svg("circle", { class: "dot", cx: X(bin.consensus), cy: Y(bin.right), r: 3 + 6 * Math.sqrt(bin.n / most) });
    dot.append(svg("title", {}, `${bin.n} comparisons: consensus ${percent(bin.consensus)} %, right ${percent(bin.right)} %`));
    drawing.append(dot);
  }
  for (const share of [0, 0.5, 1])
    drawing.append(svg("text", { x: X(share), y: Y(0) + 16, "text-anchor": "middle" }, (100 * share).toFixed(0)));
  const rows = bins.map((bin) => [percent(bin.consensus), bin.n, percent(bin.right)]);
  return [drawing, el("details", {}, el("summary", {}, "As a table"), table("Reliability", ["consensus, %", "n", "right, %"], rows))];
}

// -- items -----------------------------------------------------------------------------------------------------------
const MORE = 100;
const is = (outcome) => (item) => item.outcome === outcome;
const FILTERS = { wrong: is("wrong"), tie: is("tie"), failed: is("failed"), right: is("right"),
  long: (item) => item.asks.some((ask) => ask.route === "long"), flipped: (item) => item.flipped,
  truncated: (item) => item.asks.some((ask) => ask.truncated) };
const state = { run: 0, filters: new Set(), subset: "", text: "", item: null, shown: MORE };
const content = (message) => (typeof message.content === "string" ? message.content : JSON.stringify(message.content));
const textOf = (prompt) => (typeof prompt === "string" ? prompt : prompt.map((message) => `${message.role}: ${content(message)}`).join("\n\n"));
const searched = new WeakMap();

function textsOf(item) {
  if (!searched.has(item)) searched.set(item, [item.id, textOf(item.prompt), ...item.responses].join("\n").toLowerCase());
  return searched.get(item);
}
// Outcomes add up: a click on `wrong` and `failed` shows both. Everything else narrows.
function kept() {
  const outcomes = OUTCOMES.filter((name) => state.filters.has(name)), others = [...state.filters].filter((name) => !OUTCOMES.includes(name));
  return RUNS[state.run].items.filter((item) => (!outcomes.length || outcomes.includes(item.outcome))
    && others.every((name) => FILTERS[name](item)) && (!state.subset || item.subset === state.subset)
    && (!state.text || textsOf(item).includes(state.text)));
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
function drawItems() {
  const runs = el("select", { id: "run", "aria-label": "Run", onchange: (event) => { state.run = Number(event.target.value); state.subset = ""; state.filters.clear(); narrow(); } },
    RUNS.map((run, place) => el("option", { value: place }, nameOf(run))));
  const subset = el("select", { id: "subset", "aria-label": "Subset", onchange: (event) => { state.subset = event.target.value; narrow(); } });
  let waiting;
  const search = el("input", { type: "search", id: "search", placeholder: "Search prompts and answers", "aria-label": "Search prompts and answers",
    oninput: (event) => { clearTimeout(waiting); waiting = setTimeout(() => { state.text = event.target.value.toLowerCase(); narrow(); }, 150); } });
  at("items").replaceChildren(el("h2", {}, "Items"), el("div", { class: "tools" }, RUNS.length > 1 ? runs : null, subset, search),
    el("div", { class: "tools", id: "filters", role: "group", "aria-label": "Show only" }), el("p", { class: "soft", id: "count", role: "status" }),
    el("div", { class: "items", id: "browser" }, el("ul", { class: "list", id: "list", "aria-label": "Items" }), el("div", { class: "open", id: "open" })));
  runs.value = state.run;
  search.value = state.text;
  drawTools();
  drawList();
}
function narrow() { state.item = null; state.shown = MORE; writeAddress(); drawTools(); drawList(); }
function drawTools() {
  const items = RUNS[state.run].items, subset = at("subset"), names = [...new Set(items.map((item) => item.subset))];
  subset.replaceChildren(el("option", { value: "" }, "all subsets"), ...names.map((name) => el("option", { value: name }, name)));
  subset.value = state.subset;
  subset.hidden = names.length < 2;
  const focused = document.activeElement && document.activeElement.dataset.filter;
  at("filters").replaceChildren(...Object.entries(FILTERS).map(([name, test]) => [name, items.filter(test).length])
    .filter(([name, count]) => count || state.filters.has(name) || (name === "wrong" ? items.some((item) => item.outcome) : ["failed", "long"].includes(name)))
    .map(([name, count]) => el("button", { type: "button", "data-filter": name, "aria-pressed": state.filters.has(name), onclick: () => {
      if (!state.filters.delete(name)) state.filters.add(name);
      narrow();
    } }, `${name} ${count}`)));
  if (focused) at("filters").querySelector(`[data-filter="${focused}"]`)?.focus();
}
function drawList() {
  const items = kept();
  state.shown = Math.max(state.shown, items.findIndex((item) => item.id === state.item) + 1);  // what is open is listed
  const more = Math.min(MORE, items.length - state.shown);
  at("count").textContent = `${items.length} of ${RUNS[state.run].items.length} items`;
  at("list").replaceChildren(...items.slice(0, state.shown).map((item) => el("li", {},
    el("button", { type: "button", "data-item": item.id, "aria-current": item.id === state.item, onclick: () => openItem(item.id) },
      el("span", { class: `tag ${item.outcome || ""}` }, item.outcome || saidOf(item)), el("span", { class: "tag soft" }, item.id),
      el("span", { class: "text" }, textOf(item.prompt).slice(0, 160) || item.responses.join(" ").slice(0, 160))))));
  if (more > 0) at("list").append(el("li", {}, el("button", { type: "button", onclick: () => { state.shown += MORE; drawList(); } }, `Show ${more} more`)));
  drawOpen(items);
}
// An item without a truth is listed by what was said of it.
const saidOf = (item) => item.asks.map((ask) => (known(ask.reward) ? `reward ${number(ask.reward)}` : ask.verdict ?? ask.status)).join(", ");

function openItem(id, moved) {
  const before = state.item, row = (name) => [...at("list").querySelectorAll("[data-item]")].find((one) => one.dataset.item === name);
  state.item = id;
  writeAddress();
  if (id !== null && !row(id)) drawList();
  else drawOpen(kept());
  for (const one of at("list").querySelectorAll("[data-item]")) one.setAttribute("aria-current", one.dataset.item === id);
  if (id === null) { row(before)?.focus(); return; }
  row(id)?.scrollIntoView({ block: "nearest" });
  if (at("open").getBoundingClientRect().top < 0 || matchMedia("(max-width: 760px)").matches) at("browser").scrollIntoView();
  // Where the reader was is drawn anew: the focus goes to the same place.
  const heading = at("open").querySelector("h3"), again = moved && at("open").querySelector(`[data-move="${moved}"]:enabled`);
  if (moved || getComputedStyle(at("list")).display === "none") (again || heading).focus({ preventScroll: true });
}
function drawOpen(items) {
  const item = RUNS[state.run].items.find((one) => one.id === state.item), place = items.indexOf(item);
  at("browser").classList.toggle("opened", Boolean(item));
  if (!item) { at("open").replaceChildren(el("p", { class: "soft" }, "Open an item to see its prompt, its answers and how they were judged.")); return; }
  const move = (text, to) => el("button", { type: "button", "data-move": text, disabled: to ? null : "", onclick: () => openItem(to.id, text) }, text);
  const prompt = textOf(item.prompt);
  at("open").replaceChildren(...[
    el("div", { class: "moves" }, el("button", { type: "button", class: "back", onclick: () => openItem(null) }, "All items"),
      move("Previous", items[place - 1]), move("Next", place < 0 ? undefined : items[place + 1])),
    el("h3", { tabindex: "-1" }, item.outcome ? el("span", { class: `tag ${item.outcome}` }, item.outcome) : null, item.id),
    item.flipped ? el("p", { class: "note" }, "The order of the answers changed the verdict.") : null,
    prompt || item.responses.length ? null : el("p", { class: "note" }, "The texts were not kept: judge with --keep prompt --keep response to see them here."),
    prompt ? [el("h4", {}, "Prompt"), el("pre", {}, prompt)] : null,
    known(item.answer) ? el("p", {}, `True answer: ${item.answer}`) : null,
    item.responses.map((text, index) => [el("h4", {}, `Answer ${index + 1}`, worthOf(item, index), rewardOf(item, index)), el("pre", {}, text)]),
    item.asks.length > 1 ? el("p", {}, costOf(item.asks)) : null,
    item.asks.map((ask) => drawAsk(ask, item.asks.length <= 2)),
  ].flat(2).filter(known));
}
function costOf(asks) {
  const sum = (of) => asks.reduce((total, ask) => total + (of(ask) || 0), 0), spent = sum((ask) => ask.flops);
  return `${asks.length} judgements: ${number(sum((ask) => ask.tokens))} new tokens${spent ? `, ${operations(spent)} operations` : ""}.`;
}
function worthOf(item, index) {
  const sides = item.pairs.length === 1 ? item.pairs[0] : [];
  if (sides.includes(index)) { const word = index === sides[0] ? "better" : "worse"; return [", ", el("span", { class: word }, word)]; }
  return item.truths.length > index ? `, truth ${number(item.truths[index])}` : null;
}
function rewardOf(item, index) {
  const alone = item.asks.find((ask) => ask.shown.length === 1 && ask.shown[0] === index);
  return alone && known(alone.reward) ? `, reward ${number(alone.reward)}` : null;
}

// -- how a reward came about -----------------------------------------------------------------------------------------
function drawAsk(ask, open) {
  const shown = ask.shown.length ? `Judgement of answer ${ask.shown.map((index) => index + 1).join(" against ")}` : "Judgement";
  const { probes = [], candidates = [], rationale, cost = {}, stage, ...rest } = ask.details || {};
  const said = known(ask.reward) ? `reward ${number(ask.reward)}` : "no reward";
  const told = candidates.some((one) => one.chosen && one.text === rationale);
  return el("details", { class: "ask", ...(open ? { open: "" } : {}) },
    el("summary", {}, `${shown}: ${said}${ask.route ? `, ${ask.route} path` : ""}`),
    facts(ask, cost),
    probes.length ? [el("h4", {}, "Probes, rung by rung"), el("div", { class: "probes" }, probes.map(drawProbe))] : null,
    candidates.length ? [el("h4", {}, "Candidates"), candidates.map(drawCandidate)] : null,
    rationale && !told ? [el("h4", {}, "The text that was believed"), el("pre", {}, rationale)] : null,
    Object.keys(rest).length ? el("pre", {}, JSON.stringify(rest, null, 2)) : null);
}
function facts(ask, cost) {
  const found = { verdict: ask.verdict, status: ask.status ?? "ok", consensus: known(ask.consensus) ? ask.consensus.toFixed(3) : null, route: ask.route,
    "each order alone": ask.order_rewards && ask.order_rewards.length ? ask.order_rewards.map((reward) => (known(reward) ? number(reward) : "none")).join(", ") : null,
    "prompt tokens": cost.prefill_tokens && number(cost.prefill_tokens), "new tokens": ask.tokens && number(ask.tokens),
    "of them probes'": cost.probe_tokens && number(cost.probe_tokens), operations: ask.flops && operations(ask.flops),
    prompt: ask.truncated ? "truncated" : null, error: ask.error };
  return el("dl", { class: "facts" }, Object.entries(found).filter(([, value]) => known(value) && value !== 0)
    .map(([name, value]) => el("div", name === "error" ? { class: "whole" } : {}, el("dt", {}, name), el("dd", {}, String(value)))));
}
function drawProbe(probe, place) {
  return el("div", { class: "probe" }, el("p", { class: "soft" }, probe.name || `Rung ${place + 1}`), bars(probe.distribution || {}));
}
function drawCandidate(one, place) {
  const words = [`Candidate ${place + 1}${one.kind ? `, a ${one.kind}` : ""}: ${one.verdict ?? "no verdict"}`];
  if (known(one.score)) words.push(`score ${Number(one.score).toPrecision(4)}`);
  if (one.chosen) words.push("chosen");
  return el("div", { class: one.chosen ? "candidate chosen" : "candidate" }, el("p", {}, one.chosen ? el("strong", {}, words.join(", ")) : words.join(", ")),
    one.text ? el("pre", {}, one.text) : null);
}

// -- origin ----------------------------------------------------------------------------------------------------------
function drawOrigin() {
  at("origin").append(el("h2", {}, "Where it comes from"));
  for (const run of RUNS)
    at("origin").append(el("h3", {}, nameOf(run)), el("p", {}, run.benchmark.rule || ""), el("details", {}, el("summary", {}, "Data, judge, settings, versions"),
      el("pre", {}, JSON.stringify({ source: run.benchmark.source, data: run.data, judge: run.judge, settings: run.settings, provenance: run.provenance }, null, 2))));
}

readAddress();
drawResults();
drawCharts();
drawItems();
drawOrigin();
if (state.item !== null) at("items").scrollIntoView();
addEventListener("hashchange", () => { if (readAddress()) drawItems(); });
document.body.dataset.ready = Math.round(performance.now());
