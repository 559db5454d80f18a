from tests.builder.conftest import tools  # noqa: F401 - a fixture
