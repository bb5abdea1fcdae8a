"""The surrogate: a model of step time, peak memory and failures that corrects the cost model by
trials.

    posterior.py        Posterior: score and probability of running for every candidate, given the trials so far
    training_data.py    converts trials to training data: log step time, log peak memory, other failures
    model_average.py    ModelAverage: several models, weighted by how well they predict the trials
    corrected_gp.py     CorrectedGP: the cost model's parts with unknown factors, plus a Gaussian process for the residual
    observations.py     Observations: values with noise, and values that are only known to be above or below a limit
    kernel.py           covariances over the knobs' coordinates
    failure_rate.py     probability of failures other than out of memory
    acquisition.py      log expected improvement

Symbols: n observations, N candidates, d coordinates, K parts, M models. All computations are exact
linear algebra on at most a few hundred observations; candidates are scored in blocks.
"""
