// @ts-check
// An episode, a training example or a path of a tree, as a dialogue.
"use strict";

/**
 * @typedef {[string, number, (number[] | null)?, (number[] | null)?, (number[] | null)?]} Part
 *   text, weight in training, token ids, their log-probabilities, the same under the model before
 * @typedef {{r: string, p: Part[], v?: Record<string, any>, [more: string]: any}} Said
 */

const dialogue = (() => {
  const { el, visible } = page;
  const ROLES = new Map([
    ["system", "system"], ["user", "prompt"], ["assistant", "model"], ["environment", "environment"], ["reflector", "reflection"],
  ]);

  /** @param {number} value */
  const signed = (value) => `${value < 0 ? "−" : ""}${Math.abs(value).toFixed(3).replace(/\.?0+$/, "")}`;

  /** @param {Said} said @param {{tokens: boolean, vocabulary: Record<string, string>, top: number}} how @param {number} number */
  function message(said, how, number) {
    const who = el("div", { class: "who" }, el("b", {}, ROLES.get(said.r) ?? visible(said.r)));
    const tell = (/** @type {string} */ text, kind = "") => who.append(el("span", kind ? { class: kind } : {}, visible(text)));
    if (said.by && said.by !== "student" && said.by !== "actor") tell(`by ${said.by}`);
    if (said.reward !== undefined && said.reward !== null) tell(`reward ${signed(said.reward)}`, said.reward > 0 ? "good" : "");
    if (said.cost !== undefined) tell(`cost ${signed(said.cost)}`);
    if (said.tool) tell(`tool ${said.tool}`);
    else if (said.answer !== undefined) tell(said.answer === said.p[0]?.[0] ? "" : `→ ${said.answer}`);
    if (said.ok === false) tell("invalid", "bad");
    if (said.misread) tell("misreads the map", "bad");
    if (said.cut) tell("truncated at the token limit", "bad");
    if (said.togo !== undefined) tell(`cost to go ${signed(said.togo)}`);
    if (said.logprob !== undefined) tell(`log p ${signed(said.logprob)}`);
    const weights = said.p.map((part) => part[1]).filter((one) => one > 0);
    if (weights.length) tell(`training weight ${page.short(Math.max(...weights))}`);
    const text = el("div", { class: "text" }, ...said.p.flatMap((part) => pieces(part, how)));
    const made = el("div", { class: `message ${said.r}` }, who, text);
    if (how.tokens && said.p.some((part) => part[2]?.length)) made.append(values(said.p, how.vocabulary, number));
    if (said.v) made.append(scene(said.v));
    if (said.others) {
      const items = said.others.map((/** @type {[string, number | null]} */ [other, reward]) =>
        el("li", {}, visible(other), el("span", { class: "small" }, reward === null ? "" : ` (reward ${signed(reward)})`)));
      made.append(el("details", { class: "others" }, el("summary", {}, `${items.length} other sample${items.length === 1 ? "" : "s"} of this turn`), el("ul", {}, ...items)));
    }
    return made;
  }

  /** The values that tokens show under the mouse, as a table.
   * @param {Part[]} parts @param {Record<string, string>} vocabulary @param {number} number */
  function values(parts, vocabulary, number) {
    const told = (/** @type {number | null | undefined} */ p) => (p === undefined || p === null ? "" : signed(p));
    return page.listed("Token values", `Token values of message ${number}`, ["token", "number", "weight", "log p", "log p before training"], () =>
      parts.flatMap(([, weight, ids, now, before]) => (ids ?? []).map((id, place) =>
        [visible(vocabulary[id] ?? `[${id}]`), String(id), page.short(weight), told(now?.[place]), told(before?.[place])])));
  }

  /** @param {Part} part @param {{tokens: boolean, vocabulary: Record<string, string>, top: number}} how
   * @returns {Node[]} */
  function pieces([text, weight, ids, now, before], how) {
    if (how.tokens && ids?.length) {
      return ids.map((id, place) => {
        const piece = how.vocabulary[id] ?? `[${id}]`;
        const p = now?.[place], old = before?.[place];
        const told = [`token ${id}`, `weight ${page.short(weight)}`];
        if (p !== undefined && p !== null) told.push(`log p ${signed(p)}`);
        if (old !== undefined && old !== null) told.push(`log p before training ${signed(old)}`);
        const made = el("span", { class: `token${p === undefined || p === null ? "" : " scored"}`, title: told.join(", ") }, visible(piece));
        if (p !== undefined && p !== null) made.style.setProperty("--share", String(1 - Math.exp(p)));
        return made;
      });
    }
    if (!weight) return [visible(text)];
    const made = el("span", { class: "learnt", title: `weight ${page.short(weight)}` }, visible(text));
    made.style.setProperty("--share", String(Math.min(1, weight / how.top)));
    return [made];
  }

  const SVG = "http://www.w3.org/2000/svg";

  /** @param {string} tag @param {Record<string, any>} attributes @param {...(string | Node)} children */
  function svg(tag, attributes, ...children) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
    made.append(...children);
    return made;
  }

  /** @param {Record<string, any>} what */
  function scene(what) {
    if (what.taxi) return el("div", { class: "scene" }, taxi(what.taxi));
    if (what.kitchen) return el("div", { class: "scene" }, kitchen(what.kitchen));
    const items = Object.entries(what.carries ?? {});
    const chips = items.map(([name, count]) => el("span", {}, visible(`${count} ${name}`)));
    return el("div", { class: "scene chips" }, "inventory:", ...(chips.length ? chips : [" empty"]));
  }

  /** The grid: letters stand in the even columns, walls and passages between them.
   * @param {string[]} lines */
  function taxi(lines) {
    const size = 30;
    const words = /** @type {string[]} */ ([]);
    const drawn = svg("svg", { viewBox: `-3 -3 ${5 * size + 6} ${5 * size + 6}`, width: 5 * size + 6, role: "img" });
    lines.forEach((line, y) => {
      for (let x = 0; x < 5; x += 1) {
        drawn.append(svg("rect", { class: "cell", x: x * size, y: y * size, width: size, height: size }));
      }
    });
    lines.forEach((line, y) => {
      for (let x = 0; x < 5; x += 1) {
        const letter = line[2 * x] ?? " ";
        const [cx, cy] = [x * size + size / 2, y * size + size / 2];
        const where = `row ${y + 1}, column ${x + 1}`;
        if (letter === "D") drawn.append(svg("rect", { class: "goal", x: cx - 9, y: cy - 9, width: 18, height: 18 }));
        if ("TOX".includes(letter)) drawn.append(svg("rect", { class: "taxi", x: cx - 10, y: cy - 7, width: 20, height: 14, rx: 4 }));
        if ("POX".includes(letter)) drawn.append(svg("circle", { class: "passenger", cx, cy, r: letter === "P" ? 7 : 4 }));
        const name = { T: "taxi", P: "passenger", D: "destination", O: "taxi on the waiting passenger", X: "taxi with the passenger" }[letter];
        if (name) words.push(`${name} at ${where}`);
        if (line[2 * x + 1] === "|" && x < 4) {
          drawn.append(svg("line", { class: "wall", x1: (x + 1) * size, x2: (x + 1) * size, y1: y * size, y2: (y + 1) * size }));
        }
      }
    });
    const frame = [[0, 0, 5, 0], [5, 0, 5, 5], [5, 5, 0, 5], [0, 5, 0, 0]];
    for (const [x1, y1, x2, y2] of frame) {
      drawn.append(svg("line", { class: "wall", x1: x1 * size, y1: y1 * size, x2: x2 * size, y2: y2 * size }));
    }
    drawn.setAttribute("aria-label", words.join("; "));
    return drawn;
  }

  /** @param {{places: string[], at: string, holds: string, in: Record<string, string[]>, open: string[]}} room */
  function kitchen(room) {
    const [across, width, height] = [4, 132, 52];
    const rows = Math.ceil(room.places.length / across);
    const drawn = svg("svg", { viewBox: `-2 -2 ${across * width + 4} ${rows * height + 24}`, width: across * width + 4, role: "img" });
    room.places.forEach((place, index) => {
      const [x, y] = [(index % across) * width, Math.floor(index / across) * height];
      const here = place === room.at ? " here" : "";
      drawn.append(svg("rect", { class: `cell${here}`, x: x + 2, y: y + 2, width: width - 6, height: height - 6, rx: 6 }));
      drawn.append(svg("text", { x: x + 9, y: y + 18 }, room.open.includes(place) ? `${place} (open)` : place));
      const held = room.in[place];
      const told = held === undefined ? "not seen yet" : held.length ? held.join(", ") : "empty";
      drawn.append(svg("text", { class: "faint", x: x + 9, y: y + 35 }, told.length > 22 ? `${told.slice(0, 21)}…` : told));
    });
    const hands = `${room.at ? `at ${room.at}` : "in the middle of the room"}; holding ${room.holds || "nothing"}`;
    drawn.append(svg("text", { x: 2, y: rows * height + 16 }, hands));
    drawn.setAttribute("aria-label", `Kitchen: ${hands}`);
    return drawn;
  }

  /** @param {Said[]} messages @param {{tokens?: boolean, vocabulary?: Record<string, string>}} [how] */
  function show(messages, how = {}) {
    const weights = messages.flatMap((said) => said.p.map((part) => part[1]));
    const full = { tokens: how.tokens ?? false, vocabulary: how.vocabulary ?? {}, top: Math.max(1, ...weights) };
    return el("div", { class: "dialogue" }, ...messages.map((said, place) => message(said, full, place + 1)));
  }

  return { show, signed };
})();
