import os
from pathlib import Path

import pytest


@pytest.fixture
def data(root, in_ci) -> Path:
    """The folder of real data sets; a test that asks for it is skipped where there is none."""
    folder = os.environ.get("REPROLIB_DATA")
    if not folder:
        if in_ci and (root.parent / "shared" / "data").exists():
            pytest.fail(
                "REPROLIB_DATA is unset although ../shared/data exists: set it, so that this test runs"
            )
        pytest.skip("REPROLIB_DATA is unset: it names a folder of data sets")
    return Path(folder)
