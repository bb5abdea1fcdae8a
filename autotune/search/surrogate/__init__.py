"""The surrogate: a model of step time, peak memory and failures, learnt from trials on top of the
cost model.

    posterior.py        Posterior: score and probability of running of every candidate, given the trials so far
    training_data.py    trials as training data: log step time, log peak memory, other failures
    model_average.py    ModelAverage: several models, weighted by how well they predict the trials
    corrected_gp.py     CorrectedGP: the cost model's parts with unknown factors, plus a Gaussian process for the residual
    observations.py     Observations: values with noise, and values that are only known to lie above or below a limit
    kernel.py           Matern covariance over the knobs' coordinates
    failure_rate.py     probability of failures other than out of memory
    acquisition.py      log expected improvement

Symbols: n observations, N candidates, d coordinates, K parts, M models. All of it is exact linear
algebra on n of at most some hundred observations; candidates are scored in blocks.
"""
