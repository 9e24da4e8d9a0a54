/* Horn clauses: what follows, a proof, and the checker of compact proofs, as unseen_lib/logic.py has them.

   A symbol is a string. A problem is {rules: [{body: [symbol, ...], head: symbol}], facts: [...], query}, and
   a proof {steps: [symbol, ...], answer: true, false or null}: the given facts first, then what follows. */
(function (unseen) {
  "use strict";

  /** Every symbol once, in the order of its first appearance. */
  unseen.symbols = ({ rules, facts, query }) => [
    ...new Set([...rules.flatMap(({ body, head }) => [...body, head]), ...facts, query]),
  ];

  /** All that follows from the facts. */
  unseen.closure = function (problem) {
    const known = new Set(problem.facts);
    let rule;
    while ((rule = applicable(problem, known)[0])) known.add(rule.head);
    return known;
  };

  unseen.entails = (problem) => unseen.closure(problem).has(problem.query);

  /** Forward chaining, first rule first, until the query is known or nothing new can be derived. */
  unseen.prove = function (problem) {
    const known = new Set(problem.facts);
    let rule;
    while (!known.has(problem.query) && (rule = applicable(problem, known)[0])) known.add(rule.head);
    return { steps: [...known], answer: known.has(problem.query) };
  };

  /** Where a proof first goes wrong, and why: {valid, step, kind, reason, symbols}. All valid ones pass. */
  unseen.checkProof = function (problem, proof) {
    const known = new Set();
    for (const [i, symbol] of proof.steps.entries()) {
      const fault = checkStep(problem, symbol, known, i);
      if (fault) return fault;
      known.add(symbol);
    }
    return checkEnd(problem, proof, known);
  };

  function checkStep(problem, symbol, known, i) {
    if (known.has(symbol) || problem.facts.includes(symbol)) return null;
    if (!unseen.symbols(problem).includes(symbol)) {
      const reason = `step ${i} writes ${symbol}, which the problem does not mention`;
      return wrong(i, "unknown_symbol", reason, [symbol]);
    }
    const rules = problem.rules.filter((rule) => rule.head === symbol);
    if (!rules.length) {
      const reason =
        `step ${i} writes ${symbol}, which is neither a given fact nor the conclusion of any rule`;
      return wrong(i, "rule_misapplied", reason, [symbol]);
    }
    const nearest = rules.reduce((best, rule) =>
      without(rule.body, known).length < without(best.body, known).length ? rule : best,
    );
    const missing = without(nearest.body, known);
    if (!missing.length) return null;
    // Had all given facts been stated, would the step be right? Then leaving them out is the fault.
    const stated = new Set([...known, ...problem.facts]);
    const wouldDo = rules.find((rule) => !without(rule.body, stated).length);
    if (wouldDo) {
      const dropped = without(wouldDo.body, known);
      const reason =
        `step ${i} needs ${dropped.join(" ")} for \`${ruleText(wouldDo)}\`, ` +
        "a given fact that was not stated before it";
      return wrong(i, "fact_dropped", reason, dropped);
    }
    const are = missing.length === 1 ? "is" : "are";
    const reason =
      `step ${i} writes ${symbol}, but for \`${ruleText(nearest)}\` ` +
      `${missing.join(" ")} ${are} not known yet`;
    return wrong(i, "rule_misapplied", reason, missing);
  }

  function checkEnd(problem, { steps, answer }, known) {
    const end = steps.length;
    const { query } = problem;
    if (answer === null) return wrong(end, "no_answer", "the proof gives no answer", []);
    const dropped = without(problem.facts, known);
    if (dropped.length) {
      return wrong(end, "fact_dropped", `the proof never states the given ${dropped.join(" ")}`, dropped);
    }
    if (known.has(query)) {
      if (answer) return { valid: true, step: null, kind: "", reason: "", symbols: [] };
      return wrong(end, "wrong_answer", `the answer is no, but ${query} is proved`, [query]);
    }
    const [rule] = applicable(problem, known);
    if (rule) {
      const reason =
        `the answer is ${answer ? "yes" : "no"} while ${query} is not derived ` +
        `and \`${ruleText(rule)}\` still gives something new`;
      return wrong(end, "stopped_early", reason, [rule.head]);
    }
    if (answer) {
      const reason = `the answer is yes, but ${query} was not derived and nothing new can be`;
      return wrong(end, "wrong_answer", reason, [query]);
    }
    return { valid: true, step: null, kind: "", reason: "", symbols: [] };
  }

  const wrong = (step, kind, reason, symbols) => ({ valid: false, step, kind, reason, symbols });

  /** The rules that give something new, in the problem's order. */
  const applicable = ({ rules }, known) =>
    rules.filter(({ body, head }) => !known.has(head) && body.every((symbol) => known.has(symbol)));

  const without = (symbols, others) => [...new Set(symbols)].filter((symbol) => !others.has(symbol));

  const ruleText = ({ body, head }) => `If ${body.join(" ")} then ${head}`;
})((globalThis.unseen = globalThis.unseen || {}));
