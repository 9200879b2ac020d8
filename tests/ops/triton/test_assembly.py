"""What is read from compiled kernels' text; the excerpts are those of Triton 3.9 and LLVM."""

from strata.ops.triton.proof.assembly import read_amdgcn, read_ptx
from strata.ops.triton.proof.targets import TARGETS

AMDGCN = """
kernel:
	s_load_b128 s[0:3], s[4:5], 0x0
	buffer_load_b128 v[2:5], v1, s[0:3], 0 offen
	global_load_d16_u8 v6, v[0:1], off
	v_wmma_i32_16x16x16_iu8 v[0:7], v[8:11], v[12:15], v[0:7] neg_lo:[1,1,0]
	v_wmma_i32_16x16x16_iu8 v[0:7], v[8:11], v[12:15], v[0:7] neg_lo:[1,1,0]
	v_dot4_i32_iu8 v1, v2, v3, v4
	s_endpgm
	.section	.rodata,"a",@progbits
	v_dot4_never_counted
; Occupancy: 12
	.amdgpu_metadata
amdhsa.kernels:
  - .name:           kernel
    .vgpr_count:     120
    .vgpr_spill_count: 3
    .sgpr_spill_count: 2
"""


def test_amd():
    code = read_amdgcn(AMDGCN, TARGETS["gfx1100"], 0, 4)
    assert (code.registers, code.spills, code.waves, code.widest_load) == (120, 3, 12, 128)
    assert code.instructions == {"v_wmma_i32_16x16x16_iu8": 2, "v_dot4_i32_iu8": 1}


def test_lds_limits_the_waves_that_llvm_counts():
    # 128 KiB for four SIMDs: two workgroups of 48 KiB, of eight waves each.
    assert read_amdgcn(AMDGCN, TARGETS["gfx1100"], 48 * 1024, 8).waves == 4
    assert read_amdgcn(AMDGCN, TARGETS["gfx906"], 48 * 1024, 8).waves == 2  # 64 KiB


def test_amd_loads():
    widths = {
        "global_load_dwordx4": 128,
        "buffer_load_dword": 32,
        "global_load_ubyte": 8,
        "buffer_load_u16": 16,
    }
    for mnemonic, bits in widths.items():
        text = f"k:\n\t{mnemonic} v1, v2, off\n\t.section\t.rodata\n.amdgpu_metadata\n"
        assert read_amdgcn(text, TARGETS["gfx906"], 0, 1).widest_load == bits, mnemonic


PTX = """
	ld.global.v4.b32 	{ %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
	@%p1 ld.global.L1::evict_first.b16 	{ %rs1 }, [ %rd2 + 0 ];
	dp4a.s32.s32 	%r5, %r1, %r2, %r3;
	mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32 { %r1 }, { %r2 }, { %r3 }, { %r4 };
	wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {%r1}, %rd1, %rd2, 0;
"""
RESOURCES = "Function kernel:\n  REG:72 STACK:8 SHARED:0 LOCAL:0 CONSTANT[0]:560"


def test_nvidia():
    code = read_ptx(PTX, RESOURCES, TARGETS["sm_89"], 0, 4)
    assert (code.registers, code.spills, code.widest_load) == (72, 2, 128)
    assert code.instructions == {"dp4a.s32.s32": 1, "mma.s32.s8.s8.s32": 1, "wgmma.s32.s8.s8": 1}
    assert code.waves == 28  # 65536 / 4 / (72 * 32) = 7.1 warps of a SIMD
    assert read_ptx(PTX, "REG:80", TARGETS["sm_89"], 0, 1).waves == 24


def test_shared_memory_limits_the_warps():
    assert read_ptx(PTX, RESOURCES, TARGETS["sm_89"], 49 * 1024, 4).waves == 8
    assert read_ptx(PTX, "REG:16", TARGETS["sm_89"], 0, 4).waves == 48


def test_asynchronous_copies_are_loads():
    ptx = "\tcp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2;\n"
    assert read_ptx(ptx, "", TARGETS["sm_80"], 0, 4).widest_load == 128
