"""Answers about studies from what the store holds. Nothing is run or changed here.

answers.py        Result of a study, its JSON documents, exports
rankings.py       the same trials under another objective, and the Pareto front; why a trial won or lost
best_known.py     the best known config of a model on a cluster: measured, of the nearest workload, or predicted
winner.py         who won, and the configs of a study best first          config_figures.py   the one speed that is shown of each config
question.py       what is asked: model, cluster, objective
records.py        a study's record as JSON and back          calibrations.py   stored constants of the cost model
"""
