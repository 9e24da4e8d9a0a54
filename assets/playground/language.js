/* Words and ids, and problems and proofs as words: the compact format of unseen_lib/language.py, and the
   reading of what a model wrote as in unseen_lib/transcripts.py. */
(function (unseen) {
  "use strict";

  const [PAD, EOS, YES, NO] = ["<pad>", "<eos>", "yes", "no"];
  unseen.CONTROL_WORDS = [PAD, "<bos>", EOS, "Rules:", "then", "Facts:", "Query:", "Reasoning:", YES, NO];
  const isControl = (word) => unseen.CONTROL_WORDS.includes(word);

  /* ---- words and ids ---- */

  /** The vocabulary of a model or of the manifest: control words, then `seen` names, then `unseen` ones. */
  unseen.vocabulary = function ({ words, seen, unseen: held }) {
    const firstUnseen = words.length - held;
    const ids = new Map(words.map((word, id) => [word, id]));
    return {
      words,
      seenWords: words.slice(firstUnseen - seen, firstUnseen),
      unseenWords: words.slice(firstUnseen),
      encode: (list) =>
        list.map((word) => {
          if (!ids.has(word)) throw new Error(`“${word}” is not among the model's ${words.length} words.`);
          return ids.get(word);
        }),
      decode: (list) => list.map((id) => words[id]),
      isControl,
      isSeen: (word) => ids.get(word) >= firstUnseen - seen && ids.get(word) < firstUnseen,
      isUnseen: (word) => ids.get(word) >= firstUnseen,
    };
  };

  /** The same for a problem in the reader's own names. A name of the vocabulary keeps its row of W_E; any
      other takes the first free row of an unseen word, which to the model is just as new. */
  unseen.naming = function (problem, vocabulary) {
    const names = unseen.symbols(problem);
    const free = vocabulary.unseenWords.filter((word) => !names.includes(word));
    const added = names.filter((name) => !vocabulary.words.includes(name));
    if (added.length > free.length) {
      throw new Error(
        `The problem has ${added.length} names of your own, but the model has only ${free.length} unseen ` +
          "names left to lend them: use fewer, or names that it knows.",
      );
    }
    const words = new Map(added.map((name, i) => [name, free[i]]));
    const lent = new Map(added.map((name, i) => [free[i], name]));
    const wordOf = (name) => words.get(name) ?? name;
    return {
      wordOf,
      isNew: (name) => words.has(name),
      encode: (list) => vocabulary.encode(list.map(wordOf)),
      decode: (ids) => vocabulary.decode(ids).map((word) => lent.get(word) ?? word),
      isControl,
      isSeen: (name) => vocabulary.isSeen(wordOf(name)),
      isUnseen: (name) => vocabulary.isUnseen(wordOf(name)),
    };
  };

  /* ---- writing ---- */

  /** The prompt. */
  unseen.writeProblem = ({ rules, facts, query }) => [
    "<bos>",
    "Rules:",
    ...rules.flatMap(({ body, head }) => [...body, "then", head]),
    "Facts:",
    ...facts,
    "Query:",
    query,
    "Reasoning:",
  ];

  /** The completion that states a proof. */
  unseen.writeProof = ({ steps, answer }) => [
    ...steps,
    ...(answer === null ? [] : [answer ? YES : NO]),
    EOS,
  ];

  /** Words of the longest completion that a problem can need: every name once, the answer and `<eos>`. */
  unseen.longestProof = (problem) => unseen.symbols(problem).length + 2;

  /* ---- reading ---- */

  /** The proof that a completion states, valid or not; if its form is wrong, as far as it could be read, with
      an error {message, position}. */
  unseen.readProof = function (words) {
    const proof = { steps: [], answer: null };
    let position = 0;
    const is = (...expected) => expected.includes(words[position]);
    const fail = (expected) => {
      const found =
        position < words.length
          ? `word ${position} is ${quoted(words[position])}`
          : `the text ends after ${words.length} words`;
      return { proof, error: { message: `${found}, where ${expected} was expected`, position } };
    };

    while (position < words.length && !isControl(words[position])) proof.steps.push(words[position++]);
    if (!is(EOS)) {
      if (!is(YES, NO)) return fail("a symbol, 'yes' or 'no'");
      proof.answer = words[position++] === YES;
    }
    if (!is(EOS)) return fail("'<eos>'");
    position++;
    while (is(PAD)) position++;
    return position < words.length ? fail("the end of the text") : { proof, error: null };
  };

  /** As Python's repr writes a word. */
  const quoted = (word) => (word.includes("'") ? `"${word}"` : `'${word}'`);

  /** What a model wrote under a problem, up to `<eos>`: {valid, answer, verdict, mistake}.
      The answer is the first yes (true) or no (false) in it, or null. A verdict is one of `checkProof`. A
      mistake, null in a valid proof, is {error, position, expected}: its name, the index of the first wrong
      word (the number of words if the text ends too early), and what forward chaining would have written. */
  unseen.readTranscript = function (problem, completion, isUnseen) {
    const end = completion.indexOf(EOS);
    const words = end < 0 ? completion : completion.slice(0, end + 1);
    const verdict = verdictOn(problem, words);
    const said = words.find((word) => word === YES || word === NO);
    return {
      valid: verdict.valid,
      answer: said === undefined ? null : said === YES,
      verdict,
      mistake: verdict.valid ? null : findMistake(problem, words, isUnseen),
    };
  };

  function verdictOn(problem, words) {
    const { proof, error } = unseen.readProof(words);
    const verdict = unseen.checkProof(problem, proof);
    if (!error) return verdict;
    if (verdict.valid || verdict.kind === "no_answer") {
      const step = proof.steps.length;
      return { valid: false, step, kind: "malformed", reason: error.message, symbols: [] };
    }
    return verdict; // it was wrong before it could no longer be read
  }

  function findMistake(problem, words, isUnseen) {
    const reader = startReader(problem);
    for (let i = 0; ; i++) {
      const due = reader.due();
      if (i === words.length || !due.includes(words[i])) {
        const word = i < words.length ? words[i] : EOS;
        return { error: reader.blame(word, due[0], isUnseen), position: i, expected: due[0] };
      }
      if (words[i] === EOS) return null;
      reader.read(words[i]);
    }
  }

  /** The words that a valid proof can have after these, first the one that forward chaining would write; none
      when these do not begin a valid proof, or are a whole one. */
  unseen.continuations = function (problem, words) {
    const reader = startReader(problem);
    for (const word of words) {
      if (word === EOS || !reader.due().includes(word)) return [];
      reader.read(word);
    }
    return reader.due();
  };

  /** Reads a proof word by word; knows at each which ones a valid proof can have there. */
  function startReader({ rules, facts, query }) {
    const known = new Set();
    let answered = false;
    const factsDue = () => facts.filter((fact) => !known.has(fact));
    const applies = ({ body }) => body.every((symbol) => known.has(symbol));

    /** What may be stated next that is not known yet. */
    function fresh() {
      const heads = rules.filter(applies).map((rule) => rule.head);
      return [...new Set([...facts, ...heads])].filter((symbol) => !known.has(symbol));
    }

    function read(word) {
      if (word === YES || word === NO) answered = true;
      else known.add(word);
    }

    function due() {
      if (answered) return [EOS];
      let answers = [];
      if (!factsDue().length) answers = known.has(query) ? [YES] : fresh().length ? [] : [NO];
      return [...answers, ...fresh(), ...known]; // what is known may be repeated
    }

    /** The name of the mistake of writing `word` here. */
    function blame(word, expected, isUnseen) {
      if (word === EOS && !answered) return "no_answer";
      if ((word === YES || word === NO) && !answered) {
        if (factsDue().length) return "fact_dropped";
        return expected === YES || expected === NO ? "wrong_answer" : "stopped_early";
      }
      if (isControl(word) || answered) return "malformed";
      const giving = rules.filter((rule) => rule.head === word);
      const couldBeKnown = new Set([...known, ...fresh()]);
      if (giving.some(({ body }) => body.every((symbol) => couldBeKnown.has(symbol)))) return "fact_dropped";
      if (isUnseen(expected) && !isUnseen(word)) return "symbol_replaced";
      if (factsDue().length) return "fact_invented";
      return giving.length ? "rule_misapplied" : "invented_rule";
    }

    return { read, due, blame };
  }
})((globalThis.unseen = globalThis.unseen || {}));
