//! Tests that small PTX kernels, run on the CPU, give known results.

use half::bf16;

use super::{Launch, Program, run};
use crate::memory::Ranges;
use crate::ptx::Entry;

const REGISTERS: &str =
    "	.reg .pred %p<9>;\n	.reg .b16 %rs<9>;\n	.reg .b32 %r<40>;\n	.reg .b64 %rd<20>;\n	.reg .f64 %fd<5>;";

/// Creates a test kernel with one buffer, given its PTX body. The buffer's address is in `%rd1`, and the thread index
/// is in `%r1`.
fn kernel(body: &str) -> Program {
    let text = format!(
        ".extern .shared .align 16 .b8 block_memory[];
.visible .entry tested(
	.param .u64 .ptr .global .align 1 tested_param_0
)
{{
{REGISTERS}
	ld.param.b64 	%rd1, [tested_param_0];
	mov.u32 	%r1, %tid.x;
{body}
	ret;
}}
"
    );
    Program::compile(&Entry::read(&text).unwrap()).unwrap()
}

/// Launches a test kernel on a buffer, and returns the buffer's contents afterwards.
fn after<T: Copy>(program: &Program, blocks: u32, threads: u32, buffer: &[T]) -> Result<Vec<T>, String> {
    let mut buffer = buffer.to_vec();
    let address = buffer.as_mut_ptr() as u64;
    let launch = Launch {
        grid: [blocks, 1, 1],
        block: [threads, 1, 1],
        shared: 4096,
        parameters: address.to_le_bytes().to_vec(),
    };
    run(program, &launch, &Ranges::of([(address, size_of_val(buffer.as_slice()) as u64)].into_iter()))?;
    Ok(buffer)
}

/// Runs one PTX instruction in a test kernel with numbers in `%r2`, `%r3` and `%r4`, and returns the result in `%r9`.
fn of(instruction: &str, numbers: [u32; 3]) -> u32 {
    let [a, b, c] = numbers;
    let body = format!(
        "mov.b32 %r2, {a}; mov.b32 %r3, {b}; mov.b32 %r4, {c}; setp.ne.u32 %p1, %r4, 0;\n{instruction};\nst.global.b32 [%rd1], %r9;"
    );
    after(&kernel(&body), 1, 1, &[0_u32]).unwrap()[0]
}

fn of_floats(instruction: &str, numbers: [f32; 3]) -> f32 {
    f32::from_bits(of(instruction, numbers.map(f32::to_bits)))
}

#[test]
fn integer_instructions_follow_the_isa() {
    let minus = |number: i32| -number as u32;
    for (instruction, numbers, result) in [
        ("add.s32 %r9, %r2, %r3", [u32::MAX, 3, 0], 2),
        ("mul.hi.u32 %r9, %r2, %r3", [u32::MAX, u32::MAX, 0], u32::MAX - 1),
        ("mul.hi.s32 %r9, %r2, %r3", [minus(1), 5, 0], minus(1)),
        ("mad.lo.s32 %r9, %r2, %r3, %r4", [minus(7), 3, 5], minus(16)),
        ("div.s32 %r9, %r2, %r3", [minus(7), 2, 0], minus(3)),
        ("rem.u32 %r9, %r2, %r3", [17, 5, 0], 2),
        ("max.s32 %r9, %r2, %r3", [minus(7), 2, 0], 2),
        ("max.u32 %r9, %r2, %r3", [minus(7), 2, 0], minus(7)),
        ("shl.b32 %r9, %r2, %r3", [1, 32, 0], 0),
        ("shr.s32 %r9, %r2, %r3", [minus(8), 40, 0], minus(1)),
        ("shr.u32 %r9, %r2, %r3", [minus(8), 28, 0], 15),
        ("bfe.u32 %r9, %r2, %r3, %r4", [0xABCD, 4, 8], 0xBC),
        ("prmt.b32 %r9, %r2, %r3, 0x5410", [0x1122_3344, 0x5566_7788, 0], 0x7788_3344),
        ("prmt.b32 %r9, %r2, %r3, 0x0008", [0x0000_0080, 0, 0], 0x8080_80FF),
        ("selp.b32 %r9, %r2, %r3, %p1", [1, 2, 0], 2),
        ("cvt.s32.s8 %r9, %r2", [0x180, 0, 0], minus(128)),
        ("cvt.u64.u32 %rd9, %r2; shr.u64 %rd9, %rd9, 31; cvt.u32.u64 %r9, %rd9", [minus(1), 0, 0], 1),
        ("setp.lt.and.s32 %p2, %r2, %r3, %p1; selp.b32 %r9, 7, 8, %p2", [minus(1), 0, 1], 7),
        ("@!%p1 mov.b32 %r9, 5; @%p1 mov.b32 %r9, 6", [0, 0, 0], 5),
    ] {
        assert_eq!(of(instruction, numbers), result, "{instruction} of {numbers:?}");
    }
}

