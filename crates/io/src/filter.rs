//! Filter expressions for captures, compiled to programs for the classic Berkeley packet filter.
//!
//! [`compile`] makes a program from an expression such as `tcp port 80 and host 10.0.2.16`. The
//! language is the part of pcap-filter(7) that [`FilterError`] describes. This module keeps no
//! state; any thread may call it.
//!
//! # Code generation
//!
//! Instructions are generated from the last to the first, so that the target of a jump is known
//! when the jump is generated: a `Label` is the number of instructions from its target to the
//! end. A conditional jump reaches 255 instructions; farther targets are reached through an
//! unconditional jump in between. There is no optimisation: each test loads its operand.

mod expression;

pub use expression::{
    DEPTH_MAX, EXPRESSION_BYTES_MAX, FilterError, Problem, TERMS_MAX, VLAN_TAGS_MAX,
};

use expression::{Load, Node, Test};

/// Maximum number of instructions of a program, as in Linux (`BPF_MAXINSNS`).
pub const INSTRUCTIONS_MAX: usize = libc::BPF_MAXINSNS as usize;
/// Result of a program for an accepted packet: all of it.
const ALL: u32 = u32::MAX;
/// Maximum distance of a conditional jump, less the jump that its other target may need.
const NEAR: usize = u8::MAX as usize - 2;

/// Compiles an expression: see [the language](FilterError). `instruction` makes an instruction from
/// its code, the numbers of instructions to skip if its condition holds and if it does not, and its
/// operand.
///
/// # Errors
/// [`FilterError`]: the problem and its position.
pub fn compile<I>(
    text: &str,
    instruction: impl Fn(u16, u8, u8, u32) -> I,
) -> Result<Vec<I>, FilterError> {
    let node = expression::parse(text)?;
    let too_large = FilterError { at: 0, problem: Problem::TooLarge };
    let mut code = Code { reversed: Vec::new() };
    let refuse = code.push(RET | K, 0);
    let accept = code.push(RET | K, ALL);
    if let Some(node) = &node {
        code.node(node, accept, refuse).ok_or(too_large)?;
    }
    if code.reversed.len() > INSTRUCTIONS_MAX {
        return Err(too_large);
    }
    let code = code.reversed.into_iter().rev();
    Ok(code.map(|Instruction { code, jt, jf, k }| instruction(code, jt, jf, k)).collect())
}

/// A position in the program, counted from the end.
#[derive(Clone, Copy)]
struct Label(usize);

/// An instruction of Linux's `sock_filter`.
struct Instruction {
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
}

struct Code {
    reversed: Vec<Instruction>,
}

impl Code {
    fn push(&mut self, code: u16, k: u32) -> Label {
        self.reversed.push(Instruction { code, jt: 0, jf: 0, k });
        Label(self.reversed.len())
    }

    /// Generates code that continues at `yes` if the node holds, else at `no`. `None` if it is too
    /// long.
    fn node(&mut self, node: &Node, yes: Label, no: Label) -> Option<Label> {
        if self.reversed.len() > INSTRUCTIONS_MAX {
            return None;
        }
        match node {
            Node::Test(test) => Some(self.test(test, yes, no)),
            Node::Not(node) => self.node(node, no, yes),
            Node::All(nodes) => {
                let mut next = yes;
                for node in nodes.iter().rev() {
                    next = self.node(node, next, no)?;
                }
                Some(next)
            }
            Node::Any(nodes) => {
                let mut next = no;
                for node in nodes.iter().rev() {
                    next = self.node(node, yes, next)?;
                }
                Some(next)
            }
        }
    }

    fn test(&mut self, test: &Test, yes: Label, no: Label) -> Label {
        let (code, k, mask) = match *test {
            Test::Equal { mask, value, .. } => (JEQ, value, mask),
            Test::AnyBit { bits, .. } => (JSET, bits, u32::MAX),
            Test::Greater { than, .. } => (JGT, than, u32::MAX),
        };
        let (yes, no) = (self.near(yes), self.near(no));
        let here = self.reversed.len();
        let skipped = |label: Label| u8::try_from(here - label.0).expect("made near");
        let (jt, jf) = (skipped(yes), skipped(no));
        self.reversed.push(Instruction { code: JMP | code | K, jt, jf, k });
        if mask != u32::MAX {
            self.push(ALU | AND | K, mask);
        }
        match test.load() {
            Load::Length => self.push(LD | W | LEN, 0),
            Load::Byte(at) => self.push(LD | B | ABS, at),
            Load::Half(at) => self.push(LD | H | ABS, at),
            Load::Word(at) => self.push(LD | W | ABS, at),
            Load::BehindIpv4 { network, at } => {
                self.push(LD | H | IND, network + at);
                self.push(LDX | B | MSH, network)
            }
        }
    }

    /// Returns a label within the reach of a conditional jump that leads to `label`.
    fn near(&mut self, label: Label) -> Label {
        let distance = self.reversed.len() - label.0;
        if distance < NEAR { label } else { self.push(JMP | JA, distance as u32) }
    }
}

const LD: u16 = libc::BPF_LD as u16;
const LDX: u16 = libc::BPF_LDX as u16;
const ALU: u16 = libc::BPF_ALU as u16;
const JMP: u16 = libc::BPF_JMP as u16;
const RET: u16 = libc::BPF_RET as u16;
const W: u16 = libc::BPF_W as u16;
const H: u16 = libc::BPF_H as u16;
const B: u16 = libc::BPF_B as u16;
const ABS: u16 = libc::BPF_ABS as u16;
const IND: u16 = libc::BPF_IND as u16;
const LEN: u16 = libc::BPF_LEN as u16;
const MSH: u16 = libc::BPF_MSH as u16;
const AND: u16 = libc::BPF_AND as u16;
const JA: u16 = libc::BPF_JA as u16;
const JEQ: u16 = libc::BPF_JEQ as u16;
const JGT: u16 = libc::BPF_JGT as u16;
const JSET: u16 = libc::BPF_JSET as u16;
const K: u16 = libc::BPF_K as u16;

#[cfg(test)]
mod tests;
