"use strict";
// What the checker found in a proof, in words.

(() => {
  /** Two paragraphs on a transcript: its first error if it has one, and its answer. `follows`: the truth. */
  unseen.verdict = ({ mistake, verdict, answer }, written, follows) => {
    const valid = mistake === null;
    const right = answer === follows;
    const said =
      answer === null ? "No answer" : `Answer ${answer ? "yes" : "no"}, ${right ? "right" : "wrong"}`;
    const truth = follows ? " the query follows." : " the query does not follow.";
    return [
      valid
        ? make("p", {}, mark(true, "Valid proof."), " Each word can stand where it does.")
        : make(
            "p",
            {},
            mark(false, `First error: word ${mistake.position + 1}.`),
            firstError(mistake, verdict, written),
          ),
      make("p", {}, mark(right, `${said}:`), truth, right && !valid ? " But the proof does not show it." : ""),
    ];
  };

  const mark = (good, text) =>
    make("strong", { className: good ? "good" : "bad" }, `${good ? "✓" : "✗"} ${text}`);

  function firstError(mistake, verdict, written) {
    const word = written[mistake.position]?.word;
    const what = word ? `It wrote “${word}”` : "The text ends";
    return ` ${what} where “${mistake.expected}” was due: ${why(mistake, verdict)}.`;
  }

  /** The checker's own reason where it is about this mistake, and else what the mistake is called. */
  function why({ error }, { kind, reason }) {
    if (kind !== error || kind === "malformed") return unseen.manifest.errors[error];
    // The checker counts steps from 0, and a step of a compact proof is one word.
    return reason
      .replace(/\bstep (\d+)/g, (_, step) => `word ${Number(step) + 1}`)
      .replace(/`([^`]*)`/g, "“$1”");
  }

  function make(tag, properties = {}, ...children) {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  }
})();
