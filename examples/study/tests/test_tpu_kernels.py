"""What is counted of kernels for TPUs, and the table of them."""

import re
import subprocess
import sys

import pytest

from examples.study.benchmarks import _chips, _count, _schedule, aot, tpu_kernels

V5E = _chips.CHIPS["v5e"]

# What the TPU compiler writes for a kernel, shortened: an outer loop over four matrices
# with two rounds more for what is fetched ahead; in it one of ten tiles, two at a time.
SCHEDULE = """\
LB: loop body

     0   :  { %s1 = smov 0 }
   0x1   :  { %s2 = smov 0 } /* Start region 1 */
   0x2 LB: > { %s3 = sadd.s32 4294967294, %s4 /* iteration index, stage = 2 */ }
   0x3   : > { %s5 = sadd.s32 1, %s4 }
   0x4 LB: >> { %s6 = sadd.s32 2, %s7 }
   0x5   : >> { %p8_p1 = scmp.ge.s32.totalorder %s6, 10 /* loop exit test */ }
   0x6   : >> { %9 = sbr.rel (!%p8_p1) target = $region7 }
   0x7   : > { %p2_p0 = scmp.ge.s32.totalorder (%p8_p1), %s5, 6 /* loop exit test */ }
   0x8   : > { %10 = sbr.rel (!%p2_p0) target = $region9  ;;  %s4 = smov %s5 }
   0x9   :  { %11 = vsyncpa [#allocation9], 1 }
"""
KERNEL = """\
ENTRY %main (x: bf16[4,768,1024]) -> bf16[4,768,1024] {
  %x = bf16[4,768,1024]{2,1,0} parameter(0)
  ROOT %own.1 = bf16[4,768,1024]{2,1,0} custom-call(%x), \
custom_call_target="tpu_custom_call", backend_config={"custom_call_config":\
{"body":"TUz","cost_estimate":{"flops":"197000000000","transcendentals":"0"}}}
}
"""


def test_bundles_count_as_often_as_their_loops_run():
    assert _schedule.bundles(SCHEDULE) == 3 + 4 * (4 + 5 * 3)


def test_schedules_are_read_and_removed(tmp_path):
    (tmp_path / "17-own.1-72-final_bundles.txt").write_text(SCHEDULE)
    (tmp_path / "17-own.1-71-schedule-analysis_final_bundles.txt").write_text("")
    assert _schedule.cycles(tmp_path) == {"own.1": 79}
    assert not [*tmp_path.iterdir()]
    assert str(tmp_path) in _schedule.arguments(tmp_path)


def test_a_kernel_takes_its_operations_or_its_schedule():
    found = _count.counted(KERNEL, V5E)
    assert found["flops bf16"] == 197e9
    assert found["bytes"] == 2 * (2 * 4 * 768 * 1024)
    assert found["seconds"] == pytest.approx(1e-3)
    slower = _count.counted(KERNEL, V5E, schedule={"own.1": 3_000_000, "other": 10**9})
    assert slower["seconds"] == pytest.approx(2e-3)
    faster = _count.counted(KERNEL, V5E, schedule={"own.1": 1000})
    assert faster == found


def test_clocks_belong_to_the_rates():
    operations = {"v5e": 4 * 128**2, "v5p": 8 * 128**2, "v6e": 4 * 256**2}
    for name, units in operations.items():
        chip = _chips.CHIPS[name]
        assert chip.rates["bf16"] == pytest.approx(2 * units * chip.clock, rel=0.01)


def test_the_chips_of_the_command_line():
    assert parse() == list(tpu_kernels.CHIPS)
    assert parse("--platforms", "v6e") == ["v6e"]


def parse(*arguments):
    return list(tpu_kernels.parse(arguments).platforms)


@pytest.mark.slow
@pytest.mark.skipif(
    aot.compiler_is_missing(), reason="needs the TPU compiler: pip install '.[aot]'"
)
def test_the_table_has_schedules_of_all_kernels():
    program = (sys.executable, "-m", "examples.study", "tpu-kernels")
    arguments = ("--small", "--platforms", "v5e")
    done = subprocess.run(
        [*program, *arguments], capture_output=True, text=True, check=True
    )
    (row,) = (x for x in done.stdout.splitlines() if x.startswith("v5e"))
    pairs = re.findall(r"([\d.]+) +\(([\d.]+)\)", row)
    assert len(pairs) == 3
    assert all(float(with_it) >= float(without) for with_it, without in pairs)
