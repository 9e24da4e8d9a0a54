"use strict";
// The playground as a whole: one problem, two models at one step of their training, and who writes when.

(() => {
  const PACE = 420; // ms a word while both write

  /** Fill the container; `state` is what `address.read` gives; its fields live in the form from then on. */
  unseen.openPlayground = (root, state) => {
    const vocabulary = unseen.vocabulary(unseen.manifest.vocabulary);
    const steps = unseen.models.steps();
    root.replaceChildren(document.getElementById("playground-parts").content.cloneNode(true));
    const find = (part) => root.querySelector(`[data-${part}]`);
    const [runButton, slider, live] = [
      find("run"),
      root.querySelector("#pg-step"),
      root.querySelector(".pg-live"),
    ];
    const still = matchMedia("(prefers-reduced-motion: reduce)");

    const panels = ["First", "Second"].map((ordinal, i) => {
      const copy = document.getElementById("playground-model").content.cloneNode(true);
      const section = copy.querySelector("section");
      find("models").append(copy);
      return unseen.modelPanel(section, ordinal, {
        onModel: (name) => change({ models: wanted.models.map((old, j) => (i === j ? name : old)) }),
      });
    });
    const form = unseen.problemForm(root.querySelector("form"), vocabulary, {
      onProblem: (problem, how) => {
        const again = how === "renamed" && hasBegun();
        pose();
        if (again) whole();
        remember(how !== "typed");
      },
      onFault: () => pose(),
    });

    let timer = 0; // while both write
    let wanted = state; // models and step, while they load
    let turn = 0; // of loading: what arrives late for an earlier one is dropped

    const hasBegun = () => panels.some((panel) => panel.hasBegun());
    const bothEnded = () => panels.every((panel) => panel.isEnded());

    /** Load and show other models, or the same at another step. What was written is written again, whole. */
    async function change(part) {
      stop();
      const mine = ++turn;
      wanted = { ...wanted, ...part };
      const { models: names, step } = wanted;
      root.classList.add("pg-busy");
      let models = null;
      try {
        models = await Promise.all(names.map((name) => unseen.models.get(name, step)));
      } catch (error) {
        if (mine === turn) complain(`${error.message} What you see is as it was; choose again to try again.`);
      }
      if (mine !== turn) return;
      root.classList.remove("pg-busy");
      if (models) {
        complain("");
        const again = hasBegun();
        state = wanted;
        panels.forEach((panel, i) => panel.show(names[i], step, models[i]));
        pose();
        if (again) whole();
        remember(false);
      } else {
        wanted = state;
        panels.forEach((panel) => panel.restore());
      }
      showStep();
    }

    function complain(sentence) {
      find("slider-fault").textContent = sentence;
      find("slider-fault").hidden = !sentence;
    }

    /** Put what stands in the fields to both models; if it is no problem, nothing. */
    function pose() {
      stop();
      const problem = form.problem();
      const naming = problem && unseen.naming(problem, vocabulary);
      for (const panel of panels) panel.ask(problem, naming);
      say("");
      runButton.textContent = "Run";
    }

    const remember = (isNew) => unseen.address.write({ ...state, fields: form.fields() }, isNew);

    // ---- writing ----

    function run() {
      if (timer) return stop();
      if (!ready()) return;
      if (still.matches) return whole();
      runButton.textContent = "Pause";
      timer = setInterval(oneWord, PACE);
      oneWord();
    }

    function stop() {
      clearInterval(timer);
      timer = 0;
      runButton.textContent = hasBegun() && !bothEnded() ? "Go on" : "Run";
    }

    /** Whether there is a problem to write under; a finished proof makes room for another. */
    function ready() {
      if (form.settle() === null) return false;
      if (bothEnded()) panels.forEach((panel) => panel.reset());
      return true;
    }

    function oneWord() {
      panels.forEach((panel) => panel.step());
      if (bothEnded()) finish();
    }

    function step() {
      stop();
      if (!ready()) return;
      oneWord();
      stop();
      if (!bothEnded()) say(panels.map((panel) => panel.lastWord()).join(" "));
    }

    function whole() {
      stop();
      if (!ready()) return;
      while (!bothEnded()) panels.forEach((panel) => panel.step());
      finish();
    }

    function finish() {
      stop();
      say(panels.map((panel) => panel.outcome()).join(" "));
    }

    const say = (sentence) => (live.textContent = sentence);

    // ---- the slider, the address ----

    function showStep() {
      slider.max = steps.length - 1;
      slider.value = steps.indexOf(state.step);
      const text = `${state.step} of ${steps.at(-1)} steps`;
      find("step-label").textContent = text;
      slider.setAttribute("aria-valuetext", text);
    }

    slider.addEventListener("input", () => change({ step: steps[slider.value] }));
    runButton.addEventListener("click", run);
    find("step").addEventListener("click", step);
    find("whole").addEventListener("click", whole);
    window.addEventListener("popstate", () => {
      if (!unseen.address.isOurs()) return; // a heading of the page
      const { fields, models, step } = unseen.address.read();
      form.set(fields);
      change({ models, step });
    });

    form.set(state.fields);
    change({});
    root.querySelector("h3").tabIndex = -1;
    root.querySelector("h3").focus({ preventScroll: true });
  };
})();
