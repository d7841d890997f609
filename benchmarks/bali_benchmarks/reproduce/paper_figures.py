"""The paper's figures of BALI, of MC dropout and of the best baselines: mean and standard error."""

from __future__ import annotations

from bali_benchmarks.published import Published

#: By metric and set.
REGRESSION = {
    "rmse": {
        "yacht": Published(0.642, 0.042),
        "concrete": Published(4.425, 0.153),
        "energy": Published(0.451, 0.016),
        "redwine": Published(0.676, 0.016),
        "kin8nm": Published(0.075, 0.001),
        "powerplant": Published(3.882, 0.026),
        "protein": Published(4.129, 0.016),
    },
    "log_likelihood": {
        "yacht": Published(-0.745, 0.033),
        "concrete": Published(-2.976, 0.079),
        "energy": Published(-0.610, 0.035),
        "redwine": Published(-1.078, 0.033),
        "kin8nm": Published(1.175, 0.008),
        "powerplant": Published(-2.769, 0.007),
        "protein": Published(-2.836, 0.004),
    },
}

#: By metric and set, the best of the five methods that the paper sets beside BALI in regression, and its figure.
BEST_BASELINE = {
    "rmse": {
        "yacht": ("MC dropout", Published(0.666, 0.049)),
        "concrete": ("MC dropout", Published(4.826, 0.161)),
        "energy": ("Noisy K-FAC", Published(0.485, 0.023)),
        "redwine": ("MC dropout", Published(0.622, 0.008)),
        "kin8nm": ("Noisy K-FAC", Published(0.076, 0.001)),
        "powerplant": ("Noisy K-FAC", Published(3.886, 0.041)),
        "protein": ("Noisy K-FAC", Published(4.097, 0.009)),
    },
    "log_likelihood": {
        "yacht": ("MC dropout", Published(-1.250, 0.015)),
        "concrete": ("MC dropout", Published(-2.937, 0.025)),
        "energy": ("MC dropout", Published(-1.212, 0.005)),
        "redwine": ("MC dropout", Published(-0.928, 0.013)),
        "kin8nm": ("Noisy K-FAC", Published(1.148, 0.007)),
        "powerplant": ("Noisy K-FAC", Published(-2.776, 0.011)),
        "protein": ("Noisy K-FAC", Published(-2.836, 0.002)),
    },
}

#: By method, metric and set; there is no AUC of ten classes.
CLASSIFICATION = {
    "paper": {
        "accuracy": {
            "diabetes": Published(0.867, 0.000),
            "telescope": Published(0.883, 0.001),
            "spam": Published(0.939, 0.005),
            "mnist": Published(0.986, 0.000),
            "fashion_mnist": Published(0.905, 0.001),
        },
        "ece": {
            "diabetes": Published(0.004, 0.000),
            "telescope": Published(0.015, 0.001),
            "spam": Published(0.029, 0.003),
            "mnist": Published(0.003, 0.000),
            "fashion_mnist": Published(0.008, 0.001),
        },
        "auc": {
            "diabetes": Published(0.831, 0.000),
            "telescope": Published(0.938, 0.001),
            "spam": Published(0.980, 0.002),
        },
    },
    "mc_dropout": {
        "accuracy": {
            "diabetes": Published(0.867, 0.000),
            "telescope": Published(0.874, 0.001),
            "spam": Published(0.945, 0.003),
            "mnist": Published(0.986, 0.000),
            "fashion_mnist": Published(0.903, 0.000),
        },
        "ece": {
            "diabetes": Published(0.006, 0.000),
            "telescope": Published(0.040, 0.003),
            "spam": Published(0.022, 0.002),
            "mnist": Published(0.006, 0.000),
            "fashion_mnist": Published(0.008, 0.000),
        },
        "auc": {
            "diabetes": Published(0.831, 0.000),
            "telescope": Published(0.934, 0.002),
            "spam": Published(0.985, 0.001),
        },
    },
}
