// @ts-check
// What the run is doing now, asked of the local server every two seconds.
"use strict";

(() => {
  const { el, byId, visible, renew } = page;
  const EVERY = 2000;

  /** @typedef {{stage: string, line: string, done: number | null, total: number | null, curves: Record<string, [number, number][]>, written: string[]}} Stage */

  /** @param {Stage} one */
  function shown(one) {
    const made = el("article", { class: "card" }, el("h3", {}, visible(one.stage)));
    if (one.total) {
      made.append(el("progress", { max: one.total, value: one.done ?? 0, "aria-label": `${one.stage}: ${one.done} of ${one.total}` }));
    }
    made.append(el("p", { class: "mono" }, visible(one.line)));
    const curves = Object.entries(one.curves).filter(([, points]) => points.length);
    if (curves.length) {
      const items = curves.map(([name, points]) => el("li", {}, visible(name), `: ${page.short(points[points.length - 1][1])} at step ${points[points.length - 1][0]}`));
      made.append(el("ul", { class: "small" }, ...items));
      const loss = curves.find(([name]) => /loss/.test(name)) ?? curves[0];
      const drawing = el("div", { class: "drawing", role: "img", "aria-label": `${loss[0]} so far` });
      made.append(drawing);
      page.draw(drawing, {
        $schema: "https://vega.github.io/schema/vega-lite/v6.json", width: 420, height: 140, mark: { type: "line", strokeWidth: 1.6 },
        data: { values: loss[1].map(([step, value]) => ({ step, value })) },
        encoding: { x: { field: "step", type: "quantitative" }, y: { field: "value", type: "quantitative", title: loss[0], scale: { zero: false } } },
      }).catch(page.failed);
    }
    if (one.written.length) {
      made.append(el("details", { open: true }, el("summary", {}, "Latest output"), ...one.written.map((text) => el("div", { class: "message assistant" }, el("div", { class: "text" }, visible(text))))));
    }
    return made;
  }

  /** @type {Map<string, [string, HTMLElement]>} */
  const cards = new Map();

  /** A stage's card, made again only if it has news; a list that the reader closed stays closed. @param {Stage} one */
  function card(one) {
    const news = JSON.stringify(one);
    const [told, before] = cards.get(one.stage) ?? ["", null];
    if (before && told === news) return before;
    const made = shown(one);
    if (before?.querySelector("details")?.open === false) made.querySelector("details")?.removeAttribute("open");
    cards.set(one.stage, [news, made]);
    return made;
  }

  /** Screen readers read this sentence aloud when it changes, and only then. @param {string} text */
  function tell(text) {
    if (byId("count").textContent !== text) byId("count").textContent = text;
  }

  const gigabytes = (/** @type {number} */ bytes) => (bytes / 2 ** 30).toFixed(1);

  async function look() {
    try {
      const now = await (await fetch("status.json")).json();
      const facts = [`CPU ${Math.round(now.cpu)} %`, `memory ${gigabytes(now.memory[0])} of ${gigabytes(now.memory[1])} GiB`,
        ...now.gpus.map((/** @type {any} */ gpu) => `${gpu.name}: ${gpu.use} %, ${gpu.used} of ${gpu.total} MiB`)];
      byId("machine").replaceChildren(...facts.map((text) => el("span", {}, text)));
      const stages = now.working.map(card);
      // Cards that stay are not touched: text that the reader has selected stays selected.
      if (stages.some((/** @type {Node} */ one, /** @type {number} */ place) => byId("stages").children[place] !== one) || byId("stages").children.length !== stages.length) renew(byId("stages"), ...stages);
      tell(stages.length ? `Running: ${now.working.map((/** @type {Stage} */ one) => visible(one.stage).textContent).join(", ")}` : "No stage is running.");
      byId("done").replaceChildren(...now.ended.map((/** @type {any} */ one) => el("li", {}, visible(one.stage), ` · ${one.seconds === null ? "" : `${page.short(Math.round(one.seconds))} s, `}${Math.round(now.time - one.at)} s ago`)));
    } catch {
      tell("No response from the server: make watch is not running.");
      byId("machine").replaceChildren();
    }
    setTimeout(look, EVERY);
  }

  look();
})();
