"""Plausible wrong answers to assignment 1: none of them may get full marks for its question."""

# ruff: noqa: F811, F821 (each part runs after the solution, and replaces one answer of it)

# %% q1: counts the given facts as round 1
new_in_round = [set(problem.facts), *new_in_round]


# %% q1: puts what follows all at once
new_in_round = [set().union(*new_in_round)]


# %% q2: a round does the work of two, since what is new counts at once
def levels(problem):
    level, depth, changed = dict.fromkeys(problem.facts, 0), 0, True
    while changed:
        changed, depth = False, depth + 1
        for rule in problem.rules:
            if rule.head not in level and all(name in level for name in rule.body):
                level[rule.head] = depth
                changed = True
    return level


# %% q2: right, and quadratic
def levels(problem):
    level, depth = dict.fromkeys(problem.facts, 0), 0
    while True:
        depth += 1
        new = {r.head for r in problem.rules if set(r.body) <= level.keys()} - level.keys()
        if not new:
            return level
        level |= dict.fromkeys(new, depth)


# %% q2: waits for a premise twice where a rule names it twice
def levels(problem):
    uses, waiting = {}, [len(rule.body) for rule in problem.rules]
    for number, rule in enumerate(problem.rules):
        for name in set(rule.body):
            uses.setdefault(name, []).append(number)
    level = dict.fromkeys(problem.facts, 0)
    newest, depth = list(level), 0
    while newest:
        depth, last, newest = depth + 1, newest, []
        for name in last:
            for number in uses.get(name, ()):
                waiting[number] -= 1
                head = problem.rules[number].head
                if waiting[number] == 0 and head not in level:
                    level[head] = depth
                    newest.append(head)
    return level


# %% q3: goes back from the query by the first rule that fits, and never looks at another
def without_detours(problem, names):
    needed, before = {problem.query}, set(names)
    for place in reversed(range(len(names))):
        name, before = names[place], set(names[:place])
        if name in needed and name not in problem.facts:
            fitting = next(r for r in problem.rules if r.head == name and set(r.body) <= before)
            needed |= set(fitting.body)
    return [name for name in names if name in needed]


# %% q3: tries names from the front
def without_detours(problem, names):
    def derives(listed):
        stated = set()
        for name in listed:
            rules = [r for r in problem.rules if r.head == name]
            if name not in problem.facts and not any(set(r.body) <= stated for r in rules):
                return False
            stated.add(name)
        return problem.query in stated

    kept = list(names)
    for name in names:
        shorter = [other for other in kept if other != name]
        if derives(shorter):
            kept = shorter
    return kept


# %% q3: stops at the query and leaves all before it
def without_detours(problem, names):
    return names[: names.index(problem.query) + 1]


# %% q4: takes rule -1 for the last one
def judge(problem, steps, answer):
    known = set(problem.facts)
    for place, (number, name) in enumerate(steps):
        if number >= len(problem.rules):
            return place, "no such rule"
        rule = problem.rules[number]
        if not set(rule.body) <= known:
            return place, "premise missing"
        if rule.head != name:
            return place, "other conclusion"
        known.add(name)
    if problem.query in known:
        return None if answer else (len(steps), "wrong answer")
    if any(set(rule.body) <= known and rule.head not in known for rule in problem.rules):
        return len(steps), "stopped early"
    return (len(steps), "wrong answer") if answer else None


# %% q4: accepts no wherever the query was not derived
def judge(problem, steps, answer):
    known = set(problem.facts)
    for place, (number, name) in enumerate(steps):
        if not 0 <= number < len(problem.rules):
            return place, "no such rule"
        rule = problem.rules[number]
        if not set(rule.body) <= known:
            return place, "premise missing"
        if rule.head != name:
            return place, "other conclusion"
        known.add(name)
    return None if answer == (problem.query in known) else (len(steps), "wrong answer")


# %% q4: lets a rule be its own premise
def judge(problem, steps, answer):
    known = set(problem.facts)
    for place, (number, name) in enumerate(steps):
        known.add(name)
        if not 0 <= number < len(problem.rules):
            return place, "no such rule"
        rule = problem.rules[number]
        if not set(rule.body) <= known:
            return place, "premise missing"
        if rule.head != name:
            return place, "other conclusion"
    if problem.query in known:
        return None if answer else (len(steps), "wrong answer")
    if any(set(rule.body) <= known and rule.head not in known for rule in problem.rules):
        return len(steps), "stopped early"
    return (len(steps), "wrong answer") if answer else None


# %% q5: only the given facts are true
def witness(problem):
    if problem.query in levels(problem):
        return None
    return {name: name in problem.facts for name in problem.symbols}


# %% q5: all is true but the query
def witness(problem):
    if problem.query in levels(problem):
        return None
    return {name: name != problem.query for name in problem.symbols}


# %% q5: leaves out the names that do not follow
def witness(problem):
    true = levels(problem)
    return None if problem.query in true else dict.fromkeys(true, True) | {problem.query: False}
