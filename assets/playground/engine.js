/* The transformer of the course, in plain JavaScript: unseen_lib/model.py for one token at a time.

   A page opened from disk can load scripts and nothing else, so this is a classic script (no module, no
   fetch), and weights arrive as scripts that call `unseen.deliver`. Weights are float16; all arithmetic is in
   double precision, so what differs from PyTorch in float32 is PyTorch's own rounding.

     Y_0     = row of W_E
     Y_{i+1} = Y_i + A_i + MLP_i(LN(Y_i + A_i)) + copy_i(Y_i),   A_i = attention_i(LN(Y_i))
     logits  = LN(Y_L) W_E^T */
(function (unseen) {
  "use strict";

  /* ---- reading a file of unseen_lib/export.py ---- */

  unseen.delivered = {};
  unseen.deliver = (name, base64) => {
    unseen.delivered[name] = base64;
  };

  /** A model from the base64 text of its file: a safetensors file with float16 tensors. */
  unseen.decodeModel = function (base64) {
    const text = atob(base64);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    const view = new DataView(bytes.buffer);
    const start = 8 + view.getUint32(0, true); // the header's length has 8 bytes, 4 of which are enough
    const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, start)));
    const { format, config, vocabulary, about } = JSON.parse((header.__metadata__ || {}).unseen || "{}");
    if (format !== 1) throw new Error(`The model has format ${format}, but this page reads format 1.`);

    const tensors = {};
    for (const [name, { dtype, shape, data_offsets }] of Object.entries(header)) {
      if (name === "__metadata__") continue;
      if (dtype !== "F16") throw new Error(`${name} is ${dtype}, but this page reads F16.`);
      const values = new Float32Array((data_offsets[1] - data_offsets[0]) / 2);
      for (let i = 0; i < values.length; i++) {
        values[i] = float16(view.getUint16(start + data_offsets[0] + 2 * i, true));
      }
      tensors[name] = { rows: shape[0], columns: shape[1] || 1, values };
    }
    const model = { config, vocabulary, about, tensors };
    model.start = () => startSession(model);
    model.rows = (ids) => ids.map((id) => rowOf(tensors.embedding, id));
    return model;
  };

  /** The number that 16 bits stand for: a sign, 5 bits of exponent, 10 bits of fraction. */
  function float16(bits) {
    const exponent = (bits >> 10) & 31;
    const fraction = bits & 1023;
    const size = exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24;
    return bits >> 15 ? -size : size;
  }

  /* ---- the forward pass ---- */

  /** A text that is read token by token; keys and values of earlier tokens are kept, so each is read once. */
  function startSession({ config, tensors }) {
    const { layers, heads, head_dim: size, context, local_window: window } = config;
    const embedded = []; // the row of W_E of each token read
    const caches = Array.from({ length: layers + 1 }, () => ({ keys: [], values: [] })); // the last copies
    const session = { position: 0, read };
    return session;

    /** Read a token: the logits of the next one, and how much each copy head looks at each token so far. */
    function read(id) {
      if (!(id >= 0 && id < config.vocab_size)) {
        throw new Error(`Token ${id} is not one of the ${config.vocab_size} words.`);
      }
      if (session.position >= context) throw new Error(`The model reads at most ${context} words.`);
      const position = session.position++;
      embedded.push(rowOf(tensors.embedding, id));
      let y = embedded[position];
      let copy = null;
      for (let layer = 0; layer < layers; layer++) {
        const below = y;
        const first = layer === 0 && window ? Math.max(0, position - window + 1) : 0;
        y = add(y, attention(`blocks.${layer}.`, caches[layer], y, position, first));
        y = add(y, mlp(`blocks.${layer}.`, y));
        if (config.copy && layer === layers - 1) {
          copy = lookToCopy(below, position); // beside the last block: it reads what that block read
          y = add(y, copied(copy));
        }
      }
      const logits = Float32Array.from(times(tensors.embedding, layerNorm("norm", y)));
      return { logits, copy: copy && copy.map((weights) => Float32Array.from(weights)) };
    }

    /** What attention adds to the stream; `first` is the first token it sees. */
    function attention(block, cache, y, position, first) {
      const x = layerNorm(block + "attention_norm", y);
      const query = rotate(linear(block + "attention.query", x), position);
      cache.keys.push(rotate(linear(block + "attention.key", x), position));
      cache.values.push(linear(block + "attention.value", x));
      const mixed = new Float64Array(heads * size);
      look(query, cache.keys, heads, first).forEach((weights, head) => {
        for (let i = head * size; i < (head + 1) * size; i++) {
          for (let t = first; t <= position; t++) mixed[i] += weights[t] * cache.values[t][i];
        }
      });
      return linear(block + "attention.output", mixed);
    }

    function mlp(block, y) {
      return linear(block + "contract", linear(block + "expand", layerNorm(block + "mlp_norm", y)).map(gelu));
    }

    /** Copy attention learns where to look ... */
    function lookToCopy(y, position) {
      const cache = caches[layers];
      const x = layerNorm("copy_blocks.0.norm", y);
      cache.keys.push(rotate(linear("copy_blocks.0.key", x), position));
      return look(rotate(linear("copy_blocks.0.query", x), position), cache.keys, config.copy_heads, 0);
    }

    /** ... and writes the rows of W_E that it looks at, whichever they are. */
    function copied(looks) {
      const sum = new Float64Array(config.width);
      const share = config.copy_combine === "mean" ? 1 / looks.length : 1;
      for (const weights of looks) {
        embedded.forEach((row, t) => row.forEach((value, i) => (sum[i] += share * weights[t] * value)));
      }
      return sum;
    }

    /** For each head, how much a query looks at the keys from `first` on: softmax(q k / sqrt(size)). */
    function look(query, keys, count, first) {
      return Array.from({ length: count }, (_, head) => {
        const scores = keys.map((key, t) => {
          if (t < first) return -Infinity;
          let score = 0;
          for (let i = head * size; i < (head + 1) * size; i++) score += query[i] * key[i];
          return score / Math.sqrt(size);
        });
        const largest = Math.max(...scores);
        const weights = scores.map((score) => Math.exp(score - largest));
        const total = weights.reduce((a, b) => a + b);
        return weights.map((weight) => weight / total);
      });
    }

    /** RoPE: turn the pairs (x0, x1), (x2, x3), ... of each head by angles that grow with the position. */
    function rotate(x, position) {
      const turned = new Float64Array(x.length);
      for (let i = 0; i < x.length; i += 2) {
        const angle = position * config.rope_base ** (-(i % size) / size);
        const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
        turned[i] = x[i] * cos - x[i + 1] * sin;
        turned[i + 1] = x[i] * sin + x[i + 1] * cos;
      }
      return turned;
    }

    function linear(name, x) {
      return times(tensors[name + ".weight"], x);
    }

    /** LayerNorm without a bias; 1e-5 is PyTorch's default. */
    function layerNorm(name, x) {
      const gain = tensors[name + ".weight"].values;
      const mean = x.reduce((a, b) => a + b) / x.length;
      const variance = x.reduce((a, b) => a + (b - mean) ** 2, 0) / x.length;
      return x.map((value, i) => ((value - mean) / Math.sqrt(variance + 1e-5)) * gain[i]);
    }
  }

  function times(matrix, x) {
    const { rows, columns, values } = matrix;
    const product = new Float64Array(rows);
    for (let i = 0; i < rows; i++) {
      let sum = 0;
      for (let j = 0; j < columns; j++) sum += values[i * columns + j] * x[j];
      product[i] = sum;
    }
    return product;
  }

  const add = (x, y) => x.map((value, i) => value + y[i]);

  const rowOf = ({ columns, values }, row) =>
    Float64Array.from(values.subarray(row * columns, (row + 1) * columns));

  /** The exact GELU, x Φ(x). */
  const gelu = (x) => (x * (1 + erf(x / Math.SQRT2))) / 2;

  /** erf(x) = 2/√π exp(-x²) Σ 2ⁿ x²ⁿ⁺¹ / (1·3·5···(2n+1)): all terms have one sign, so no digit is lost. */
  function erf(x) {
    if (Math.abs(x) > 6) return Math.sign(x); // to the last bit
    let term = x;
    let sum = x;
    for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(sum); n++) {
      term *= (2 * x * x) / (2 * n + 1);
      sum += term;
    }
    return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum;
  }

  /* ---- using it ---- */

  /** Greedy decoding: read the prompt, then yield a step a word, until `<eos>` or until `room` words stand.
      A step is {id, logits, copy}, the two latter as `read` gives them: what the word was chosen by. */
  unseen.complete = function* (model, prompt, room) {
    const session = model.start();
    const end = model.vocabulary.words.indexOf("<eos>");
    let step;
    for (const id of prompt) step = session.read(id);
    for (let written = 1; ; written++) {
      const id = largest(step.logits);
      yield { id, ...step };
      if (id === end || written >= room) return;
      step = session.read(id);
    }
  };

  /** Of equal logits that of the lowest id, as in unseen_lib. */
  function largest(logits) {
    let best = 0;
    for (let id = 1; id < logits.length; id++) if (logits[id] > logits[best]) best = id;
    return best;
  }

  unseen.cosine = function (a, b) {
    const dot = (x, y) => x.reduce((sum, value, i) => sum + value * y[i], 0);
    return dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));
  };
})((globalThis.unseen = globalThis.unseen || {}));
