import jax
import pytest


@pytest.fixture(scope="session")
def device(pytestconfig) -> jax.Device:
    """The accelerator; with --on-cpu the CPU, which takes the forms that a GPU would take."""
    found = jax.devices()[0]
    if found.platform == "cpu" and not pytestconfig.getoption("on_cpu"):
        pytest.skip("JAX finds no accelerator here; --on-cpu tries the test without")
    with pytest.MonkeyPatch.context() as patch:
        if found.platform == "cpu":
            patch.setattr(jax, "default_backend", lambda: "gpu")
        yield found


@pytest.fixture
def float32():
    """Multiplies float32 in full, where GPUs take TF32."""
    with jax.default_matmul_precision("highest"):
        yield
