from __future__ import annotations

import pytest

from tests.support.api_world import World
from tests.support.async_tests import pytest_pyfunc_call as pytest_pyfunc_call


@pytest.fixture
def world() -> World:
    return World()
