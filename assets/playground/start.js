"use strict";
// What the page loads at once: the button that loads all the rest, and the numbers of the manifest in the text.

var unseen = window.unseen || {};

(() => {
  const FOLDER = new URL("./", document.currentScript.src).href;
  const CODE = [
    ...["engine.js", "logic.js", "language.js", "problems.js"],
    ...["models.js", "address.js", "charts.js", "form.js", "look.js", "verdict.js", "panel.js", "page.js"],
  ];
  const MANIFEST = "models/manifest.js";
  const arrived = new Map(); // file -> promise

  /** Run a script of ours once; a script that did not arrive can be asked for again. */
  unseen.load = (file) => {
    if (!arrived.has(file)) {
      arrived.set(
        file,
        new Promise((resolve, reject) => {
          const script = document.createElement("script");
          script.onload = resolve;
          script.onerror = () => {
            script.remove();
            arrived.delete(file);
            reject(new Error(`The file ${file} could not be loaded.`));
          };
          script.src = FOLDER + file;
          document.head.append(script);
        }),
      );
    }
    return arrived.get(file);
  };

  async function start(root) {
    const find = (name) => root.querySelector(name);
    const [button, bar, fault] = [find("[data-start]"), find(".pg-loading"), find("[data-start-fault]")];
    button.hidden = fault.hidden = true;
    bar.hidden = false;
    try {
      const state = await loadAll((share, text) => {
        find("progress").value = share;
        find("[data-loading-text]").textContent = text;
      });
      unseen.openPlayground(root, state);
    } catch (error) {
      fault.textContent = `${error.message} Check that the book is complete and within reach, then try again.`;
      fault.hidden = button.hidden = false;
      button.textContent = "Try again";
      button.focus();
    } finally {
      bar.hidden = true;
    }
  }

  /** Code first, then the two models that are shown first; tells how far it is. */
  async function loadAll(tell) {
    await unseen.load(MANIFEST);
    for (const [i, file] of CODE.entries()) {
      tell((0.2 * i) / CODE.length, "Loading the code");
      await unseen.load(file);
    }
    const state = unseen.address.read();
    for (const [i, name] of state.models.entries()) {
      tell(0.2 + 0.4 * i, `Loading model ${i + 1} of ${state.models.length}`);
      await unseen.models.get(name, state.step);
    }
    return state;
  }

  /** Fill the table of scores from the manifest, and say on the button how much it will load. */
  function fillFromManifest(root) {
    const models = unseen.manifest.models;
    const megabytes = models.slice(0, 2).reduce((sum, model) => sum + model.checkpoints.at(-1).bytes, 0) / 1e6;
    root.querySelector("[data-start]").textContent = `Start (loads ${megabytes.toFixed(1)} MB)`;
    document.querySelector("[data-playground-scores]").replaceWith(scores(unseen.manifest));
    const same = Math.min(...models.map((model) => model.checkpoints.at(-1).measures.same_text));
    document.querySelector("[data-playground-rounding]").textContent =
      `At the end of training, at least ${(100 * same).toFixed(1)} % of the texts under the test problems are word ` +
      "for word those from before the rounding, in each of the models.";
  }

  function scores({ models, test }) {
    const scenarios = { seen: "all seen", query_unseen: "query unseen", all_unseen: "all unseen" };
    const table = document.createElement("table");
    table.className = "table pg-scores";
    table.createCaption().textContent = `Valid proofs at the end of training, of ${test.problems} test problems, by what their names are.`;
    const head = table.createTHead().insertRow();
    for (const text of ["model", ...Object.values(scenarios)]) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = text;
      head.append(cell);
    }
    const body = table.createTBody();
    for (const model of models) {
      const row = body.insertRow();
      const name = document.createElement("th");
      name.scope = "row";
      name.textContent = model.title;
      row.append(name);
      for (const scenario of Object.keys(scenarios)) {
        const share = model.checkpoints.at(-1).measures[scenario].proof_validity;
        row.insertCell().textContent = `${Math.round(100 * share)} %`;
      }
    }
    return table;
  }

  const root = document.getElementById("playground");
  const button = root.querySelector("[data-start]");
  root.querySelector("[data-without-script]").remove();
  button.hidden = false;
  button.addEventListener("click", () => start(root));
  if (location.hash.startsWith("#rules=")) {
    root.querySelector(".pg-start-text").prepend("The address holds a problem: start to see it. ");
    root.scrollIntoView();
  }
  unseen.load(MANIFEST).then(
    () => fillFromManifest(root),
    () => {},
  ); // said when the reader starts
})();
