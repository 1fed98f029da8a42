// @ts-check
// Browse and filter episodes. The index of a method is a few columns; an episode itself is read when it is chosen.
"use strict";

(() => {
  const { el, byId, fill, state, go, load, visible, renew } = page;
  const PAGE = 40;
  const NAMES = /** @type {Record<string, string>} */ ({ s: "solved", u: "not solved", b: "blocked" });
  const form = /** @type {HTMLFormElement} */ (byId("filters"));

  /** @typedef {{name: string, row: string, phase: string, label: string, file: string, path: string, size: number, starts: number[], s: string, t: any, r: any, n: any, x: any, z: any, u: any, p: any, l?: any}} Set */
  /** @typedef {{method: string, name: string, runs: string[], tasks: [string, string, string][], sets: Set[]}} Index */

  /** @type {Index | null} */
  let index = null;
  /** @type {Int32Array} */
  let found = new Int32Array(0);
  let at = 0;
  let asked = 0;
  let tokens = false;

  /** @param {string} name @returns {HTMLSelectElement} */
  const select = (name) => /** @type {any} */ (form.elements.namedItem(name));
  /** @param {any} column @param {number} place */
  const cell = (column, place) => (Array.isArray(column) ? column[place] : column);
  /** @param {Set} set @param {number} place */
  const line = (set, place) => (set.l === undefined ? place + 1 : cell(set.l, place));

  /** @returns {Set | null} */
  function chosen() {
    return index?.sets.find((set) => set.name === select("set").value) ?? index?.sets[0] ?? null;
  }

  /** Task and run -> the outcome of the same task in another set. @param {Set} set */
  function outcomes(set) {
    const known = new Map();
    for (let place = 0; place < set.size; place += 1) {
      known.set(cell(set.t, place) * 4096 + cell(set.u, place), [set.s[place], place]);
    }
    return known;
  }

  /** Whether episodes of a set have been judged one by one. @param {Set} set */
  const judged = (set) => "sub".includes(set.s[0]);

  /** The places that pass the filters. @param {Set} set */
  function filter(set) {
    if (!index) return new Int32Array(0);
    const q = select("q").value.trim().toLowerCase();
    const [result, split, run, change] = ["result", "split", "run", "change"].map((name) => select(name).value);
    const against = index.sets.find((one) => one.name === select("against").value);
    const theirs = against ? outcomes(against) : null;
    const named = q && !deep() ? index.tasks.map(([id, text]) => id.toLowerCase().includes(q) || text.toLowerCase().includes(q)) : null;
    const passed = new Int32Array(set.size);
    let count = 0;
    for (let place = 0; place < set.size; place += 1) {
      const task = cell(set.t, place);
      if (result && set.s[place] !== result) continue;
      if (named && !named[task]) continue;
      if (split && index.tasks[task][2] !== split) continue;
      if (run && String(cell(set.u, place)) !== run) continue;
      if (theirs) {
        const other = theirs.get(task * 4096 + cell(set.u, place));
        if (!other) continue;
        const [mine, its] = [set.s[place] === "s", other[0] === "s"];
        if (change === "mended" && !(mine && !its)) continue;
        if (change === "regressed" && !(its && !mine)) continue;
        if (change === "same" && mine !== its) continue;
      }
      passed[count] = place;
      count += 1;
    }
    const kept = passed.slice(0, count);
    const order = /** @type {"r" | "n" | "x" | "z" | "p" | ""} */ (select("order").value);
    if (order) kept.sort((a, b) => (cell(set[order], b) ?? -Infinity) - (cell(set[order], a) ?? -Infinity) || a - b);
    return kept;
  }

  const deep = () => /** @type {any} */ (form.elements.namedItem("deep")).checked;

  /** Reads the episodes themselves, chunk by chunk; the list grows while it does. @param {Set} set @param {Int32Array} among */
  async function search(set, among) {
    const q = select("q").value.trim().toLowerCase();
    asked += 1;
    const mine = asked;
    if (!q || !deep()) return;
    const hits = /** @type {number[]} */ ([]);
    const wanted = new Set(among);
    for (let number = 0; number < set.starts.length; number += 1) {
      const records = await load(`${set.file}-${number}`);
      if (mine !== asked) return;
      records.forEach((/** @type {any} */ record, /** @type {number} */ place) => {
        if (!wanted.has(set.starts[number] + place)) return;
        const said = record.m.some((/** @type {Said} */ one) => one.p.some((part) => part[0].toLowerCase().includes(q)));
        if (said || record.i.toLowerCase().includes(q)) hits.push(set.starts[number] + place);
      });
      found = Int32Array.from(hits);
      list(set, number + 1 < set.starts.length ? `; searched ${number + 1} of ${set.starts.length} chunks` : "");
    }
  }

  /** @param {Set} set @param {string} [more] */
  function list(set, more = "") {
    byId("count").textContent = `${found.length.toLocaleString("en")} of ${set.size.toLocaleString("en")} ${set.s[0] === "e" ? "examples" : "episodes"}${more}`;
    at = Math.min(at, Math.max(0, Math.floor((found.length - 1) / PAGE) * PAGE));
    const current = state().at;
    const items = [...found.subarray(at, at + PAGE)].map((place) => {
      const [id, text] = index ? index.tasks[cell(set.t, place)] : ["", ""];
      const letter = set.s[place];
      const badge = !NAMES[letter] ? null : el("span", { class: `badge ${letter === "s" ? "good" : letter === "b" ? "bad" : ""}` }, NAMES[letter]);
      const run = letter === "e" ? `line ${line(set, place)}` : index?.runs[cell(set.u, place)];
      const link = el("a", { href: `#${new URLSearchParams({ ...values(), at: String(place) })}`, "aria-current": String(place) === current ? "true" : null },
        el("span", { class: "id" }, el("span", {}, visible(run ? `${id} · ${run}` : id)), badge),
        el("span", { class: "preview" }, visible(text.length > 160 ? `… ${text.slice(-160).replace(/^\S*\s+/, "")}` : text)));
      return el("li", {}, link);
    });
    renew(byId("list"), ...items);
    page.turned(at, PAGE, found.length);
  }

  /** @returns {Record<string, string>} */
  function values() {
    const kept = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, String(value)]).filter(([, value]) => value !== ""));
    const beside = state().beside;
    return beside ? { ...kept, beside } : kept;
  }

  /** @param {Set} set @param {number} place */
  async function record(set, place) {
    let number = set.starts.length - 1;
    while (set.starts[number] > place) number -= 1;
    return (await load(`${set.file}-${number}`))[place - set.starts[number]];
  }

  /** @param {Set} set @param {any} one @param {number} place @param {Record<string, string>} vocabulary */
  function shown(set, one, place, vocabulary) {
    const facts = el("p", { class: "facts" }, el("span", {}, set.label));
    if (judged(set)) facts.append(el("span", { class: `badge ${one.s === "solved" ? "good" : one.s === "blocked" ? "bad" : ""}` }, one.s === "unsolved" ? "not solved" : one.s));
    if (one.r !== null) facts.append(el("span", {}, `reward ${dialogue.signed(one.r)}`));
    facts.append(el("span", {}, `${one.n} turn${one.n === 1 ? "" : "s"}`));
    if (one.z) facts.append(el("span", { class: "badge bad" }, `${one.z} reflection${one.z === 1 ? "" : "s"} misread${one.z === 1 ? "s" : ""} the map`));
    if (one.u) facts.append(el("span", {}, one.u));
    if (one.src) facts.append(el("span", {}, visible(`source: ${one.src}`)));
    facts.append(el("span", { class: "mono" }, `${set.path}, line ${line(set, place)}`));
    const made = el("article", {}, el("h2", {}, visible(one.i)), facts);
    if (one.e) made.append(el("p", { class: "warning" }, visible(one.e)));
    made.append(dialogue.show(one.m, { tokens, vocabulary }));
    if (one.gold) made.append(el("details", {}, el("summary", {}, "Gold answer"), el("div", { class: "text" }, visible(one.gold))));
    return made;
  }

  let reading = 0;
  /** @param {Set} set */
  async function read(set) {
    reading += 1;
    const mine = reading;
    const place = state().at === undefined ? -1 : Number(state().at);
    const [reader, library] = [byId("reader"), index];
    if (!library || !(place >= 0 && place < set.size)) {
      reader.replaceChildren(el("p", { class: "empty" }, "Select an episode."));
      return;
    }
    const one = await record(set, place);
    const vocabulary = tokens ? await load(`${library.method}-vocabulary`).catch(() => ({})) : {};
    const others = library.sets.filter((other) => other !== set && other.phase === set.phase && set.s[0] !== "l" && outcomes(other).has(cell(set.t, place) * 4096 + cell(set.u, place)));
    const beside = others.find((other) => other.name === state().beside);
    const tools = el("p", { class: "tools" });
    tools.append(el("button", { type: "button", onclick: () => { tokens = !tokens; read(set); } }, tokens ? "Show text" : "Show tokens"));
    if (others.length) {
      const picker = /** @type {HTMLSelectElement} */ (el("select", { "aria-label": "The same task in another row", onchange: () => { go({ ...state(), beside: picker.value }); read(set); } }));
      fill(picker, [["", "compare with another row …"], .../** @type {[string, string][]} */ (others.map((other) => [other.name, other.label]))], beside?.name ?? "");
      tools.append(picker);
    }
    const there = beside ? outcomes(beside).get(cell(set.t, place) * 4096 + cell(set.u, place))[1] : -1;
    const other = beside ? await record(beside, there) : null;
    if (mine !== reading) return; // another episode was chosen while this one was loading
    const article = shown(set, one, place, vocabulary);
    if (beside) renew(reader, tools, el("div", { class: "beside" }, article, shown(beside, other, there, vocabulary)));
    else renew(reader, tools, ...legend(one), article);
  }

  /** @param {any} one */
  function legend(one) {
    const scored = one.m.some((/** @type {Said} */ said) => said.p.some((part) => part[3]));
    const learnt = one.m.some((/** @type {Said} */ said) => said.p.some((part) => part[1] > 0));
    if (!learnt && !tokens) return [];
    const text = tokens
      ? scored ? "A stronger colour means a lower probability under the trained model. Hover over a token to see its values, or open the table below its message." : "No log-probabilities here. make page LOGPROBS=all computes all of them if the row's models are available locally."
      : "The loss covers only the shaded text; a darker shade means a larger weight.";
    return [el("p", { class: "small" }, text)];
  }

  function refresh() {
    const set = chosen();
    if (!set) return;
    select("change").disabled = !select("against").value; // changes are relative to another row
    const began = performance.now();
    found = filter(set);
    list(set);
    form.dataset.milliseconds = String(performance.now() - began);
    search(set, found).catch(page.failed);
  }

  /** Reads the filters from the address. */
  async function open() {
    const wanted = state();
    const method = select("method");
    if (wanted.method && [...method.options].some((option) => option.value === wanted.method)) method.value = wanted.method;
    const name = method.value;
    if (!index || index.method !== name) {
      const loaded = /** @type {Index} */ (await load(`${name}-index`));
      if (name !== method.value) return; // another method was chosen while this one was loading
      index = loaded;
    }
    const sets = index.sets;
    fill(select("set"), sets.map((set) => [set.name, set.label]), wanted.set ?? "");
    fill(select("against"), [["", "no other row"], .../** @type {[string, string][]} */ (sets.filter(judged).map((set) => [set.name, set.label]))], wanted.against ?? "");
    const runs = /** @type {[string, string][]} */ (index.runs.map((run, number) => [String(number), run || "no run number"]));
    fill(select("run"), [["", "any"], ...(runs.length > 1 ? runs : [])], wanted.run ?? "");
    for (const name of ["result", "split", "change", "order", "q"]) select(name).value = wanted[name] ?? "";
    /** @type {any} */ (form.elements.namedItem("deep")).checked = Boolean(wanted.deep);
    refresh();
    const set = chosen();
    if (set) await read(set);
  }

  form.addEventListener("input", (event) => {
    at = 0;
    const changed = /** @type {HTMLInputElement} */ (event.target).name;
    const kept = changed === "method" ? { method: select("method").value } : values();
    go(kept);
    if (changed === "method" || changed === "set") open().catch(page.failed);
    else refresh();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  byId("previous").addEventListener("click", () => { at -= PAGE; const set = chosen(); if (set) list(set); });
  byId("next").addEventListener("click", () => { at += PAGE; const set = chosen(); if (set) list(set); });
  addEventListener("hashchange", () => open().then(() => { if (innerWidth < 760 && state().at) byId("reader").scrollIntoView(); }).catch(page.failed));
  open().catch(page.failed);
})();
