"""CatBoost, XGBoost and NGBoost: their defaults, and rows held out to say how many trees are enough."""

from __future__ import annotations

import numpy as np
import torch

from bali_benchmarks.tables_study.densities import Array, Fitted, classes, gaussians, held_out, smoothed_quantiles

#: Rounds without progress on held-out rows, after which no more trees are grown.
PATIENCE = 50
N_QUANTILES = 20
LEVELS = (np.arange(N_QUANTILES) + 0.5) / N_QUANTILES


def _catboost(seed: int) -> dict[str, object]:
    quiet = {"verbose": False, "allow_writing_files": False}
    return {"random_seed": seed, "thread_count": torch.get_num_threads(), "early_stopping_rounds": PATIENCE, **quiet}


def catboost_regression(X: Array, y: Array, seed: int) -> Fitted:
    from catboost import CatBoostRegressor

    X, y, X_val, y_val = held_out(X, y, seed, False)
    model = CatBoostRegressor(loss_function="RMSEWithUncertainty", **_catboost(seed)).fit(X, y, eval_set=(X_val, y_val))

    def predict(Z: Array) -> tuple[Array, Array]:
        mean, log_std = model.predict(Z, prediction_type="RawFormulaVal").T
        return mean, np.exp(2.0 * log_std)

    return lambda Z: gaussians(*predict(Z))


def catboost_classification(X: Array, y: Array, seed: int) -> Fitted:
    from catboost import CatBoostClassifier

    loss = "Logloss" if y.max() == 1 else "MultiClass"
    X, y, X_val, y_val = held_out(X, y, seed, True)
    model = CatBoostClassifier(loss_function=loss, **_catboost(seed)).fit(X, y, eval_set=(X_val, y_val))
    return lambda Z: classes(model.predict_proba(Z))


def _xgboost(seed: int) -> dict[str, object]:
    """A thousand trees at most: its hundred would not leave anything to stop."""
    return {"n_estimators": 1000, "early_stopping_rounds": PATIENCE, "random_state": seed, "n_jobs": torch.get_num_threads()}


def xgboost_regression(X: Array, y: Array, seed: int) -> Fitted:
    from xgboost import XGBRegressor

    X, y, X_val, y_val = held_out(X, y, seed, False)
    model = XGBRegressor(**_xgboost(seed)).fit(X, y, eval_set=[(X_val, y_val)], verbose=False)
    noise = float(np.square(y_val - model.predict(X_val)).mean())
    return lambda Z: gaussians(model.predict(Z), noise)


def xgboost_quantiles(X: Array, y: Array, seed: int) -> Fitted:
    from xgboost import XGBRegressor

    X, y, X_val, y_val = held_out(X, y, seed, False)
    model = XGBRegressor(objective="reg:quantileerror", quantile_alpha=LEVELS, **_xgboost(seed))
    model.fit(X, y, eval_set=[(X_val, y_val)], verbose=False)
    return smoothed_quantiles(model.predict, X_val, y_val)


def xgboost_classification(X: Array, y: Array, seed: int) -> Fitted:
    from xgboost import XGBClassifier

    X, y, X_val, y_val = held_out(X, y, seed, True)
    model = XGBClassifier(**_xgboost(seed)).fit(X, y, eval_set=[(X_val, y_val)], verbose=False)
    return lambda Z: classes(model.predict_proba(Z))


def ngboost_regression(X: Array, y: Array, seed: int) -> Fitted:
    from ngboost import NGBRegressor

    X, y, X_val, y_val = held_out(X, y, seed, False)
    model = NGBRegressor(random_state=seed, verbose=False)
    model.fit(X, y, X_val=X_val, Y_val=y_val, early_stopping_rounds=PATIENCE)

    def predict(Z: Array) -> tuple[Array, Array]:
        found = model.pred_dist(Z, max_iter=model.best_val_loss_itr)
        return found.loc, np.square(found.scale)

    return lambda Z: gaussians(*predict(Z))


def ngboost_classification(X: Array, y: Array, seed: int) -> Fitted:
    from ngboost import NGBClassifier
    from ngboost.distns import k_categorical

    n_classes = int(y.max()) + 1
    X, y, X_val, y_val = held_out(X, y, seed, True)
    model = NGBClassifier(Dist=k_categorical(n_classes), random_state=seed, verbose=False)
    model.fit(X, y, X_val=X_val, Y_val=y_val, early_stopping_rounds=PATIENCE)
    return lambda Z: classes(model.predict_proba(Z, max_iter=model.best_val_loss_itr))
