"use strict";
// One model: what it writes word by word, where its copy attention looked, and how it became what it is.

(() => {
  const SAID = { valid: "valid here", wrong: "first error", after: "after the error" };
  const SIGN = { valid: "✓", wrong: "✗ first error", after: "·" };

  const { firstChoices, drawChoices, lookOf, lookInWords, drawLook, placesOf, placesWritten, percent } =
    unseen.look;

  /** Brings a copy of the template to life. `onModel(name)` hears when the reader chooses another model. */
  unseen.modelPanel = (section, ordinal, { onModel }) => {
    const find = (part) => section.querySelector(`[data-${part}]`);
    const [list, verdict, lookPart, look, training] = ["proof", "verdict", "look-part", "look", "training"].map(
      find,
    );
    const select = section.querySelector("select");
    const label = section.querySelector("label");
    select.id = `pg-model-${ordinal.toLowerCase()}`;
    label.htmlFor = select.id;
    label.textContent = `${ordinal} model`;
    for (const name of unseen.models.names()) select.append(new Option(unseen.models.about(name).title, name));
    select.addEventListener("change", () => onModel(select.value));
    const isWide = matchMedia("(min-width: 641px)").matches; // on a phone the proofs come first
    for (const part of section.querySelectorAll("details")) part.open = isWide;

    let shown = null; // {name, step, model}
    let asked = null; // {problem, naming, prompt}: what is to be proved; null where the fields hold no problem
    let writing = null; // the generator that the words come from; null before the first word
    let written = []; // {word, mark: "valid"|"wrong"|"after", copy: looks of its heads or null, odds}
    let ended = false;
    let chosen = -1; // the word whose look is drawn
    let heads = "all";

    const about = () => unseen.models.about(shown.name);

    /** Another model, or the same after another number of training steps. */
    function show(name, step, model) {
      shown = { name, step, model };
      select.value = name;
      section.setAttribute("aria-label", `${ordinal}: ${about().title}`);
      list.setAttribute("aria-label", `Proof by ${about().title}`);
      find("about").textContent = describe(about());
      if (heads !== "all" && heads >= (model.config.copy_heads ?? 0)) heads = "all";
    }

    /** Another problem for it; nothing is written yet. */
    function ask(problem, naming) {
      asked = problem && { problem, naming, prompt: placesOf(problem) };
      reset();
      showTraining();
    }

    function reset() {
      writing = null;
      written = [];
      ended = false;
      chosen = -1;
      list.replaceChildren(make("li", { className: "pg-empty", textContent: "Nothing written yet." }));
      verdict.replaceChildren();
      look.replaceChildren();
      lookPart.hidden = true;
    }

    /** Write one more word; false when there is none. */
    function step() {
      if (ended) return false;
      const { model } = shown;
      const { problem, naming } = asked;
      if (writing === null) {
        writing = unseen.complete(
          model,
          naming.encode(unseen.writeProblem(problem)),
          unseen.longestProof(problem),
        );
        list.replaceChildren();
      }
      const { value, done } = writing.next();
      if (done) {
        end();
        return false;
      }
      const words = written.map(({ word }) => word);
      const [word] = naming.decode([value.id]);
      const due = unseen.continuations(problem, words);
      const broken = written.some(({ mark }) => mark === "wrong");
      const mark = broken ? "after" : due.includes(word) ? "valid" : "wrong";
      written.push({ word, mark, copy: value.copy, odds: firstChoices(value.logits, naming, due[0] ?? null) });
      list.append(chip(written.length - 1));
      choose(written.length - 1);
      if (word === "<eos>") end();
      return !ended;
    }

    function end() {
      ended = true;
      const found = unseen.readTranscript(
        asked.problem,
        written.map(({ word }) => word),
        asked.naming.isUnseen,
      );
      if (found.mistake && found.mistake.position >= written.length) list.append(chip(written.length, "(end)"));
      choose(worthALook());
      verdict.replaceChildren(...unseen.verdict(found, written, unseen.entails(asked.problem)));
    }

    /** The first error, or else the last name: what follows it says little. */
    function worthALook() {
      const wrong = written.findIndex(({ mark }) => mark === "wrong");
      const name = written.findLastIndex(({ word }) => !asked.naming.isControl(word));
      return Math.max(0, wrong >= 0 ? wrong : name);
    }

    // ---- the words ----

    function chip(i, ending) {
      const { word, mark } = ending ? { word: ending, mark: "wrong" } : written[i];
      const name = make("span", { className: kindOf(word), textContent: word });
      if (mark === "wrong") name.className = "first-error";
      const sign = make("span", { className: "pg-mark", textContent: SIGN[mark] });
      sign.setAttribute("aria-hidden", "true");
      const button = make("button", { type: "button", className: `pg-word pg-new pg-${mark}` });
      button.setAttribute(
        "aria-label",
        [`${i + 1}: ${word}`, nameKind(word), SAID[mark]].filter(Boolean).join(", "),
      );
      button.append(name, sign);
      if (ending) button.disabled = true;
      else {
        button.addEventListener("click", () => {
          choose(i);
          lookPart.open = true;
        });
        button.addEventListener("focus", () => choose(i));
        button.addEventListener("keydown", (event) => walk(event, i));
      }
      const item = make("li");
      item.append(button);
      return item;
    }

    const kindOf = (word) =>
      asked.naming.isControl(word) ? "quiet" : asked.naming.isUnseen(word) ? "unseen" : "seen";

    const nameKind = (word) => ({ quiet: "", unseen: "unseen name", seen: "seen name" })[kindOf(word)];

    function walk(event, i) {
      const last = written.length - 1;
      const target = {
        ArrowLeft: i - 1,
        ArrowUp: i - 1,
        ArrowRight: i + 1,
        ArrowDown: i + 1,
        Home: 0,
        End: last,
      }[event.key];
      if (target === undefined) return;
      event.preventDefault();
      buttons()[Math.min(last, Math.max(0, target))].focus();
    }

    const buttons = () => list.querySelectorAll(".pg-word:enabled");

    function choose(i) {
      chosen = i;
      buttons().forEach((button, j) => {
        button.setAttribute("aria-pressed", String(j === i));
        button.tabIndex = j === i ? 0 : -1;
      });
      showLook();
    }

    // ---- why this word ----

    function showLook() {
      const { word, odds, copy } = written[chosen];
      find("look-title").textContent = `Word ${chosen + 1}: ${word}`;
      lookPart.hidden = false;
      look.replaceChildren(drawChoices(odds, kindOf));
      if (!copy) {
        look.append(make("p", { className: "pg-note", textContent: "This model has no copy attention." }));
        return;
      }
      const weights = lookOf(copy, heads);
      const places = [...asked.prompt, ...placesWritten(written.slice(0, chosen).map((before) => before.word))];
      look.append(
        headChoice(copy.length),
        make("p", { textContent: lookInWords(weights, places) }),
        drawLook(weights, places),
      );
    }

    function headChoice(count) {
      const id = `pg-heads-${ordinal.toLowerCase()}`;
      const box = make("div", { className: "pg-heads" });
      const choice = make("select", { id });
      choice.append(new Option(`all ${count} heads, mean`, "all"));
      for (let i = 0; i < count; i++) choice.append(new Option(`head ${i + 1}`, String(i)));
      choice.value = String(heads);
      choice.addEventListener("change", () => {
        heads = choice.value === "all" ? "all" : Number(choice.value);
        showLook();
        look.querySelector("select").focus();
      });
      box.append(make("label", { htmlFor: id, textContent: "Copy attention of" }), choice);
      return box;
    }

    // ---- how it became what it is ----

    function showTraining() {
      const { title, checkpoints } = about();
      const steps = checkpoints.map(({ step }) => step);
      const share = (scenario) => checkpoints.map(({ measures }) => measures[scenario].proof_validity);
      const kept = checkpoints.map(({ measures }) => spreadKept(measures.rows));
      const series = [
        { kind: "seen", label: "valid proofs, all names seen", values: share("seen"), text: percent },
        { kind: "unseen", label: "valid proofs, all unseen", values: share("all_unseen"), text: percent },
        { kind: "rows", label: "difference kept by unseen rows", values: kept, text: percent },
      ];
      const description = `Curves over training of ${title}; their values at step ${shown.step} stand below.`;
      training.replaceChildren(...unseen.charts.curves(steps, series, steps.indexOf(shown.step), description));
      if (asked === null) return;
      const names = unseen.symbols(asked.problem);
      const rows = shown.model.rows(asked.naming.encode(names));
      training.append(
        make("h4", { textContent: "Cosines of the rows of these names" }),
        unseen.charts.cosines(names, rows, `Cosines of the rows of these names, ${title}, step ${shown.step}`),
      );
    }

    return {
      show,
      ask,
      reset,
      step,
      isEnded: () => ended,
      hasBegun: () => written.length > 0,
      /** Choose in the list the model that is there, when another did not come. */
      restore: () => (select.value = shown.name),
      /** Sentences for the ear. */
      lastWord: () => `${about().title}: ${written.at(-1).word}, ${SAID[written.at(-1).mark]}.`,
      outcome: () => {
        const said = [...verdict.querySelectorAll("strong")].map(({ textContent }) =>
          textContent.slice(2).replace(/:$/, "."),
        );
        return `${about().title}: ${said.join(" ")}`;
      },
    };
  };

  /** What the features can tell unseen rows apart by, against rows freshly drawn (chapter 3). */
  const spreadKept = ({ unseen: rows, fresh }) => rows.functional_spread / fresh.functional_spread;

  function describe({ parameters, policy, copy }) {
    const table = policy === "frozen" ? "table of names frozen" : "table of names trained";
    return `${Math.round(parameters / 1000)} thousand parameters, ${table}, ${copy ? "with" : "no"} copy attention`;
  }

  function make(tag, properties = {}) {
    return Object.assign(document.createElement(tag), properties);
  }
})();
