"use strict";
// What is shown, as the part of the address behind "#": the three fields, both models, and the training step.

(() => {
  const SHOWN_FIRST = ["plain", "frozen-copy"];
  const FIRST_SEED = 0;

  /** What the address says, with the first problem and the last step where it says nothing that can be used. */
  function read() {
    const said = new URLSearchParams(location.hash.slice(1));
    const steps = unseen.models.steps();
    const step = Number(said.get("step") ?? Number.NaN);
    const fields = said.has("rules")
      ? { rules: lines(said.get("rules")), facts: said.get("facts") ?? "", query: said.get("query") ?? "" }
      : firstProblem();
    return {
      fields,
      models: ["left", "right"].map((side, i) =>
        unseen.models.names().includes(said.get(side)) ? said.get(side) : SHOWN_FIRST[i],
      ),
      step: steps.includes(step) ? step : steps.at(-1),
    };
  }

  /** Put a state into the address: in place, or as a page of its own that "back" leaves. */
  function write({ fields, models, step }, isNew) {
    const said = new URLSearchParams({
      rules: fields.rules.trim().replace(/\s*\n\s*/g, "; "),
      facts: fields.facts.trim(),
      query: fields.query.trim(),
      left: models[0],
      right: models[1],
      step,
    });
    const address = `#${said}`;
    if (address === location.hash) return;
    history[isNew ? "pushState" : "replaceState"](null, "", address);
  }

  const lines = (text) =>
    text
      .split(";")
      .map((line) => line.trim())
      .filter(Boolean)
      .join("\n");

  function firstProblem() {
    const { task, vocabulary } = unseen.manifest;
    return unseen.fields(
      unseen.randomProblem({
        task,
        vocabulary: unseen.vocabulary(vocabulary),
        names: "seen",
        seed: FIRST_SEED,
      }),
    );
  }

  unseen.address = { read, write, isOurs: () => location.hash.startsWith("#rules=") };
})();