#[test]
fn float_instructions_round_as_the_isa_specifies() {
    // 2^-24 is half of the distance from 1.0 to the next f32; f64 would keep it.
    let half = f32::EPSILON / 2.0;
    for (instruction, numbers, result) in [
        ("add.rn.f32 %r9, %r2, %r3", [1.0, half, 0.0], 1.0),
        ("add.rn.f32 %r9, %r2, %r3", [1.0 + f32::EPSILON, half, 0.0], 1.0 + 2.0 * f32::EPSILON),
        ("fma.rn.f32 %r9, %r2, %r3, %r4", [1.0 + f32::EPSILON, 1.0 - f32::EPSILON, -1.0], -f32::EPSILON * f32::EPSILON),
        // In f64 the sum is a tie of f32. The rounding error of f64 decides it: 2^-24 (1 - 2^-46).
        (
            "fma.rn.f32 %r9, %r2, %r3, %r4",
            [2f32.powi(-12) * (1.0 + f32::EPSILON), 2f32.powi(-12) * (1.0 - f32::EPSILON), 1.0 + f32::EPSILON],
            1.0 + f32::EPSILON,
        ),
        ("fma.rm.f32 %r9, %r2, %r3, %r4", [1.0, -half / 2.0, 1.0 + f32::EPSILON], 1.0),
        ("cvt.rzi.f32.f32 %r9, %r2", [-2.7, 0.0, 0.0], -2.0),
        ("cvt.rni.f32.f32 %r9, %r2", [2.5, 0.0, 0.0], 2.0),
        ("cvt.sat.f32.f32 %r9, %r2", [f32::NAN, 0.0, 0.0], 0.0),
        ("cvt.rna.tf32.f32 %r9, %r2", [1.0 + 2f32.powi(-11), 0.0, 0.0], 1.0 + 2f32.powi(-10)),
        ("max.f32 %r9, %r2, %r3", [f32::NAN, -1.0, 0.0], -1.0),
        ("max.f32 %r4, %r2, %r3; rcp.approx.ftz.f32 %r9, %r4", [-0.0, 0.0, 0.0], f32::INFINITY),
        ("min.f32 %r4, %r2, %r3; rcp.approx.ftz.f32 %r9, %r4", [0.0, -0.0, 0.0], f32::NEG_INFINITY),
        ("ex2.approx.ftz.f32 %r9, %r2", [-3.0, 0.0, 0.0], 0.125),
        ("setp.neu.f32 %p2, %r2, %r3; selp.f32 %r9, %r4, %r3, %p2", [f32::NAN, 0.0, 4.0], 4.0),
        ("setp.ne.f32 %p2, %r2, %r3; selp.f32 %r9, %r4, %r3, %p2", [f32::NAN, 0.0, 4.0], 0.0),
    ] {
        assert_eq!(of_floats(instruction, numbers), result, "{instruction} of {numbers:?}");
    }
    assert!(of_floats("cvt.rna.tf32.f32 %r9, %r2", [f32::from_bits(u32::MAX), 0.0, 0.0]).is_nan());
    // The input is one bit above a tie of bf16.
    assert_eq!(of("cvt.rn.bf16.f32 %rs1, %r2; mov.b32 %r9, {%rs1, %rs1}", [0x3F80_8001, 0, 0]), 0x3F81_3F81);
    assert!(of_floats("max.NaN.f32 %r9, %r2, %r3", [f32::NAN, 1.0, 0.0]).is_nan());
    assert_eq!(of("cvt.rzi.s32.f32 %r9, %r2", [(-2.7_f32).to_bits(), 0, 0]), -2_i32 as u32);
    let pair = of("cvt.rn.bf16x2.f32 %r9, %r2, %r3", [1.5_f32.to_bits(), (-0.25_f32).to_bits(), 0]);
    assert_eq!(pair, u32::from(bf16::from_f32(1.5).to_bits()) << 16 | u32::from(bf16::from_f32(-0.25).to_bits()));
}

