/* Problems: read from what the reader typed, compared with those of training, and drawn at random. */
(function (unseen) {
  "use strict";

  const LONGEST_NAME = 24; // letters; not the model's limit, but the page's

  /* ---- from text ---- */

  /** A text of the reader's that does not fit; the message says what to change. */
  class Misfit extends Error {}

  /** The problem in three texts: a rule a line (“a then b”, “if a and b then c”, “a, b -> c”), facts between
      spaces, commas or line ends, and a query. `task` is the manifest's.
      Returns {problem, errors, warnings}: a problem, or errors {field, line, message}, each of which says
      what to change; line is counted from 1, or null. Warnings say what training never showed. */
  unseen.parse = function (texts, task) {
    const errors = [];
    const linesOf = (field) => (texts[field] || "").normalize("NFC").split("\n").entries();

    /** What `read` returns; if it complains, an error. */
    function attempt(field, line, read) {
      try {
        return read();
      } catch (error) {
        if (!(error instanceof Misfit)) throw error;
        errors.push({ field, line, message: error.message });
      }
    }

    const rules = [];
    for (const [i, line] of linesOf("rules")) {
      if (line.trim()) rules.push(attempt("rules", i + 1, () => readRule(line)));
    }
    const facts = new Set();
    for (const [i, line] of linesOf("facts")) {
      for (const name of wordsOf(line).filter((word) => !isWord(word, ",", "and"))) {
        facts.add(attempt("facts", i + 1, () => checked(name)));
      }
    }
    const query = attempt("query", null, () => readQuery(texts.query || ""));
    const someFact = "Write at least one fact: a name that holds from the start.";
    attempt("rules", null, () => need(rules.length, "Write at least one rule, such as: a then b."));
    attempt("facts", null, () => need(facts.size, someFact));
    if (errors.length) return { problem: null, errors, warnings: [] };

    const problem = { rules, facts: [...facts], query };
    attempt("problem", null, () => checkLength(problem, task));
    if (errors.length) return { problem: null, errors, warnings: [] };
    return { problem, errors, warnings: unlikeTraining(problem, task) };
  };

  function need(condition, message) {
    if (!condition) throw new Misfit(message);
  }

  function readRule(line) {
    const words = wordsOf(line.replace(/->|=>|→|⇒/g, " then "));
    if (isWord(words[0], "if")) words.shift();
    const [thens, middle] = [words.filter(isThen).length, words.findIndex(isThen)];
    need(thens > 0, "Put “then” between what a rule needs and what it gives, as in: a then b.");
    need(thens < 2, "Write each rule on a line of its own: “then” stands here more than once.");
    const [body, heads] = [words.slice(0, middle), words.slice(middle + 1)].map(splitAtAnd);
    need(body.length, "Write a name before “then”: what the rule needs.");
    need(heads.length, "Write a name after “then”: what the rule gives.");
    need(heads.length < 2, "A rule gives one name: write a rule on a line of its own for each.");
    for (const group of [...body, ...heads]) {
      const [spaced, joined] = [group.join(" "), group.join("_")];
      const advice = `Write “and” or a comma between two names; if “${spaced}” is one, write ${joined}.`;
      need(group.length < 2, advice);
    }
    return { body: body.flat().map(checked), head: checked(heads[0][0]) };
  }

  function readQuery(text) {
    const names = wordsOf(text.normalize("NFC").replace(/\?\s*$/, ""));
    need(names.length, "Write a query: the name that may or may not follow.");
    need(names.length < 2, `Ask for one name; if “${names.join(" ")}” is one, write ${names.join("_")}.`);
    return checked(names[0]);
  }

  /** A name that the reader typed by itself: {name}, or {error} in a sentence. */
  unseen.readName = function (text) {
    const name = text.trim().normalize("NFC");
    try {
      need(name, "Type a name.");
      need(!/\s/.test(name), `Write “${name}” as one word: ${name.split(/\s+/).join("_")}.`);
      return { name: checked(name) };
    } catch (error) {
      if (!(error instanceof Misfit)) throw error;
      return { error: error.message };
    }
  };

  /** Names, keywords and commas; a stop at the end of a line is no part of a name. */
  const wordsOf = (line) =>
    line.trim().replace(/[.;]$/, "").replaceAll(",", " , ").split(/\s+/).filter(Boolean);

  const isWord = (word, ...keywords) => word !== undefined && keywords.includes(word.toLowerCase());
  const isThen = (word) => isWord(word, "then");

  /** The runs of words between “and”s and commas. */
  function splitAtAnd(words) {
    const groups = [[]];
    for (const word of words) {
      if (isWord(word, ",", "and")) groups.push([]);
      else groups.at(-1).push(word);
    }
    return groups.filter((group) => group.length);
  }

  /** The name, if it can be one. */
  function checked(name) {
    const noNot = "Leave out “not”: these problems have no “not”. What no rule and no fact gives is false.";
    need(!isWord(name, "not"), noNot);
    const controls = unseen.CONTROL_WORDS.map((word) => word.toLowerCase());
    const taken = isWord(name, "if", "and", ...controls, ...controls.map((word) => word.replace(":", "")));
    need(!taken, `Choose another name than “${name}”: the language of the problems needs that word.`);
    const odd = name.match(/[^\p{L}\p{M}\p{N}\p{Extended_Pictographic}\u200d_'’-]/u);
    need(!odd, `Write “${name}” without “${odd}”: a name has letters, digits, - and _.`);
    need(name.length <= LONGEST_NAME, `Shorten “${name}”: a name has at most ${LONGEST_NAME} letters.`);
    return name;
  }

  function checkLength(problem, { context }) {
    const words = [...unseen.writeProblem(problem), ...unseen.writeProof(unseen.prove(problem))].length;
    const room = context + 1; // the last word is written, but never read
    need(
      words <= room,
      `Problem and proof take ${words} words, but the model has room for ${room}: ` +
        "leave out a rule or two (a rule with one premise takes 3 words).",
    );
  }

  /** The three texts of a problem. */
  unseen.fields = ({ rules, facts, query }) => ({
    rules: rules.map(({ body, head }) => `${body.join(" and ")} then ${head}`).join("\n"),
    facts: facts.join(" "),
    query,
  });

  /** The same problem under other names; a name that `names` lacks stays. */
  unseen.rename = function ({ rules, facts, query }, names) {
    const other = (name) => (Object.hasOwn(names, name) ? names[name] : name);
    return {
      rules: rules.map(({ body, head }) => ({ body: body.map(other), head: other(head) })),
      facts: facts.map(other),
      query: other(query),
    };
  };

  /* ---- what training showed: a chain of rules from the only fact, and one that no fact starts ---- */

  function unlikeTraining({ rules, facts, query }, { predicates, chain }) {
    const warnings = [];
    const [fewest, most] = predicates.map((count) => count - 2);
    const usual = fewest === most ? `${most}` : `${fewest} to ${most}`;
    if (rules.some(({ body }) => body.length > 1)) {
      warnings.push("A rule needs more than one name; in training each needed one.");
    }
    if (facts.length > 1) warnings.push(`There are ${facts.length} facts; in training there was one.`);
    if (rules.length < fewest || rules.length > most) {
      const are = rules.length === 1 ? "is 1 rule" : `are ${rules.length} rules`;
      warnings.push(`There ${are}; in training there were ${usual}.`);
    }
    if (!warnings.length && !isTwoChains(rules, facts[0], chain)) {
      warnings.push("The rules are not two chains, one of them from the fact, as they were in training.");
    }
    if (facts.includes(query)) warnings.push("The query is a given fact; in training it never was.");
    else if (!rules.some(({ body, head }) => head === query || body.includes(query))) {
      warnings.push("The query is in no rule; in training it always was.");
    }
    return warnings;
  }

  function isTwoChains(rules, fact, [shortest, longest]) {
    const next = new Map(rules.map(({ body, head }) => [body[0], head]));
    const heads = new Set(next.values());
    const starts = [...next.keys()].filter((name) => !heads.has(name));
    // No two rules share their premise or their conclusion, and of the two starts one is the fact.
    if (next.size < rules.length || heads.size < rules.length) return false;
    if (starts.length !== 2 || !starts.includes(fact)) return false;
    const reached = starts.map((name) => {
      let length = 1;
      while (next.has(name)) [name, length] = [next.get(name), length + 1];
      return length;
    });
    const length = reached[starts.indexOf(fact)];
    const cyclic = reached[0] + reached[1] !== rules.length + 2; // then a ring of rules is in neither chain
    return !cyclic && length >= shortest && length <= longest;
  }

  /** A problem drawn as those of training are (unseen_lib/problems.py, family "chain"), from a seed.
      `names` is "seen", "query_unseen" or "all_unseen": where the names come from. */
  unseen.randomProblem = function ({ task, vocabulary, names, seed }) {
    const random = randomNumbers(seed);
    const between = (low, high) => low + Math.floor(random() * (high - low + 1));
    const draw = (list) => list.splice(between(0, list.length - 1), 1)[0];

    const answer = random() < 0.5;
    const size = between(...task.predicates);
    const length = between(task.chain[0], Math.min(task.chain[1], size - 2)); // of the chain from the fact
    const asked = answer ? between(1, length - 1) : between(length, size - 1);

    const pool = [...(names === "all_unseen" ? vocabulary.unseenWords : vocabulary.seenWords)];
    const slots = Array.from({ length: size }, () => draw(pool)); // first the true chain, then the other
    if (names === "query_unseen") slots[asked] = draw([...vocabulary.unseenWords]);

    const links = slots.map((_, i) => i).filter((i) => i !== length - 1 && i !== size - 1);
    const rules = slots.slice(2).map(() => draw(links)); // in any order
    return {
      rules: rules.map((i) => ({ body: [slots[i]], head: slots[i + 1] })),
      facts: [slots[0]],
      query: slots[asked],
    };
  };

  /** Numbers in [0, 1): a counter in steps of the golden section, stirred as MurmurHash3 ends. */
  function randomNumbers(seed) {
    const stir = (h) => {
      h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
      h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
      return (h ^ (h >>> 16)) >>> 0;
    };
    let state = stir(seed + 1);
    return () => stir((state = (state + 0x9e3779b9) | 0)) / 2 ** 32;
  }
})((globalThis.unseen = globalThis.unseen || {}));
