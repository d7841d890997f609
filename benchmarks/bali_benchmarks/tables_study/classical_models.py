"""Linear models and Gaussian processes, scikit-learn's, on standardised columns."""

from __future__ import annotations

import numpy as np
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bali_benchmarks.tables_study.densities import Array, Fitted, classes, gaussians

PENALTIES = np.logspace(-3.0, 3.0, 13)


def ridge(X: Array, y: Array, seed: int) -> Fitted:
    """Its penalty and its noise are those of the leave-one-out errors."""
    model = RidgeCV(PENALTIES, store_cv_results=True)
    pipeline = make_pipeline(StandardScaler(), model).fit(X, y)
    noise = float(model.cv_results_.mean(0).min())
    return lambda Z: gaussians(pipeline.predict(Z), noise)


def logistic(X: Array, y: Array, seed: int) -> Fitted:
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)).fit(X, y)
    return lambda Z: classes(pipeline.predict_proba(Z))


def gaussian_process_regression(X: Array, y: Array, seed: int) -> Fitted:
    """A length for each column, a scale and a noise, by the evidence."""
    kernel = ConstantKernel() * RBF(np.full(X.shape[1], X.shape[1] ** 0.5)) + WhiteKernel()
    model = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed)
    scaler = StandardScaler().fit(X)
    model.fit(scaler.transform(X), y)

    def predict(Z: Array) -> tuple[Array, Array]:
        mean, std = model.predict(scaler.transform(Z), return_std=True)
        return mean, np.square(std)

    return lambda Z: gaussians(*predict(Z))


def gaussian_process_classification(X: Array, y: Array, seed: int) -> Fitted:
    """One length for all columns: scikit-learn's has no gradient for more that is worth its time."""
    kernel = ConstantKernel() * RBF(X.shape[1] ** 0.5)
    pipeline = make_pipeline(StandardScaler(), GaussianProcessClassifier(kernel, random_state=seed)).fit(X, y)
    return lambda Z: classes(pipeline.predict_proba(Z))
