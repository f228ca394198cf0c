"""8 Host: threads, functions and the call tree of the CPU samples, and jumps between them; GPU memory."""

import pytest
from jobs import NARROW, running
from synthetic import ExportWriter
from synthetic.writing.host import Frame

from nsystui.ui.widgets.panels import DetailPane


@pytest.mark.campaign
async def test_the_details_of_an_allocation_have_its_call_stack(tmp_path):
    with ExportWriter(tmp_path / "x.sqlite") as export:
        process = export.process(70)
        export.kernel(process, 0, 7, 1_000, 90_000, name="k(int)", correlation_id=None)
        stack = [Frame("cudaMalloc", "/x/libcudart.so.12"), Frame("Pool::grow(int)", "/x/app"), Frame("main", "/x/app")]
        main_thread = export.thread(process, 70, "python")
        export.nvtx_range(main_thread, 0, 100, "load data")
        export.api(main_thread, 10, 60, "cudaMalloc_v3020", 1, stack=stack)
        export.gpu_memory(process, 0, 50, 64, address=64, correlation_id=1)
    async with running([tmp_path / "x.sqlite"], tmp_path / "cache", NARROW, "4", "V", "enter") as (app, _):
        assert "stack Pool::grow ‹ main" in " ".join(app.screen.query_one(DetailPane).lines)
