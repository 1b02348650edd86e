//! Packet filters for sniffers: programs, and a compiler for expressions.

pub use towpath_io::filter::{
    DEPTH_MAX, EXPRESSION_BYTES_MAX, FilterError, Problem, TERMS_MAX, VLAN_TAGS_MAX,
};
pub use towpath_net::bpf::{INSTRUCTIONS_MAX, Instruction, Invalid, Program, SCRATCH_WORDS};

/// Compiles an expression such as `tcp port 80 and host 10.0.2.16`: see
/// [the language](FilterError).
///
/// # Errors
/// [`FilterError`]: the problem and its position.
pub fn compile(expression: &str) -> Result<Program, FilterError> {
    let instruction = |code, jt, jf, k| Instruction { code, jt, jf, k };
    let code = towpath_io::filter::compile(expression, instruction)?;
    Ok(Program::new(code).expect("compiled programs are valid"))
}