#[test]
fn threads_write_their_own_elements_and_leave_the_tail_unchanged() {
    let body = "
	mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mad.lo.s32 %r4, %r2, %r3, %r1;
	setp.ge.u32 %p1, %r4, 100;
	@%p1 bra $end;
	mul.wide.u32 %rd2, %r4, 4; add.s64 %rd3, %rd1, %rd2;
	st.global.b32 [%rd3], %r4;
$end:";
    let found = after(&kernel(body), 3, 40, &[7; 120]).unwrap();
    let expected: Vec<u32> = (0..120).map(|at| if at < 100 { at } else { 7 }).collect();
    assert_eq!(found, expected);
}

/// Tests that the lanes of a warp reconverge before a shuffle after a branch has separated them. In each of four rounds
/// of a loop, all lanes sum the values of four lanes by shuffles. Then lane 0 alone takes a branch that adds 1.
#[test]
fn separated_lanes_reconverge_before_a_shuffle() {
    let body = "
	mov.b32 %r2, 0; mov.b32 %r3, 1; setp.eq.b32 %p1, %r1, 0;
	bra.uni $round;
$next:
	add.s32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 4;
	@!%p2 bra $end;
$round:
	activemask.b32 %r4;
	shfl.sync.bfly.b32 %r5, %r3, 1, 31, %r4; add.s32 %r3, %r3, %r5;
	shfl.sync.bfly.b32 %r5, %r3, 2, 31, %r4; add.s32 %r3, %r3, %r5;
	@!%p1 bra $next;
	add.s32 %r3, %r3, 1;
	bra.uni $next;
$end:
	mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2; st.global.b32 [%rd3], %r3;";
    let found = after(&kernel(body), 1, 32, &[0_u32; 32]).unwrap();
    let (mut leads, mut others) = (1, 1);
    for _ in 0..4 {
        let sum = leads + 3 * others;
        (leads, others) = (sum + 1, sum);
    }
    assert_eq!(found[..4], [leads, others, others, others]);
    assert_eq!(found[4..], [256; 28]);
}

#[test]
fn warps_see_shared_memory_written_before_a_barrier() {
    let body = "
	mul.wide.u32 %rd2, %r1, 4; mov.b64 %rd4, block_memory; add.s64 %rd5, %rd4, %rd2; cvta.shared.u64 %rd6, %rd5;
	st.b32 [%rd6], %r1;
	bar.sync 0;
	sub.s32 %r2, 127, %r1; mul.wide.u32 %rd2, %r2, 4; add.s64 %rd5, %rd4, %rd2;
	ld.shared.b32 %r3, [%rd5];
	mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2; st.global.b32 [%rd3], %r3;";
    assert_eq!(after(&kernel(body), 2, 128, &[0; 128]).unwrap(), (0..128_u32).rev().collect::<Vec<_>>());
}

#[test]
fn atomic_additions_of_all_blocks_are_summed() {
    assert_eq!(after(&kernel("red.global.add.u32 [%rd1], 3;"), 50, 32, &[1_u32]).unwrap(), [1 + 3 * 50 * 32]);
}

#[test]
fn invalid_accesses_and_barriers_are_errors_that_name_the_instruction() {
    for (body, expected) in [
        ("ld.global.b32 %r2, [%rd1+4];", "not allocated"),
        ("ld.global.b32 %r2, [%rd1+2];", "not aligned"),
        ("mov.b64 %rd2, block_memory; st.shared.b32 [%rd2+4096], %r1;", "of 4096 in Shared"),
        ("mov.b64 %rd2, -4; ld.global.b32 %r2, [%rd2];", "not allocated"),
        (
            "mov.b64 %rd2, block_memory; add.u64 %rd2, %rd2, 8; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [%rd2];",
            "a multiple of 16 bytes",
        ),
        ("wmma.load.a.sync.aligned.row.m16n16k8.global.tf32 {%r2, %r3, %r4, %r5}, [%rd1], %r1;", "from each lane"),
        ("setp.eq.b32 %p1, %r1, 0; @%p1 bar.warp.sync -1;", "waits for lanes 0xffffffff, but only 0x1 are here"),
        ("setp.eq.b32 %p1, %r1, 0; @%p1 bar.sync 0;", "lanes 0x1 of 0xffffffff alone"),
        (
            "setp.eq.b32 %p1, %r1, 0; @%p1 shfl.sync.bfly.b32 %r3, %r1, 1, 31, -1;",
            "waits for lanes 0xffffffff, but only 0x1 are here",
        ),
    ] {
        let error = after(&kernel(body), 1, 32, &[0_u32]).unwrap_err();
        assert!(error.contains(expected) && error.contains("tested: `"), "{error}");
    }
}

