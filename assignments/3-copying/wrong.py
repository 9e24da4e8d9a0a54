"""Plausible wrong answers to assignment 3: none of them may get full marks for its question."""

# ruff: noqa: F821 (each part runs after the solution, and replaces one answer of it)


# %% q1: sums the heads
def copy_attention(y, embedded, W_Q, W_K, heads, start, right=copy_attention):
    return heads * right(y, embedded, W_Q, W_K, heads, start)


# %% q1: looks at padding
def copy_attention(y, embedded, W_Q, W_K, heads, start, right=copy_attention):
    return right(y, embedded, W_Q, W_K, heads, torch.zeros_like(start))


# %% q1: divides by the root of the whole width, not of one head
def copy_attention(y, embedded, W_Q, W_K, heads, start, right=copy_attention):
    return right(y, embedded, W_Q / math.sqrt(heads), W_K, heads, start)


# %% q1: cuts the heads the wrong way
def copy_attention(y, embedded, W_Q, W_K, heads, start, right=copy_attention):
    order = torch.arange(W_Q.shape[1]).view(-1, heads).T.flatten()
    return right(y, embedded, W_Q[:, order], W_K[:, order], heads, start)


# %% q2: writes into the cache it was given
def copy_step(y_t, embedded_t, W_Q, W_K, heads, cache, right=copy_step):
    kept = globals().setdefault("kept_cache", {})
    if not cache:
        kept.clear()
    found, new = right(y_t, embedded_t, W_Q, W_K, heads, kept)
    kept.update(new)
    return found, dict(new)


# %% q2: leaves the new place out of its own look
def copy_step(y_t, embedded_t, W_Q, W_K, heads, cache, right=copy_step):
    _, new = right(y_t, embedded_t, W_Q, W_K, heads, cache)
    if not cache:
        return embedded_t, new
    q = (y_t @ W_Q).view(len(y_t), heads, 1, -1)
    look = (q @ cache["keys"].transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1)
    return (look.mean(1) @ cache["rows"])[:, 0], new


# %% q2: keeps the last place only
def copy_step(y_t, embedded_t, W_Q, W_K, heads, cache, right=copy_step):
    found, new = right(y_t, embedded_t, W_Q, W_K, heads, cache)
    return found, {"keys": new["keys"][:, :, -1:], "rows": new["rows"][:, -1:]}


# %% q3: takes the place with the largest weight, not the word
def pointer_accuracy(look, tokens, targets):
    best = tokens.gather(1, look.mean(1).argmax(-1))
    due = targets != -100
    return float((best == targets)[due].double().mean())


# %% q3: counts places without a target as wrong
def pointer_accuracy(look, tokens, targets, right=pointer_accuracy):
    return right(look, tokens, targets) * float((targets != -100).double().mean())


# %% q3: looks at the first head only
def pointer_accuracy(look, tokens, targets, right=pointer_accuracy):
    return right(look[:, :1], tokens, targets)


# %% q4: tests on the words it was trained on
def train_arm(arm, names, seed, right=train_arm):
    seen, _ = right(arm, names, seed)
    return seen, seen


# %% q4: has the same arm twice
def train_arm(arm, names, seed, right=train_arm):
    return right("copy", names, seed)


# %% q4: never seeds
def train_arm(arm, names, seed, right=train_arm):
    return right(arm, names, int(torch.randint(10**6, ())))
