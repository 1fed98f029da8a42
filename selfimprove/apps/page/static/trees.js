// @ts-check
// Browse search trees: an outline that opens and closes with the keyboard too, a drawing of what is open in it, and the
// revision trajectories that were made of the tree.
"use strict";

(() => {
  const { el, byId, fill, state, go, load, visible, renew } = page;
  const form = /** @type {HTMLFormElement} */ (byId("filters"));
  const [PARENT, VISITS, VALUE, REWARD, FLAGS, ACTION, REPLY, OBSERVATION] = [0, 1, 2, 3, 4, 5, 6, 7];
  const DRAWN = 500;

  /** @typedef {{good: number[], bad: number[], verdicts: [number, string, string][], cut: number, m: Said[]}} Revision */
  /** @typedef {{i: string, s: string, q: string, seed: string, e?: string, nodes: any[][], revisions: Revision[]}} Tree */
  /** @typedef {{key: string, label: string, file: string, starts: number[], s: string, ids: string[], nodes: number[], best: number[], revisions: number[]}} Set */

  /** @type {Set[]} */
  let sets = [];
  /** @type {Tree | null} */
  let tree = null;
  /** @type {number[][]} */
  let children = [];
  /** @type {globalThis.Set<number>} */
  let opened = new globalThis.Set([0]);
  let node = 0;
  let revision = 0;

  /** @param {string} name @returns {HTMLSelectElement} */
  const select = (name) => /** @type {any} */ (form.elements.namedItem(name));
  const chosen = () => sets.find((set) => set.key === select("set").value) ?? sets[0];
  /** @param {any[]} one */
  const mean = (one) => (one[VISITS] ? one[VALUE] / one[VISITS] : one[REWARD]);

  /** @param {number} id */
  function path(id) {
    const now = tree?.revisions[revision];
    const [good, bad] = [Boolean(now?.good.includes(id)), Boolean(now?.bad.includes(id))];
    return good && bad ? "both" : good ? "good" : bad ? "bad" : "";
  }

  /** @param {number} id */
  function title(id) {
    const one = tree?.nodes[id] ?? [];
    return id ? one[ACTION] || one[REPLY] || "(empty)" : "root";
  }

  /** @param {any[]} one */
  const visits = (one) => `${one[VISITS]} visit${one[VISITS] === 1 ? "" : "s"}`;

  /** @param {number} id */
  function told(id) {
    const one = tree?.nodes[id] ?? [];
    return `${id ? `node ${id}: ` : ""}${visible(title(id)).textContent} · ${visits(one)}, mean value ${page.short(mean(one))}`;
  }

  /** @param {number} id */
  function marks(id) {
    const one = tree?.nodes[id] ?? [];
    const now = tree?.revisions[revision];
    const made = [];
    const verdict = now?.verdicts.find(([judged]) => judged === id);
    if (verdict) made.push(el("span", { class: `badge ${verdict[1] === "Good" ? "good" : verdict[1] === "Bad" ? "bad" : ""}` }, `judged ${verdict[1].toLowerCase()}`));
    if (now && now.cut === id && id) made.push(el("span", { class: "badge bad" }, "cut here"));
    const on = path(id);
    if (on && on !== "both") made.push(el("span", { class: `badge ${on}` }, `${on} path`));
    if (one[FLAGS] & 4) made.push(el("span", { class: "badge bad" }, "invalid"));
    if (one[FLAGS] & 1) made.push(el("span", { class: "badge" }, `leaf, reward ${page.short(one[REWARD])}`));
    return made;
  }

  /** @param {number} id @param {number} level @returns {HTMLElement} */
  function item(id, level) {
    const one = tree?.nodes[id] ?? [];
    const below = children[id] ?? [];
    const open = opened.has(id);
    const most = Math.max(1, tree?.nodes[0][VISITS] ?? 1);
    const bar = el("span", { class: "bar", "aria-hidden": "true" });
    bar.style.width = `${4 + 40 * Math.sqrt(one[VISITS] / most)}px`;
    bar.style.background = `color-mix(in srgb, #0072b2 ${Math.round(100 * Math.min(1, Math.max(0, mean(one))))}%, var(--edge))`;
    const marked = marks(id);
    const row = el("div", { class: "node", title: told(id) }, el("span", { class: "fold", "aria-hidden": "true" }, below.length ? (open ? "▾" : "▸") : ""), bar,
      el("span", { class: "what" }, visible(title(id)), el("span", { class: "small" }, below.length && !open ? ` (${below.length})` : "")), el("span", { class: "marks" }, ...marked));
    const made = el("li", {
      role: "treeitem", id: `node-${id}`, "aria-level": level, "aria-selected": String(id === node),
      "aria-expanded": below.length ? String(open) : null, tabindex: id === node ? "0" : "-1", "aria-label": [told(id), ...marked.map((one) => one.textContent)].join(", "),
    }, row);
    row.addEventListener("click", (event) => {
      if (/** @type {HTMLElement} */ (event.target).closest(".fold") || id === node) toggle(id);
      pick(id);
    });
    if (open && below.length) made.append(el("ul", { role: "group" }, ...below.map((child) => item(child, level + 1))));
    return made;
  }

  /** @param {number} id */
  function toggle(id) {
    if (opened.has(id)) opened.delete(id);
    else opened.add(id);
  }

  /** @param {number} id @param {boolean} [focus] */
  function pick(id, focus = true) {
    node = id;
    go({ ...state(), node: String(id) });
    outline();
    detail();
    if (focus) document.getElementById(`node-${id}`)?.focus();
  }

  function outline() {
    byId("outline").replaceChildren(el("ul", { role: "tree", "aria-label": "Search tree" }, item(0, 1)));
    draw().catch(page.failed);
  }

  /** The nodes that are open in the outline, from the top. */
  function shown() {
    const found = [];
    const waiting = [0];
    while (waiting.length) {
      const id = /** @type {number} */ (waiting.pop());
      found.push(id);
      if (opened.has(id)) waiting.push(...[...(children[id] ?? [])].reverse());
    }
    return found;
  }

  let drawing = 0;
  async function draw() {
    drawing += 1;
    const mine = drawing;
    const spec = structuredClone((await load("charts-trees")).tree);
    if (!tree || mine !== drawing) return;
    const ids = shown().slice(0, DRAWN);
    const kept = new globalThis.Set(ids);
    const nodes = tree.nodes;
    spec.data[0].values = ids.filter((id) => !id || kept.has(nodes[id][PARENT])).map((id) => ({
      id, parent: id ? nodes[id][PARENT] : null, visits: nodes[id][VISITS], mean: mean(nodes[id]), path: path(id), told: told(id),
    }));
    const leaves = ids.filter((id) => !(opened.has(id) && children[id]?.length)).length;
    const place = byId("drawing");
    spec.width = Math.max(240, place.clientWidth - 60);
    spec.height = Math.min(900, Math.max(120, 20 * leaves));
    const { view } = await page.draw(place, spec);
    view.addEventListener("click", (/** @type {any} */ _, /** @type {any} */ hit) => {
      const id = hit?.datum?.id;
      if (typeof id === "number") { toggle(id); pick(id, false); }
    });
  }

  function detail() {
    if (!tree) return;
    const one = tree.nodes[node];
    const now = tree.revisions[revision];
    const verdict = now?.verdicts.find(([judged]) => judged === node);
    const facts = el("p", { class: "facts" }, el("span", {}, visits(one)), el("span", {}, `mean value ${page.short(mean(one))}`), el("span", {}, `reward ${page.short(one[REWARD])}`), ...marks(node));
    const made = [el("h2", {}, node ? `Node ${node}` : "Root"), facts];
    if (verdict) made.push(el("p", { class: "notice" }, "Judge: ", visible(verdict[2])));
    const said = /** @type {Said[]} */ (node ? [{ r: "assistant", p: [[one[REPLY], 0]] }, { r: "environment", p: [[one[OBSERVATION], 0]] }] : [{ r: "user", p: [[tree.q, 0]] }]);
    made.push(dialogue.show(said));
    renew(byId("reader"), ...made);
  }

  function revisions() {
    const place = byId("revisions");
    if (!tree?.revisions.length) {
      place.replaceChildren(el("h2", {}, "Revision trajectories"), el("p", { class: "empty" }, "No revision trajectory was built from this tree."));
      return;
    }
    const now = tree.revisions[revision];
    const buttons = tree.revisions.map((one, number) => el("button", {
      type: "button", "aria-pressed": String(number === revision),
      onclick: () => { revision = number; follow(); outline(); detail(); revisions(); go({ ...state(), revision: String(number) }); },
    }, `${one.bad.at(-1)} → ${one.good.at(-1)}`));
    renew(place, el("h2", {}, `Revision trajectories: ${tree.revisions.length}`),
      el("p", {}, "Each follows a bad path up to its first error, adds a revision thought, and continues along a good path. The buttons name the bad and the good leaf."),
      el("p", { class: "tools" }, ...buttons),
      el("p", { class: "small" }, `The judge read ${now.verdicts.length} step${now.verdicts.length === 1 ? "" : "s"} of the bad path; cut after node ${now.cut}. The loss covers only the shaded text.`),
      dialogue.show(now.m));
  }

  /** Opens the way to the good and the bad leaf. */
  function follow() {
    const now = tree?.revisions[revision];
    for (const id of [0, ...(now?.good ?? []), ...(now?.bad ?? [])]) opened.add(id);
  }

  let showing = 0;
  async function show() {
    showing += 1;
    const mine = showing;
    const set = chosen();
    const place = Number(select("tree").value);
    if (!select("tree").options.length) {
      tree = null;
      for (const id of ["about", "outline", "drawing", "reader", "revisions"]) byId(id).replaceChildren();
      return;
    }
    let number = set.starts.length - 1;
    while (set.starts[number] > place) number -= 1;
    const trees = /** @type {Tree[]} */ (await load(`${set.file}-${number}`));
    if (mine !== showing) return; // another tree was chosen while this one was loading
    tree = trees[place - set.starts[number]];
    children = tree.nodes.map(() => []);
    tree.nodes.forEach((one, id) => { if (id) children[one[PARENT]].push(id); });
    const wanted = state();
    revision = Math.min(Number(wanted.revision ?? 0), Math.max(0, tree.revisions.length - 1)) || 0;
    node = Number(wanted.node ?? 0) < tree.nodes.length ? Number(wanted.node ?? 0) : 0;
    opened = new globalThis.Set([0]);
    follow();
    if (!tree.revisions.length) for (const id of children[0]) opened.add(id);
    for (let up = node; up; up = tree.nodes[up][PARENT]) opened.add(tree.nodes[up][PARENT]);
    const leaves = tree.nodes.filter((one) => one[FLAGS] & 1).length;
    byId("about").replaceChildren(el("h2", {}, visible(tree.i), " ", el("span", { class: `badge ${tree.s === "solved" ? "good" : ""}` }, tree.s === "unsolved" ? "not solved" : tree.s)),
      el("p", { class: "facts" }, el("span", { id: "nodes" }, `${tree.nodes.length} nodes`), el("span", {}, `${leaves} leaves`), el("span", {}, `${tree.revisions.length} revision trajectories`)));
    outline();
    detail();
    revisions();
  }

  function list(wanted = "") {
    const set = chosen();
    const kept = set.ids.map((_, place) => place).filter((place) => {
      const asked = select("show").value;
      if (asked === "revised") return set.revisions[place] > 0;
      if (asked === "solved") return set.s[place] === "s";
      return asked !== "unsolved" || set.s[place] !== "s";
    });
    byId("count").textContent = `${kept.length.toLocaleString("en")} of ${set.ids.length.toLocaleString("en")} trees, ${kept.reduce((sum, place) => sum + set.nodes[place], 0).toLocaleString("en")} nodes`;
    const first = kept.find((place) => set.revisions[place] > 0);
    fill(select("tree"), kept.map((place) => [String(place), `${set.ids[place]}: ${set.nodes[place]} nodes, best reward ${page.short(set.best[place])}${set.revisions[place] ? `, ${set.revisions[place]} revisions` : ""}`]),
      wanted || (first === undefined ? "" : String(first)));
  }

  async function open() {
    if (!sets.length) sets = (await load("trees-index")).sets;
    const wanted = state();
    if (wanted.set && sets.some((set) => set.key === wanted.set)) select("set").value = wanted.set;
    select("show").value = wanted.show ?? "";
    list(wanted.tree ?? "");
    await show();
  }

  form.addEventListener("input", (event) => {
    const changed = /** @type {HTMLInputElement} */ (event.target).name;
    if (changed !== "tree") list();
    go({ set: select("set").value, show: select("show").value, tree: select("tree").value });
    show().catch(page.failed);
  });
  form.addEventListener("submit", (event) => event.preventDefault());

  byId("outline").addEventListener("keydown", (event) => {
    const order = shown();
    const place = order.indexOf(node);
    const below = children[node] ?? [];
    const key = event.key;
    if (key === "ArrowDown" && place + 1 < order.length) pick(order[place + 1]);
    else if (key === "ArrowUp" && place > 0) pick(order[place - 1]);
    else if (key === "Home") pick(0);
    else if (key === "End") pick(order[order.length - 1]);
    else if (key === "ArrowRight" && below.length) { if (opened.has(node)) pick(below[0]); else { opened.add(node); pick(node); } }
    else if (key === "ArrowLeft") { if (opened.has(node) && below.length) { opened.delete(node); pick(node); } else if (node) pick(tree?.nodes[node][PARENT]); }
    else if (key === "Enter" || key === " ") { toggle(node); pick(node); }
    else return;
    event.preventDefault();
  });
  byId("expand").addEventListener("click", () => { children.forEach((below, id) => { if (below.length) opened.add(id); }); outline(); });
  byId("collapse").addEventListener("click", () => { opened = new globalThis.Set(); pick(0, false); });
  addEventListener("hashchange", () => open().catch(page.failed));
  open().catch(page.failed);
})();