#[test]
fn unsupported_instructions_are_rejected() {
    for instruction in [
        "wgmma.fence.sync.aligned",
        "add.sat.f32 %r1, %r2, %r3",
        "add.rz.f32 %r1, %r2, %r3",
        "max.relu.s32 %r1, %r2, %r3",
        "cvt.rz.bf16.f32 %rs1, %r2",
        "cvt.rn.relu.bf16x2.f32 %r1, %r2, %r3",
        "cvt.rn.tf32.f32 %r1, %r2",
        "shfl.sync.bfly.b32 %r1|%p1, %r2, 1, 31, -1",
        "bar.sync 0, 64",
        "vote.sync.ballot.b32 %r1, %p1, -1",
        "atom.global.cas.b32 %r1, [%rd1], %r2, %r3",
        "atom.global.add.noftz.f16 %rs1, [%rd1], %rs2",
        "prmt.b32.f4e %r1, %r2, %r3, %r4",
        "bra $nowhere",
        "mov.u32 %r1, %smid",
        "mov.u32 %r99, 1",
        "add.u32 %r1, %r2",
        "add.u32 %r1, %r2, %r3, %r4",
        "ld.global.b32 %r1, [%rd1-4]",
        ".loc 1 2 3",
        "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%fd1, %fd2}, {%fd3}, {%fd4}, {%fd1, %fd2}",
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2}, [%rd1]",
    ] {
        let text = format!(".visible .entry k()\n{{\n{REGISTERS}\n	{instruction};\n}}\n");
        let error = Program::compile(&Entry::read(&text).unwrap()).err();
        assert_eq!(error, Some(format!("`{instruction}` in k is not supported")));
    }
}

/// Returns two matrices for a test of matrix products, whose elements are exact in bf16 and f32, and their product.
fn product(m: usize, n: usize, k: usize) -> [Vec<f32>; 3] {
    let numbers = |count: usize, by: usize| (0..count).map(|at| ((at * by) % 13) as f32 - 6.0).collect::<Vec<_>>();
    let (a, b) = (numbers(m * k, 5), numbers(k * n, 7));
    let sum = |at: usize| (0..k).map(|inner| a[at / n * k + inner] * b[inner * n + at % n]).sum();
    let c = (0..m * n).map(sum).collect();
    [a, b, c]
}

/// Tests the PTX instruction `mma`, which multiplies two matrices. Before it, the lanes load rows of eight elements
/// with `ldmatrix`, which transposes the right matrix. After it, each lane stores the pairs of sums that `mma` leaves
/// in its registers.
#[test]
fn mma_computes_the_product_of_two_matrices() {
    let body = "
	mov.b64 %rd2, block_memory;
	and.b32 %r2, %r1, 15; shr.u32 %r3, %r1, 4; mad.lo.s32 %r4, %r2, 32, 0; mad.lo.s32 %r4, %r3, 16, %r4;
	mul.wide.u32 %rd3, %r1, 16; mov.b32 %r5, 0;
$copy:
	mul.wide.u32 %rd4, %r5, 512; add.s64 %rd4, %rd4, %rd3; add.s64 %rd5, %rd1, %rd4; add.s64 %rd6, %rd2, %rd4;
	ld.global.v4.b32 {%r6, %r7, %r8, %r9}, [%rd5]; st.shared.v4.b32 [%rd6], {%r6, %r7, %r8, %r9};
	add.s32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 2;
	@%p1 bra $copy;
	cvt.u64.u32 %rd7, %r4; add.s64 %rd8, %rd2, %rd7;
	ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%rd8];
	mul.wide.u32 %rd9, %r2, 16; add.s64 %rd9, %rd9, %rd2;
	ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r14, %r15}, [%rd9+512];
	mov.b32 %r16, 0f3F800000;
	mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
		{%r20, %r21, %r22, %r23},
		{%r10, %r11, %r12, %r13},
		{%r14, %r15},
		{%r16, %r16, %r16, %r16};
	shr.u32 %r24, %r1, 2; and.b32 %r25, %r1, 3; mul.lo.s32 %r26, %r24, 32; mad.lo.s32 %r26, %r25, 8, %r26;
	cvt.u64.u32 %rd10, %r26; add.s64 %rd11, %rd1, %rd10;
	st.global.v2.b32 [%rd11+1024], {%r20, %r21}; st.global.v2.b32 [%rd11+1280], {%r22, %r23};";
    let [a, b, c] = product(16, 8, 16);
    let mut buffer: Vec<u16> = a.iter().chain(&b).map(|number| bf16::from_f32(*number).to_bits()).collect();
    buffer.resize(512 + 2 * c.len(), 0);
    // Words of 16 bytes keep the buffer aligned.
    let words: Vec<u128> =
        buffer.chunks(8).map(|part| part.iter().rev().fold(0, |word, x| word << 16 | u128::from(*x))).collect();
    let found = after(&kernel(body), 1, 32, &words).unwrap();
    let sums = found[64..].iter().flat_map(|word| (0..4).map(move |at| f32::from_bits((word >> (32 * at)) as u32)));
    let expected: Vec<f32> = c.iter().map(|sum| sum + 1.0).collect();
    assert_eq!(sums.collect::<Vec<_>>(), expected);
}

