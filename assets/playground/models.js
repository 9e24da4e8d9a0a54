"use strict";
// The trained models: what the manifest says of them, and their checkpoints, each loaded when first asked for.

(() => {
  const decoded = new Map(); // id of a checkpoint -> promise of a model

  const about = (name) => unseen.manifest.models.find((model) => model.name === name);

  function checkpoint(name, step) {
    return about(name).checkpoints.find((found) => found.step === step);
  }

  /** The model NAME as it was after a number of training steps. Rejects with a sentence; may be asked again. */
  function get(name, step) {
    const { id, file } = checkpoint(name, step);
    if (!decoded.has(id)) {
      const model = unseen.load(`models/${file}`).then(() => {
        const found = unseen.decodeModel(unseen.delivered[id]);
        delete unseen.delivered[id]; // half a megabyte of text that is not needed again
        return found;
      });
      model.catch(() => decoded.delete(id));
      decoded.set(id, model);
    }
    return decoded.get(id);
  }

  unseen.models = {
    about,
    checkpoint,
    get,
    names: () => unseen.manifest.models.map((model) => model.name),
    steps: () => unseen.manifest.models[0].checkpoints.map(({ step }) => step),
  };
})();
