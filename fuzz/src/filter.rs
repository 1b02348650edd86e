//! Target: filter expressions, and arbitrary filter programs.

use crate::input::Input;
use towpath_gateway::capture::compile_filter;
use towpath_net::bpf::{INSTRUCTIONS_MAX, Instruction, Program};

/// Reads the bytes of an expression or of instructions, then those of a packet.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (kind, len) = (input.u8(), input.u32());
    let source = input.counted();
    let program = if kind % 2 == 0 {
        let Ok(text) = str::from_utf8(source) else { return };
        match compile_filter(text) {
            Ok(program) => program,
            Err(error) => return assert!(error.at <= text.len(), "{error}"),
        }
    } else {
        let instruction = |bytes: &[u8; 8]| {
            let mut input = Input::new(bytes);
            let (code, jt, jf, k) = (input.u16(), input.u8(), input.u8(), input.u32());
            Instruction { code, jt, jf, k }
        };
        let code: Vec<_> = source.as_chunks().0.iter().map(instruction).collect();
        let Ok(program) = Program::new(code) else { return };
        program
    };
    assert!(program.instructions().len() <= INSTRUCTIONS_MAX);
    let packet = input.bytes(usize::MAX);
    let result = program.run(packet, len);
    assert_eq!(program.run(packet, len), result);
    let again = Program::new(program.instructions().to_vec());
    assert_eq!(again.as_ref(), Ok(&program));
}
