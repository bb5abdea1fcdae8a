"""What trials teach about the cost model: where its time and memory are off, and what fails for other reasons.

    corrected.py     a sum of predicted parts with unknown factors, and a Gaussian process on what remains: log time, log memory
    averaged.py      several of these, each counting by how well it foresaw the trials
    sites.py         observations: a value with noise, or only the side of a limit
    kernel.py        Matern covariance over the knobs' coordinates
    hazard.py        probability of failures that memory does not explain
    improvement.py   log expected improvement

Symbols everywhere: n observations, N candidates, d coordinates, K parts. Everything is exact linear algebra on n <= some hundred
observations; candidates are scored in blocks.
"""
