"""The plugins that bring real things to the tests, the settings of property tests, and which tests go to the same worker when several run
them.
"""

import pytest
from hypothesis import settings

pytest_plugins = ["tests.fix_servers", "tests.acceptance.fix_kills"]

# A busy machine is no defect: no example has a time limit. The rest stays as hypothesis chose it (it has a profile of its own for CI).
settings.register_profile("sluice", settings.default, deadline=None)
settings.load_profile("sluice")

SPARK_FIXTURES = {"spark_server", "lake"}  # one Spark for all its tests: it is slow to start and warm
LONGEST = ("tests/acceptance", "tests/orchestration", "tests/spark")  # first: no worker is left with them at the end


@pytest.hookimpl(tryfirst=True)  # before the plugin of the workers reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file's tests stay together, for they share what they start; so do all tests of the one Spark."""
    items.sort(key=lambda item: next((at for at, folder in enumerate(LONGEST) if item.nodeid.startswith(folder)), 9))
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        group = "spark" if fixtures & SPARK_FIXTURES else item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))
