//! Code generation: from the tests of an expression to instructions.
//!
//! Instructions are generated from the last to the first, so that the target of a jump is known
//! when the jump is generated: a [`Label`] is the number of instructions from its target to the
//! end. A conditional jump reaches 255 instructions; farther targets are reached through an
//! unconditional jump in between. There is no optimisation: each test loads its operand.

use alloc::vec::Vec;

use super::expression::{self, FilterError, Load, Node, Problem, Test};
use super::{
    ABS, ALU, AND, B, H, IND, INSTRUCTIONS_MAX, Instruction, JA, JEQ, JGT, JMP, JSET, K, LD, LDX,
    LEN, MSH, Program, RET, W,
};

/// Result of a program for an accepted packet: all of it.
const ALL: u32 = u32::MAX;
/// Maximum distance of a conditional jump, less the jump that its other target may need.
const NEAR: usize = u8::MAX as usize - 2;

/// Compiles an expression: see [the language](super::FilterError).
///
/// # Errors
/// [`FilterError`]: the problem and its position.
pub fn compile(text: &str) -> Result<Program, FilterError> {
    let node = expression::parse(text)?;
    let too_large = FilterError { at: 0, problem: Problem::TooLarge };
    let mut code = Code { reversed: Vec::new() };
    let refuse = code.push(RET | K, 0);
    let accept = code.push(RET | K, ALL);
    if let Some(node) = &node {
        code.node(node, accept, refuse).ok_or(too_large)?;
    }
    code.reversed.reverse();
    Program::new(code.reversed).map_err(|_| too_large)
}

/// A position in the program, counted from the end.
#[derive(Clone, Copy)]
struct Label(usize);

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
