// @ts-check
// Browse pairs: both sides beside each other, words that only one side has marked, margins before and after training.
"use strict";

(() => {
  const { el, byId, state, go, load, visible, renew } = page;
  const PAGE = 40;
  const form = /** @type {HTMLFormElement} */ (byId("filters"));
  const ROLES = /** @type {Record<string, string>} */ ({ assistant: "model", environment: "environment", reflector: "reflection" });

  /** @typedef {{key: string, label: string, file: string, sides: [string, string]}} Named */
  /** @typedef {Named & {starts: number[], same: string, ids: string[], texts: string[], margins: ([number, number] | null)[]}} Set */

  /** @type {Named[]} */
  let sets = [];
  /** @type {Set} */
  let set;
  /** @type {number[]} */
  let found = [];
  let at = 0;

  /** @param {string} name @returns {HTMLSelectElement} */
  const select = (name) => /** @type {any} */ (form.elements.namedItem(name));

  function values() {
    return Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, String(value)]).filter(([, value]) => value !== ""));
  }

  function list() {
    const q = select("q").value.trim().toLowerCase();
    const show = select("show").value;
    found = set.ids.map((_, place) => place).filter((place) => {
      const margin = set.margins[place];
      if (show === "different" && set.same[place] === "i") return false;
      if (show === "identical" && set.same[place] !== "i") return false;
      if (show === "scored" && !margin) return false;
      if (show === "worse" && !(margin && margin[1] < margin[0])) return false;
      return !q || set.ids[place].toLowerCase().includes(q) || set.texts[place].toLowerCase().includes(q);
    });
    at = Math.min(at, Math.max(0, Math.floor((found.length - 1) / PAGE) * PAGE));
    const scored = set.margins.filter(Boolean).length;
    const of = scored ? `; ${scored.toLocaleString("en")} with a margin` : "";
    byId("count").textContent = `${found.length.toLocaleString("en")} of ${set.ids.length.toLocaleString("en")} pairs${of}`;
    renew(byId("list"), ...found.slice(at, at + PAGE).map((place) => {
      const margin = set.margins[place];
      const badge = set.same[place] === "i" ? el("span", { class: "badge" }, "identical")
        : margin ? el("span", { class: `badge ${margin[1] > margin[0] ? "good" : "bad"}` }, `${change(margin)}`) : null;
      return el("li", {}, el("a", { href: `#${new URLSearchParams({ ...values(), at: String(place) })}`, "aria-current": state().at === String(place) ? "true" : null },
        el("span", { class: "id" }, el("span", {}, visible(set.ids[place])), badge), el("span", { class: "preview" }, visible(set.texts[place]))));
    }));
    page.turned(at, PAGE, found.length);
  }

  /** @param {[number, number]} margin */
  const change = ([before, after]) => `${after >= before ? "+" : "−"}${Math.abs(after - before).toFixed(2)}`;

  /** @param {string} title @param {[string, [number, string][]][]} side @param {"ins" | "del"} mark */
  function column(title, side, mark) {
    return el("section", { "aria-label": title }, el("h3", {}, title), ...side.map(([role, pieces]) =>
      el("div", { class: `message ${role}` }, el("div", { class: "who" }, el("b", {}, ROLES[role] ?? role)),
        el("div", { class: "text" }, ...pieces.map(([differs, text]) => (differs ? el(mark, {}, visible(text)) : visible(text)))))));
  }

  let reading = 0;
  async function read() {
    reading += 1;
    const mine = reading;
    const place = state().at === undefined ? -1 : Number(state().at);
    if (!(place >= 0 && place < set.ids.length)) {
      byId("reader").replaceChildren(el("p", { class: "empty" }, "Select a pair."));
      return;
    }
    let number = set.starts.length - 1;
    while (set.starts[number] > place) number -= 1;
    const shown = set;
    const pair = (await load(`${shown.file}-${number}`))[place - shown.starts[number]];
    if (mine !== reading) return; // another pair was chosen while this one was loading
    const facts = el("p", { class: "facts" }, el("span", {}, shown.label));
    const [one, other] = shown.sides;
    if (pair.margin) {
      const [before, after] = pair.margin.map((/** @type {number} */ value) => dialogue.signed(value));
      facts.append(el("span", {}, `margin log p(${one.toLowerCase()}) − log p(${other.toLowerCase()}): ${before} before training, ${after} after`),
        el("span", { class: pair.margin[1] >= pair.margin[0] ? "good" : "bad" }, change(pair.margin)));
    }
    const prompt = el("div", { class: "message user" }, el("div", { class: "who" }, el("b", {}, "prompt")), el("div", { class: "text" }, visible(pair.q)));
    renew(byId("reader"), el("h2", {}, visible(pair.i)), facts, prompt,
      el("div", { class: "beside" }, column(one, pair.real, "ins"), column(other, pair.generated, "del")));
  }

  async function open() {
    if (!sets.length) sets = (await load("pairs-index")).sets;
    const wanted = state();
    if (wanted.set && sets.some((set) => set.key === wanted.set)) select("set").value = wanted.set;
    for (const name of ["show", "q"]) select(name).value = wanted[name] ?? "";
    const named = sets.find((one) => one.key === select("set").value) ?? sets[0];
    if (set?.key !== named.key) {
      const loaded = { ...named, ...(await load(`${named.file}-index`)) };
      if (named.key !== (select("set").value || sets[0].key)) return; // another set was chosen while this one was loading
      set = loaded;
    }
    list();
    await read();
  }

  form.addEventListener("input", (event) => {
    at = 0;
    go(values());
    if (/** @type {HTMLInputElement} */ (event.target).name === "set") open().catch(page.failed);
    else list();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  byId("previous").addEventListener("click", () => { at -= PAGE; list(); });
  byId("next").addEventListener("click", () => { at += PAGE; list(); });
  addEventListener("hashchange", () => open().then(() => { if (innerWidth < 760 && state().at) byId("reader").scrollIntoView(); }).catch(page.failed));
  open().catch(page.failed);
})();
