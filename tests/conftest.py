"""The plugins that bring real things to the tests; nothing else belongs here."""

pytest_plugins = ["tests.fix_servers", "tests.acceptance.fix_kills"]
