"""Plausible wrong answers to assignment 4: none of them may get full marks for its question."""

# ruff: noqa: F821 (each part runs after the solution, and replaces one answer of it)

# %% q1: exchanges twins and sound, which have the same norm and nearly the same cosine
other = {"twins": "sound", "sound": "twins"}
diagnosis = {label: other.get(word, word) for label, word in diagnosis.items()}


# %% q1: takes the lowest share of valid proofs for unused, and the next for faint
shares = {label: valid_share(model, vocabulary, names) for label, names in groups.items()}
order = sorted(shares, key=lambda label: (diagnosis[label] == "unused", shares[label]))
diagnosis = dict(zip(order, ("unused", "faint", "twins", "sound"), strict=True))


# %% q2: one recipe for all: draws every broken group afresh
def repair(table, groups, diagnosis, seed):
    fixed, g = table.clone(), torch.Generator().manual_seed(seed)
    for label, ids in groups.items():
        if diagnosis[label] != "sound":
            fixed[ids] = torch.randn(len(ids), table.shape[1], generator=g) / table.shape[1] ** 0.5
    return fixed


# %% q2: centers the unused rows and leaves what they have lost
def repair(table, groups, diagnosis, seed, right=repair):
    fixed = right(table, groups, diagnosis, seed)
    (unused,) = (ids for label, ids in groups.items() if diagnosis[label] == "unused")
    fixed[unused] = table[unused] - table[unused].mean(0)
    return fixed


# %% q2: copies rows of sound names
def repair(table, groups, diagnosis, seed, right=repair):
    fixed = right(table, groups, diagnosis, seed)
    names = {diagnosis[label]: ids for label, ids in groups.items()}
    for word in ("unused", "twins"):
        fixed[names[word]] = table[names["sound"]]
    return fixed


# %% q2: changes the table it was given, and all of it
def repair(table, groups, diagnosis, seed):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(table.shape, generator=g) / table.shape[1] ** 0.5
