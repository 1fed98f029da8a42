// @ts-check
// What every view shares: the theme, chunks of data, charts, and small helpers. No view writes HTML from data: text
// enters the page as text nodes only.
"use strict";

/** @typedef {string | Node | null | undefined} Child */

const page = (() => {
  /** @type {Map<string, {promise: Promise<any>, done: (packed: string) => void}>} */
  const chunks = new Map();

  /** @param {string} packed */
  async function unpack(packed) {
    const bytes = Uint8Array.from(atob(packed), (one) => one.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).json();
  }

  /** @param {string} src @param {(event: Event) => void} [failed] */
  function script(src, failed) {
    return new Promise((resolve) => {
      const tag = document.createElement("script");
      tag.src = src;
      tag.addEventListener("load", resolve);
      tag.addEventListener("error", (event) => failed && failed(event));
      document.head.append(tag);
    });
  }

  /** Loads a chunk once. A page from a disk may run scripts but not read files, so a chunk is a script.
   * @param {string} name @returns {Promise<any>} */
  function load(name) {
    const known = chunks.get(name);
    if (known) return known.promise;
    /** @type {(packed: string) => void} */
    let done = () => {};
    const promise = new Promise((resolve, reject) => {
      done = (packed) => unpack(packed).then(resolve, reject);
      script(`data/${name}.js`, () => reject(new Error(`data/${name}.js cannot be loaded`)));
    });
    chunks.set(name, { promise, done });
    return promise;
  }

  /** @param {string} name @param {string} packed */
  function received(name, packed) {
    chunks.get(name)?.done(packed);
  }

  /** An element with attributes and children; children that are strings become text.
   * @param {string} tag @param {Record<string, any>} [attributes] @param {...Child} children @returns {HTMLElement} */
  function el(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else made.setAttribute(name, value === true ? "" : String(value));
    }
    for (const child of children) if (child !== null && child !== undefined) made.append(child);
    return made;
  }

  // Characters that would reorder, hide or break the text around them are shown by their code: those that Unicode lets a
  // font ignore, control characters, and line and paragraph separators.
  const HIDDEN = /[\p{Default_Ignorable_Code_Point}\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028\u2029\ufff9-\ufffb]/gu;

  /** Text with its invisible characters shown.
   * @param {string} text @returns {DocumentFragment} */
  function visible(text) {
    const made = document.createDocumentFragment();
    let from = 0;
    for (const found of text.matchAll(HIDDEN)) {
      made.append(text.slice(from, found.index));
      const code = (found[0].codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0");
      made.append(el("span", { class: "hidden", title: `invisible character U+${code}` }, `⟨${code}⟩`));
      from = found.index + found[0].length;
    }
    made.append(text.slice(from));
    return made;
  }

  /** Replaces what a place contains. The keyboard's focus, if it is there, goes to the control that is now at its position.
   * @param {HTMLElement} place @param {...Child} children */
  function renew(place, ...children) {
    const controls = () => /** @type {HTMLElement[]} */ ([...place.querySelectorAll("a[href], button, select, summary, [tabindex]")]);
    const at = controls().findIndex((one) => one === document.activeElement);
    place.replaceChildren(...children.filter((one) => one !== null && one !== undefined));
    if (at >= 0) controls()[at]?.focus({ preventScroll: true });
    // Safari reaches a text that scrolls with the keyboard only if it is in the order of Tab.
    for (const text of /** @type {NodeListOf<HTMLElement>} */ (place.querySelectorAll(".text"))) {
      if (text.scrollHeight <= text.clientHeight) continue;
      text.tabIndex = 0;
      text.setAttribute("role", "group");
      text.setAttribute("aria-label", text.previousElementSibling?.textContent || "text");
    }
  }

  /** @param {string} id @returns {HTMLElement} */
  function byId(id) {
    const found = document.getElementById(id);
    if (!found) throw new Error(`no element ${id}`);
    return found;
  }

  /** What a list shows, and the buttons below it: the keyboard's focus leaves a button that has nothing more to show.
   * @param {number} at @param {number} most @param {number} count */
  function turned(at, most, count) {
    byId("place").textContent = count ? `${at + 1}–${Math.min(at + most, count)}` : "";
    const [previous, next] = /** @type {HTMLButtonElement[]} */ ([byId("previous"), byId("next")]);
    const focused = document.activeElement;
    previous.disabled = at === 0;
    next.disabled = at + most >= count;
    if (focused === next && next.disabled) previous.focus();
    else if (focused === previous && previous.disabled) next.focus();
  }

  /** @param {HTMLSelectElement} select @param {[string, string][]} options @param {string} chosen */
  function fill(select, options, chosen) {
    select.replaceChildren(...options.map(([value, text]) => el("option", { value }, text)));
    select.value = options.some(([value]) => value === chosen) ? chosen : (options[0]?.[0] ?? "");
  }

  /** The state of a view is what stands after # in its address: every view has a link of its own. */
  function state() {
    return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  }

  /** @param {Record<string, string>} values @param {boolean} [step] whether the browser's back button returns from it */
  function go(values, step = false) {
    const kept = Object.entries(values).filter(([, value]) => value !== "");
    const hash = `#${new URLSearchParams(kept)}`;
    if (hash === location.hash) return;
    if (step) history.pushState(null, "", hash);
    else history.replaceState(null, "", hash);
  }

  /** @param {Error} error */
  function failed(error) {
    const text = `Cannot show this view: ${error.message}. Run make page to rebuild the report.`;
    byId("main").prepend(el("p", { class: "warning", role: "alert" }, text));
  }

  /** Colours of the page's theme, laid over a chart's own. They are the style sheet's variables: a chart follows a change
   * of the theme, print and forced colours without being drawn again. */
  function themed() {
    const [ink, faint, line] = ["var(--ink)", "var(--faint)", "var(--line)"];
    return {
      background: "transparent",
      axis: { labelColor: ink, titleColor: ink, gridColor: line, domainColor: faint, tickColor: faint },
      legend: { labelColor: ink, titleColor: ink },
      title: { color: ink, subtitleColor: ink },
      text: { color: ink },
      rule: { color: faint },
      range: { category: Array.from({ length: 10 }, (_, place) => `var(--category-${place + 1})`) },
    };
  }

  /** @param {Record<string, any>} under @param {Record<string, any>} over @returns {Record<string, any>} */
  function merged(under, over) {
    const made = { ...under };
    for (const [key, value] of Object.entries(over)) {
      const both = value && typeof value === "object" && !Array.isArray(value) && made[key];
      made[key] = both ? merged(made[key], value) : value;
    }
    return made;
  }

  /** @type {Promise<any> | undefined} */
  let libraries;
  const vega = () => (libraries ??= script("assets/vega.js").then(() => /** @type {any} */ (window).vegaEmbed));

  /** Draws a chart, without `eval`: expressions are interpreted, as the page's policy demands.
   * @param {HTMLElement} place @param {Record<string, any>} spec @param {Record<string, any>} [more] */
  async function draw(place, spec, more = {}) {
    const embed = await vega();
    const config = merged(spec.config ?? {}, themed());
    const room = place.clientWidth - 24;
    const width = typeof spec.width === "number" && !spec.wide ? Math.max(220, Math.min(spec.width, room - 90)) : spec.width;
    const narrow = room < 520 ? { legend: { columns: 1, orient: "bottom" } } : {};
    /** @type {Record<string, any>} */
    const shown = { ...spec, width, config: merged(config, narrow) };
    delete shown.wide;
    const options = { ast: true, actions: false, renderer: "svg", defaultStyle: false, tooltip: { disableDefaultStyle: true } };
    // The place itself keeps its role and label; what stands in it is for the eye.
    const inner = el("div", { "aria-hidden": "true" });
    place.replaceChildren(inner);
    const made = await embed(inner, shown, { ...options, ...more });
    for (const one of [inner, ...inner.querySelectorAll("[role]")]) one.removeAttribute("role");
    if (place.scrollWidth > place.clientWidth) place.tabIndex = 0;
    return made;
  }

  async function charts() {
    const here = document.querySelector("script[data-charts]");
    const figures = [...document.querySelectorAll("figure[data-chart]")];
    const name = here instanceof HTMLElement ? here.dataset.charts : "";
    if (!name || !figures.length) return;
    const specs = await load(name);
    /** @param {Element} figure */
    const show = (figure) => {
      seen.unobserve(figure);
      const drawing = figure.querySelector(".drawing");
      const spec = figure instanceof HTMLElement ? specs[figure.dataset.chart ?? ""] : null;
      if (spec && drawing instanceof HTMLElement && !drawing.hasChildNodes()) draw(drawing, spec).then(() => numbers(figure, spec), failed);
    };
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting) show(entry.target);
    }, { rootMargin: "300px" });
    for (const figure of figures) seen.observe(figure);
    addEventListener("beforeprint", () => figures.forEach(show));
  }

  /** A closed list that becomes a table when it is opened.
   * @param {string} summary @param {string} label @param {string[]} heads @param {() => Child[][]} rows */
  function listed(summary, label, heads, rows) {
    const details = el("details", { class: "numbers" }, el("summary", {}, summary));
    details.addEventListener("toggle", () => {
      if (details.querySelector("table")) return;
      const head = el("tr", {}, ...heads.map((one) => el("th", { scope: "col" }, one)));
      const body = rows().map(([first, ...cells]) => el("tr", {}, el("th", { scope: "row" }, first), ...cells.map((one) => el("td", {}, one))));
      const table = el("table", {}, el("thead", {}, head), el("tbody", {}, ...body));
      details.append(el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": label }, table));
    });
    return details;
  }

  /** The fields that a chart's tooltips show. @param {Record<string, any>} part @returns {{field: string, title?: string}[] | undefined} */
  const told = (part) => part.encoding?.tooltip ?? (part.layer ?? []).map(told).find(Boolean);

  /** The numbers of a chart as a table, for those who do not see it or use no mouse.
   * @param {Element} figure @param {Record<string, any>} spec */
  function numbers(figure, spec) {
    if (figure.querySelector("details") || spec.quiet) return;
    const [values, fields] = [spec.data?.values, told(spec)];
    if (!Array.isArray(values) || !values.length || !fields) return;
    const label = figure.querySelector(".drawing")?.getAttribute("aria-label") ?? "";
    figure.append(listed("Data table", `Data table: ${label}`, fields.map((one) => one.title ?? one.field),
      () => values.map((/** @type {any} */ value) => fields.map((one) => short(value[one.field])))));
  }

  /** @param {unknown} value */
  function short(value) {
    if (typeof value !== "number") return value === null || value === undefined ? "" : String(value);
    return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4)));
  }

  function theme() {
    byId("theme").addEventListener("click", () => {
      const root = document.documentElement;
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
      try {
        localStorage.setItem("theme", root.dataset.theme);
      } catch {
        // Refused: the choice holds for this page alone.
      }
    });
  }

  /** A stage that a link leads to is inside a closed list: it is opened. */
  function reveal() {
    const target = location.hash.startsWith("#stage-") ? document.getElementById(location.hash.slice(1)) : null;
    const list = target?.closest("details");
    if (list) list.open = true;
    target?.scrollIntoView();
  }

  /** Escape closes a chart's tooltip, without moving the pointer (WCAG 1.4.13). */
  function closable() {
    addEventListener("keydown", (event) => {
      if (event.key === "Escape") document.getElementById("vg-tooltip-element")?.classList.remove("visible");
    });
  }

  function begin() {
    theme();
    closable();
    addEventListener("hashchange", reveal);
    reveal();
    // Charts wait for the text to be painted.
    requestAnimationFrame(() => setTimeout(() => charts().catch(failed)));
  }

  return { load, received, el, visible, renew, listed, byId, turned, fill, state, go, failed, draw, short, begin };
})();

/** Called by the files in data/. @param {string} name @param {string} packed */
function chunk(name, packed) {
  page.received(name, packed);
}

page.begin();
