"""Plausible wrong answers to assignment 2: none of them may get full marks for its question."""

# ruff: noqa: F811, F821 (each part runs after the solution, and replaces one answer of it)


# %% q1: takes the squared length of the mean row for the drift
def split(rows):
    mean = rows.mean(0)
    own = float((rows - mean).square().sum() / (len(rows) - 1))
    return float(mean.square().sum()), own


# %% q1: divides by N, not by N - 1
def split(rows):
    mean = rows.mean(0)
    own = float((rows - mean).square().sum() / len(rows))
    return float(mean.square().sum()) - own / len(rows), own


# %% q1: returns the variance of one column, not of the row
def split(rows):
    own = float(rows.var(0).mean())
    return float(rows.mean(0).square().sum()) - own / len(rows), own


# %% q2: sums over the samples, where the loss is a mean
def difference_after(delta, features, p, rate, decay, steps):
    values, vectors = torch.linalg.eigh(features.T @ features)
    return vectors @ ((1 - rate * decay - rate * p * values) ** steps * (vectors.T @ delta))


# %% q2: one step, times their number
def difference_after(delta, features, p, rate, decay, steps):
    H = features.T @ features / len(features)
    return delta - steps * rate * (decay * delta + p * H @ delta)


# %% q2: adds the second term, as in the printed bound
def difference_after(delta, features, p, rate, decay, steps):
    values, vectors = torch.linalg.eigh(features.T @ features / len(features))
    return vectors @ ((1 - rate * decay + rate * p * values) ** steps * (vectors.T @ delta))


# %% q2: one factor for all directions
def difference_after(delta, features, p, rate, decay, steps):
    mean = features.square().sum(1).mean() / features.shape[1]
    return (1 - rate * decay - rate * p * mean) ** steps * delta


# %% q3: mean norm and mean probability
def largest_rate(features, probabilities, decay):
    r, q = float(features.norm(dim=1).mean()), min(float(probabilities.mean()), 0.5)
    return 1 / (decay + r**2 * q / 2)


# %% q3: forgets the one half in q
def largest_rate(features, probabilities, decay):
    r = float(features.norm(dim=1).max())
    return 1 / (decay + r**2 * float(probabilities.max()) / 2)


# %% q3: rounds down
def steps_until(share, rate, decay, mu):
    factor = abs(1 - rate * decay - rate * mu)
    return None if factor >= 1 else int(math.log(share) / math.log(factor)) if factor else 1


# %% q3: forgets that a factor can be negative
def steps_until(share, rate, decay, mu):
    factor = 1 - rate * decay - rate * mu
    if factor >= 1 or factor < 0:
        return None
    return max(1, math.ceil(math.log(share) / math.log(factor))) if factor else 1


# %% q4: the frozen prediction
predict_kept = frozen_prediction


# %% q4: says that nothing more is lost
def predict_kept(weights, features, used, rate, probe, steps):
    return 1.0 if steps == probe else 1 - 1e-6


# %% q4: the frozen prediction, less a little
def predict_kept(weights, features, used, rate, probe, steps):
    return 0.8 * frozen_prediction(weights, features, used, rate, probe, steps) + 0.2