#[test]
fn wmma_computes_the_product_of_two_matrices() {
    let body = "
	mov.b64 %rd2, %rd1; mov.b32 %r2, 0f00000000;
	wmma.load.a.sync.aligned.row.m16n16k8.global.tf32 {%r10, %r11, %r12, %r13}, [%rd2], 8;
	wmma.load.b.sync.aligned.col.m16n16k8.global.tf32 {%r14, %r15, %r16, %r17}, [%rd2+512], 8;
	wmma.mma.sync.aligned.row.col.m16n16k8.f32.tf32.tf32.f32
		{%r20, %r21, %r22, %r23, %r24, %r25, %r26, %r27},
		{%r10, %r11, %r12, %r13},
		{%r14, %r15, %r16, %r17},
		{%r2, %r2, %r2, %r2, %r2, %r2, %r2, %r2};
	wmma.store.d.sync.aligned.row.m16n16k8.global.f32 [%rd2+1024], {%r20, %r21, %r22, %r23, %r24, %r25, %r26, %r27}, 16;";
    let [a, b, c] = product(16, 16, 8);
    let by_columns = (0..128).map(|at| b[at % 8 * 16 + at / 8]);
    let buffer: Vec<f32> = a.into_iter().chain(by_columns).chain(vec![0.0; 256]).collect();
    assert_eq!(after(&kernel(body), 1, 32, &buffer).unwrap()[256..], c);
}

/// Tests that a PTX shuffle within halves of a warp exchanges no values between the halves.
#[test]
fn shuffles_stay_within_their_segment() {
    // A lane without a source keeps its own value.
    for (how, by, clamp, expected) in [
        ("up", 3, 0x1000, [0, 1, 2, 0, 16, 12]),
        ("down", 3, 0x100F, [3, 4, 5, 6, 19, 15]),
        ("idx", 5, 0x100F, [5, 5, 5, 5, 21, 5]),
        ("bfly", 1, 0x100F, [1, 0, 3, 2, 17, 14]),
    ] {
        let body = format!(
            "shfl.sync.{how}.b32 %r3, %r1, {by}, {clamp}, -1;
	mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2; st.global.b32 [%rd3], %r3;"
        );
        let found = after(&kernel(&body), 1, 32, &[0_u32; 32]).unwrap();
        assert_eq!([0, 1, 2, 3, 16, 15].map(|lane| found[lane]), expected, "{how}");
    }
}

/// Tests the local memory of threads: every thread counts to its own index in its local memory, in f64.
#[test]
fn threads_have_local_memory() {
    let body = "
	.local .align 8 .b8 own[16];
	mov.b64 %rd4, own; cvta.local.u64 %rd5, %rd4; add.s64 %rd6, %rd4, 8;
	mov.b64 %fd1, 0d0000000000000000; mov.b32 %r2, 0;
$next:
	st.local.b64 [%rd6], %fd1; setp.ge.u32 %p1, %r2, %r1;
	@%p1 bra $end;
	ld.b64 %fd2, [%rd5+8]; add.rn.f64 %fd1, %fd2, 0d3FF0000000000000; add.s32 %r2, %r2, 1;
	bra.uni $next;
$end:
	mul.wide.u32 %rd2, %r1, 8; add.s64 %rd3, %rd1, %rd2; st.global.b64 [%rd3], %fd1;";
    assert_eq!(after(&kernel(body), 1, 40, &[0.0; 40]).unwrap(), (0..40).map(f64::from).collect::<Vec<_>>());
}

