"use strict";
// Why a model wrote a word: the likeliest words there, and where its copy attention looked.

(() => {
  const SMALLEST = 0.005; // less would read as "0 %"
  const WORTH_A_NUMBER = 0.05; // of a look
  const CHOICES = 3;

  /** The likeliest words as {word, p, isDue}, and behind them the one that is due (null: none is). */
  const firstChoices = (logits, naming, due) => {
    const top = logits.reduce((a, b) => Math.max(a, b), -Infinity);
    const total = logits.reduce((sum, logit) => sum + Math.exp(logit - top), 0);
    const choice = (id) => {
      const [word] = naming.decode([id]);
      return { word, p: Math.exp(logits[id] - top) / total, isDue: word === due };
    };
    const first = [...logits.keys()]
      .sort((a, b) => logits[b] - logits[a])
      .slice(0, CHOICES)
      .map(choice);
    const shown = first.filter(({ p }, i) => i === 0 || p >= SMALLEST);
    return due === null || shown.some(({ isDue }) => isDue)
      ? shown
      : [...shown, choice(...naming.encode([due]))];
  };

  /** The choices with a bar each; `kindOf` gives a word its class. */
  const drawChoices = (choices, kindOf) => {
    const list = make("ul", { className: "pg-choices proof" });
    list.setAttribute("aria-label", "Its first choices");
    for (const { word, p, isDue } of choices) {
      const bar = make("span", { className: "pg-bar" });
      bar.style.setProperty("--weight", p.toFixed(4));
      const name = make("span", { className: kindOf(word), textContent: word });
      const item = make("li");
      item.append(name, bar, make("span", { textContent: percent(p) + (isDue ? ", due" : "") }));
      list.append(item);
    }
    return list;
  };

  // ---- attention over the text ----

  /** The words of the prompt, each with the part of the text it is in and how to name its place. */
  const placesOf = (problem) => {
    const places = [{ word: "<bos>", part: "", place: "" }];
    const head = (word) => places.push({ word, part: word, place: "" });
    const add = (word, place, group) => places.push({ word, part: places.at(-1).part, place, group });
    head("Rules:");
    problem.rules.forEach(({ body, head: given }, i) => {
      for (const word of [...body, "then", given]) add(word, ` in rule ${i + 1}`, i);
    });
    head("Facts:");
    for (const [i, fact] of problem.facts.entries()) add(fact, " in the facts", i);
    head("Query:");
    add(problem.query, " in the query", 0);
    head("Reasoning:");
    return places;
  };

  /** The words of a proof, to stand behind those of the prompt. */
  const placesWritten = (words) =>
    words.map((word, i) => ({ word, part: "Reasoning:", place: ` in the proof, word ${i + 1}`, group: i }));

  const lookOf = (copy, heads) =>
    heads === "all"
      ? Array.from(copy[0], (_, i) => copy.reduce((sum, head) => sum + head[i], 0) / copy.length)
      : Array.from(copy[heads]);

  const lookInWords = (weights, places) => {
    const parts = weights
      .map((weight, i) => ({ weight, ...places[i] }))
      .filter(({ weight }) => weight >= WORTH_A_NUMBER)
      .sort((a, b) => b.weight - a.weight)
      .slice(0, 3)
      .map(({ weight, word, place }) => `${percent(weight)} at ${place ? word : `“${word}”`}${place}`);
    return parts.length
      ? `Looks ${parts.join(", ")}.`
      : `Looks at no place for more than ${percent(WORTH_A_NUMBER)}.`;
  };

  /** The text that was read, each word on a ground as strong as its weight. */
  const drawLook = (weights, places) => {
    const box = make("div", { className: "pg-text" });
    box.setAttribute("aria-hidden", "true"); // the sentence above says it
    let line = null;
    let group = null;
    places.forEach(({ word, part, group: mine }, i) => {
      const token = make("span", { className: "pg-token", textContent: word });
      token.style.setProperty("--weight", weights[i].toFixed(3));
      if (weights[i] >= WORTH_A_NUMBER) token.append(make("b", { textContent: percent(weights[i]) }));
      if (mine === undefined) {
        box.append(make("div"), (line = make("div"))); // its heading, then what stands under it
        box.children[box.children.length - 2].append(token);
        group = null;
        return;
      }
      if (group?.of !== mine) {
        group = { of: mine, box: make("span") };
        line.append(group.box);
      }
      if (group.box.hasChildNodes()) group.box.append(" ");
      group.box.append(token);
    });
    return box;
  };

  function percent(share) {
    if (share > 0 && share < SMALLEST) return "<1 %";
    if (share < 1 && share > 1 - SMALLEST) return ">99 %";
    return `${Math.round(100 * share)} %`;
  }

  function make(tag, properties = {}) {
    return Object.assign(document.createElement(tag), properties);
  }

  unseen.look = { firstChoices, drawChoices, lookOf, lookInWords, drawLook, placesOf, placesWritten, percent };
})();
