"""Samplers draw from a density of ours, those that are installed: the code of docs/howto/hand_over.md."""

import numpy as np
import pytest

import tapegrad as tg
import tapegrad.scipy as ts

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]  # what they import is not ours to mend
RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 3))
Y = X @ [1.0, -0.5, 0.2] + RNG.logistic(size=200) > 0


def log_density(b):
    z = X @ b
    return np.sum(Y * z - np.logaddexp(0.0, z)) - 0.5 * np.sum(b**2)


def close(draws):
    """Whether draws have about the mean and the spread of a normal distribution at the density's maximum."""
    found = ts.optimize.minimize(lambda b: -log_density(b), np.zeros(3), method="BFGS")
    spread = np.sqrt(np.diag(np.linalg.inv(-tg.func.hessian(log_density)(found.x))))
    np.testing.assert_allclose(np.mean(draws, axis=0), found.x, atol=0.3 * spread.min())
    np.testing.assert_allclose(np.std(draws, axis=0), spread, rtol=0.3)


def test_emcee():
    emcee = pytest.importorskip("emcee")
    sampler = emcee.EnsembleSampler(16, 3, log_density)
    sampler.random_state = np.random.RandomState(1).get_state()
    sampler.run_mcmc(0.1 * RNG.normal(size=(16, 3)), 1500)
    close(sampler.get_chain(discard=300, flat=True))


def test_nutpie():
    nutpie = pytest.importorskip("nutpie")
    value_and_grad = tg.func.value_and_grad(log_density)
    model = nutpie.compiled_pyfunc.from_pyfunc(
        3, lambda: value_and_grad, lambda *seeds, **more: lambda x: {"b": x}, [np.dtype(float)], [(3,)], ["b"]
    )
    trace = nutpie.sample(model, draws=1000, chains=2, progress_bar=False, seed=1)
    close(trace.posterior["b"].values.reshape(-1, 3))


def test_blackjax():
    jax, blackjax = pytest.importorskip("jax"), pytest.importorskip("blackjax")
    jax.config.update("jax_enable_x64", True)
    try:
        density = tg.interop.to_jax(log_density)
        nuts = blackjax.nuts(density, step_size=0.2, inverse_mass_matrix=jax.numpy.ones(3) * 0.05)
        state, step, draws = nuts.init(jax.numpy.zeros(3)), jax.jit(nuts.step), []
        for key in jax.random.split(jax.random.key(0), 1000):
            state, _ = step(key, state)
            draws.append(np.asarray(state.position))
    finally:
        jax.config.update("jax_enable_x64", False)
    close(draws[100:])
