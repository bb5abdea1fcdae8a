"""How the constants were found: fits, blind batches, studies of errors and bounds. Neither product
nor test; not in the wheel.

fit_*, time_fit, error_fit, constants_document   the constants of the cost model from published rows (`python -m research.fit_cost_model`)
unseen, open_rows, held_out, unread_level         rows that nothing was fitted to
error_causes, error_scale, *_bound                what the errors depend on, and what bounds them
live_memory, megatron_*, host_launches, other_layers   kernels and launches behind single constants
replay_wild, replay_near_equals, train_policy     searches in worlds that no user has
cost_speed, search_speed, installation            how long estimates, searches and the installation take
few_for_many_native, goodput                      a study's pick against real trainings
recovery, service_crowd                           a killed controller, and a caller who asks too much
behaviour                                         what the product answers, recorded before and after a change
"""
