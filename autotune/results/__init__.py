"""What the store knows of studies, as answers. Nothing is run and nothing is changed here.

answers.py        Result of a study, its JSON documents, explanations, exports
rankings.py       the same trials under another objective, and the Pareto front
best_known.py     the best known config of a model on a cluster: measured, of the nearest workload, or predicted
records.py        a study's record as JSON and back          calibrations.py   stored constants of the cost model
"""