/// Tests that the PTX instructions `ldmatrix` and `stmatrix` use the same register layout. The kernel loads two 8 x 8
/// matrices with `ldmatrix`, which transposes them, and stores them with `stmatrix`.
#[test]
fn ldmatrix_and_stmatrix_use_the_same_layout() {
    let body = "
	mov.b64 %rd2, block_memory; and.b32 %r2, %r1, 15; mul.wide.u32 %rd3, %r2, 16; add.s64 %rd4, %rd2, %rd3;
	add.s64 %rd5, %rd1, %rd3;
	ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%rd5]; st.shared.v4.b32 [%rd4], {%r4, %r5, %r6, %r7};
	bar.warp.sync -1;
	ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r8, %r9}, [%rd4];
	stmatrix.sync.aligned.m8n8.x2.shared.b16 [%rd4+256], {%r8, %r9};
	ld.shared.v4.b32 {%r4, %r5, %r6, %r7}, [%rd4+256]; st.global.v4.b32 [%rd5+256], {%r4, %r5, %r6, %r7};";
    let numbers = |word: u128| (0..8).map(move |at| (word >> (16 * at)) as u16);
    let rows: Vec<u128> = (0..32).map(|row| (0..8).rev().fold(0, |word, at| word << 16 | (row * 8 + at))).collect();
    let found = after(&kernel(body), 1, 32, &rows).unwrap();
    let found: Vec<u16> = found[16..].iter().flat_map(|row| numbers(*row)).collect();
    let expected = (0..128_u16).map(|at| at / 64 * 64 + at % 8 * 8 + at / 8 % 8);
    assert_eq!(found, expected.collect::<Vec<_>>());
}

#[test]
fn indices_have_three_axes_and_another_block_size_is_rejected() {
    let text = ".visible .entry k(
	.param .u64 .ptr .global .align 1 k_param_0,
	.param .align 8 .b8 k_param_1[8]
)
.reqntid 2, 3, 2
{
	.reg .b32 %r<20>;
	.reg .b64 %rd<5>;
	mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z;
	mov.u32 %r4, %ctaid.x; mov.u32 %r5, %ctaid.y; mov.u32 %r6, %ctaid.z; mov.u32 %r7, %nctaid.x; mov.u32 %r8, %nctaid.y;
	mad.lo.s32 %r9, %r6, %r8, %r5; mad.lo.s32 %r9, %r9, %r7, %r4;
	mad.lo.s32 %r10, %r3, 3, %r2; mad.lo.s32 %r10, %r10, 2, %r1; mad.lo.s32 %r11, %r9, 12, %r10;
	ld.param.b64 %rd1, [k_param_0]; ld.param.b32 %r12, [k_param_1+4];
	mul.wide.u32 %rd2, %r11, 4; add.s64 %rd3, %rd1, %rd2; add.s32 %r11, %r11, %r12; st.global.b32 [%rd3], %r11;
	ret;
}
";
    let program = Program::compile(&Entry::read(text).unwrap()).unwrap();
    let mut buffer = vec![0_u32; 2 * 3 * 4 * 12];
    let address = buffer.as_mut_ptr() as u64;
    let parameters = [address, 0, 7_u64 << 32].map(u64::to_le_bytes).concat();
    let memory = Ranges::of([(address, 4 * buffer.len() as u64)].into_iter());
    let launch = |block| Launch { grid: [2, 3, 4], block, shared: 0, parameters: parameters.clone() };
    run(&program, &launch([2, 3, 2]), &memory).unwrap();
    assert_eq!(buffer, (7..2 * 3 * 4 * 12 + 7).collect::<Vec<_>>());
    // Every thread has written its number of 4 bytes, and every sector of 32 bytes counts once.
    assert_eq!(memory.accessed(), 2 * 3 * 4 * 12 * 4);
    assert!(
        run(&program, &launch([12, 1, 1]), &memory)
            .unwrap_err()
            .contains("[12, 1, 1] threads, but compiled for [2, 3, 2]")
    );
}
