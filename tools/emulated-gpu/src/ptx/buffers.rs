//! Finds the buffers that a kernel writes, by following pointers through its PTX.

use std::collections::{BTreeMap, BTreeSet};

use super::{Entry, Instruction};

/// Returns, for each kernel parameter, whether the kernel writes to the parameter's buffer; `None` if the parameter is
/// not a buffer.
pub fn buffers(entry: &Entry) -> Vec<Option<bool>> {
    let instructions: Vec<_> = entry.statements().filter_map(|statement| Instruction::read(statement.text)).collect();
    let mut points_to = BTreeMap::<&str, BTreeSet<usize>>::new();
    let mut written = BTreeSet::new();
    // In a loop of the kernel, a register may be set after its use, so all instructions are followed again until
    // nothing changes.
    loop {
        let before: usize = points_to.values().map(BTreeSet::len).sum();
        for instruction in &instructions {
            follow(instruction, &mut points_to, &mut written);
        }
        if points_to.values().map(BTreeSet::len).sum::<usize>() == before {
            break;
        }
    }
    let parameters = entry.parameters.iter();
    parameters
        .enumerate()
        .map(|(index, parameter)| parameter.contains(".ptr").then(|| written.contains(&index)))
        .collect()
}

/// Follows pointers to a kernel's buffers through one PTX instruction. The registers that the instruction writes then
/// point to the same buffers as its inputs. A buffer counts as written if the instruction stores to an address in it.
/// Values loaded from memory are assumed not to be pointers.
fn follow<'a>(
    instruction: &Instruction<'a>,
    points_to: &mut BTreeMap<&'a str, BTreeSet<usize>>,
    written: &mut BTreeSet<usize>,
) {
    let targets = |operand: &str, points_to: &BTreeMap<&str, BTreeSet<usize>>| -> BTreeSet<usize> {
        registers(operand).flat_map(|register| points_to.get(register).into_iter().flatten().copied()).collect()
    };
    let Some((&first, others)) = instruction.operands.split_first() else { return };
    if instruction.name.starts_with("ld.param") {
        let parameter = others.first().and_then(|operand| operand.trim_matches(['[', ']']).rsplit_once("_param_"));
        if let Some(index) = parameter.and_then(|(_, index)| index.parse().ok()) {
            points_to.entry(first).or_default().insert(index);
        }
    } else if ["st", "red.", "wmma.store"].iter().any(|name| instruction.name.starts_with(name)) {
        written.extend(targets(first, points_to));
    } else if instruction.name.starts_with("atom.") {
        written.extend(others.first().map(|address| targets(address, points_to)).unwrap_or_default());
    } else if !instruction.name.starts_with("ld") && !instruction.name.starts_with("cp.") {
        let sources: BTreeSet<usize> = others.iter().flat_map(|operand| targets(operand, points_to)).collect();
        for register in registers(first) {
            points_to.entry(register).or_default().extend(&sources);
        }
    }
}

fn registers(operand: &str) -> impl Iterator<Item = &str> {
    operand.split(['{', '}', '[', ']', ',', '+', ' ', '|']).filter(|part| part.starts_with('%'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: &str = "
.visible .entry add_f32(
	.param .u64 .ptr .global .align 1 add_f32_param_0,
	.param .u64 .ptr .global .align 1 add_f32_param_1,
	.param .align 8 .b8 add_f32_param_2[32],
	.param .u64 .ptr .global .align 1 add_f32_param_3
)
.reqntid 32, 1, 1
{
	.reg .b32 	%r<17>;
	ld.param.b64 	%rd1, [add_f32_param_0];
	ld.param.b64 	%rd2, [add_f32_param_1];
	ld.param.b64 	%rd9, [add_f32_param_3];
	ld.param.b32 	%r11, [add_f32_param_2+8];
	setp.ge.u32 	%p1, %r1, %r11;
	@%p1 bra 	$L__BB0_2;
	mul.wide.u32 	%rd3, %r1, 4;
	add.s64 	%rd4, %rd1, %rd3;
	ld.global.v2.b32 	{%r2, %r3}, [%rd4+8];
	add.s64 	%rd5, %rd2, %rd3;
	@%p2 st.global.v2.b32 	[%rd5], {%r2, %r3};
	add.s64 	%rd10, %rd9, %rd3;
	atom.global.add.f32 	%r4, [%rd10], %r2;
$L__BB0_2:
	ret;
}
";

    #[test]
    fn written_buffers_are_found() {
        let entry = Entry::read(KERNEL).unwrap();
        assert_eq!(buffers(&entry), [Some(false), Some(true), None, Some(true)]);
        assert_eq!(entry.name, "add_f32");
        assert!(Entry::read("// nothing").is_none());
    }
}
