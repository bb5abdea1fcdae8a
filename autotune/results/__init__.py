"""Results of studies, computed from the store. Nothing is run or changed here.

answers.py          the result of a study, its JSON documents and exports
rankings.py         the trials ranked by another objective; the Pareto front; why a trial won or lost
winner.py           the winner of a study and the ranking of its configs
config_figures.py   the corrected speed of each config
best_known.py       the best known config of a model on a cluster: measured, of the nearest workload, or predicted
question.py         the query for it: model, cluster, filters, objective
calibrations.py     stored corrections of the cost model
masking.py          studies without their secrets
"""
