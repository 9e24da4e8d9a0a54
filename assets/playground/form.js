"use strict";
// The editor: three fields, a name field for each name of the problem, and a choice of where names come from.

(() => {
  const PAUSE = 400; // ms without a key before what was typed is read
  const FIELDS = ["rules", "facts", "query"];

  /**
   * Brings the form to life. `onProblem(problem, how)` hears of each new problem, where `how` is "typed",
   * "renamed" or "new"; `onFault()` hears when what stands in the fields is none.
   * Returns {set(fields), problem(), fields(), complain()}.
   */
  unseen.problemForm = (form, vocabulary, { onProblem, onFault }) => {
    const { task } = unseen.manifest;
    const box = Object.fromEntries(FIELDS.map((name) => [name, form.querySelector(`#pg-${name}`)]));
    const nameList = form.querySelector("[data-names]");
    const partners = new Map(); // name <-> the name that took its place, so that one can switch back
    let problem = null; // null while the fields hold none
    let waiting = 0;

    const fields = () => Object.fromEntries(FIELDS.map((name) => [name, box[name].value]));

    function set(texts) {
      for (const name of FIELDS) box[name].value = texts[name];
      return read();
    }

    /** Read the fields, and say beside each what is wrong with it. */
    function read() {
      clearTimeout(waiting);
      waiting = 0;
      const found = unseen.parse(fields(), task);
      const errors = [...found.errors];
      if (found.problem) {
        try {
          unseen.naming(found.problem, vocabulary);
        } catch (error) {
          errors.push({ field: "rules", line: null, message: error.message });
        }
      }
      for (const name of FIELDS) {
        const mine = errors.filter(({ field }) => field === name || (field === "problem" && name === "rules"));
        tell(box[name], form.querySelector(`#pg-${name}-fault`), mine.map(withLine).join(" "));
      }
      tell(null, form.querySelector("#pg-names-fault"), "");
      showWarnings(found.problem ? found.warnings : []);
      problem = errors.length ? null : found.problem;
      form.querySelector(".pg-names").hidden = !problem;
      if (problem) showNames();
      else for (const radio of form.elements["pg-names"]) radio.checked = false;
      return problem;
    }

    function showWarnings(warnings) {
      const list = form.querySelector("[data-warnings]");
      list.replaceChildren(...warnings.map((text) => element("li", { textContent: text })));
      list.hidden = !warnings.length;
    }

    // ---- names ----

    const isSeen = (name) => vocabulary.isSeen(name);
    const symbols = () => unseen.symbols(problem);

    function showNames() {
      const kind = (name) => (isSeen(name) ? "seen" : vocabulary.isUnseen(name) ? "unseen" : "new");
      const items = symbols().map((name, i) => {
        const id = `pg-name-${i}`;
        const input = element("input", {
          id,
          type: "text",
          value: name,
          spellcheck: false,
          autocomplete: "off",
        });
        input.setAttribute("autocapitalize", "off");
        input.className = isSeen(name) ? "seen" : "unseen";
        input.addEventListener("change", () => renameOne(name, input));
        const label = element("label", { htmlFor: id, textContent: kind(name) });
        label.prepend(element("span", { className: "pg-hidden", textContent: `Name ${i + 1}, ` }));
        const item = element("li");
        item.append(input, label);
        return item;
      });
      const focused = [...nameList.querySelectorAll("input")].indexOf(document.activeElement);
      nameList.replaceChildren(...items);
      if (focused >= 0) nameList.querySelectorAll("input")[focused]?.focus();

      const own = symbols().filter((name) => kind(name) === "new");
      const note = form.querySelector("[data-new-names]");
      note.hidden = !own.length;
      note.textContent =
        own.length === 1
          ? `${own[0]} is a name of yours: it takes a row of the table that training never used.`
          : `${own.join(", ")} are names of yours: each takes a row of the table that training never used.`;
      for (const radio of form.elements["pg-names"]) radio.checked = radio.value === scenario();
    }

    /** Which of the three choices the names of the problem are, or null. */
    function scenario() {
      const notSeen = symbols().filter((name) => !isSeen(name));
      if (notSeen.length === 0) return "seen";
      if (notSeen.length === symbols().length) return "all_unseen";
      return notSeen.length === 1 && notSeen[0] === problem.query ? "query_unseen" : null;
    }

    function renameOne(old, input) {
      const { name, error } = unseen.readName(input.value);
      const fault = form.querySelector("#pg-names-fault");
      const taken = name !== old && symbols().includes(name);
      const twice = `${name} is in the problem already: under one name, two would become the same.`;
      tell(input, fault, error ?? (taken ? twice : ""));
      if (error || taken) input.setAttribute("aria-describedby", fault.id);
      else if (name !== old) take(unseen.fields(unseen.rename(problem, { [old]: name })), "renamed");
    }

    /** The same problem with its names drawn anew where they are not of the kind that was chosen. */
    function recast(choice) {
      const used = new Set(symbols());
      const casting = {};
      for (const name of symbols()) {
        const wantsSeen = choice === "seen" || (choice === "query_unseen" && name !== problem.query);
        if (isSeen(name) === wantsSeen) continue;
        const partner = partners.get(name);
        const other = partner && !used.has(partner) ? partner : draw(wantsSeen, used);
        used.add(other);
        partners.set(name, other).set(other, name);
        casting[name] = other;
      }
      take(unseen.fields(unseen.rename(problem, casting)), "renamed");
    }

    function draw(seen, used) {
      const free = (seen ? vocabulary.seenWords : vocabulary.unseenWords).filter((name) => !used.has(name));
      return free[Math.floor(Math.random() * free.length)];
    }

    // ---- what the reader does ----

    function take(texts, how) {
      if (set(texts)) onProblem(problem, how);
      else onFault();
    }

    function drawNew() {
      const names = (problem && scenario()) || "seen";
      const seed = Math.floor(Math.random() * 2 ** 31);
      take(unseen.fields(unseen.randomProblem({ task, vocabulary, names, seed })), "new");
    }

    function typed() {
      if (read()) onProblem(problem, "typed");
      else onFault();
    }

    for (const name of FIELDS) {
      box[name].addEventListener("input", () => {
        clearTimeout(waiting);
        waiting = setTimeout(typed, PAUSE);
      });
    }
    form.addEventListener("submit", (event) => event.preventDefault());
    form.querySelector("[data-new]").addEventListener("click", drawNew);
    for (const radio of form.elements["pg-names"]) {
      radio.addEventListener("change", () => {
        if (problem) recast(radio.value);
        else radio.checked = false;
      });
    }

    return {
      set,
      fields,
      problem: () => problem,
      /** Read what may have been typed a moment ago. Null if a field is at fault, and one goes to the first. */
      settle() {
        if (waiting) typed();
        const wrong = [...FIELDS.map((name) => box[name]), ...nameList.querySelectorAll("input")].find(isWrong);
        wrong?.focus();
        return wrong ? null : problem;
      },
    };
  };

  const isWrong = (input) => input.getAttribute("aria-invalid") === "true";

  const withLine = ({ field, line, message }) =>
    field === "rules" && line ? `Line ${line}: ${message}` : message;

  function tell(input, place, message) {
    place.textContent = message;
    place.hidden = !message;
    if (!input) return;
    if (message) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
  }

  function element(tag, properties = {}) {
    return Object.assign(document.createElement(tag), properties);
  }
})();
