//! Packet filters: programs for the classic Berkeley packet filter.
//!
//! [`Program::new`] accepts instructions from any source and rejects harmful ones. An accepted
//! program always terminates, reads only the bytes it is given and never panics.
//!
//! # The machine
//!
//! An accumulator A, an index X and [`SCRATCH_WORDS`] words of scratch memory, initially zero.
//! Jumps go forward only, so a program executes each instruction at most once. A load that is not
//! completely within the packet, or a division by zero, ends the program with result 0. Arithmetic
//! wraps; a shift by 32 bits or more yields 0. The result is the number of bytes of the packet to
//! accept; 0 means none.
//!
//! Limit: [`INSTRUCTIONS_MAX`]. This module keeps no state; any thread may call it. Only checking
//! allocates.
//!
//! Follows McCanne and Jacobson, "The BSD Packet Filter" (1993), with the checks of Linux. Linux's
//! extension of loads at negative offsets is rejected.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

/// Maximum number of instructions of a program, as in Linux (`BPF_MAXINSNS`).
pub const INSTRUCTIONS_MAX: usize = 4096;
/// Words of scratch memory (`BPF_MEMWORDS`).
pub const SCRATCH_WORDS: usize = 16;

/// An instruction in its external form: the layout of Linux's `sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    /// Operation code: class, size, mode, operation and source.
    pub code: u16,
    /// Instructions to skip if the condition holds.
    pub jt: u8,
    /// Instructions to skip if the condition does not hold.
    pub jf: u8,
    /// The operand.
    pub k: u32,
}

/// Error of [`Program::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// No instructions, or more than [`INSTRUCTIONS_MAX`].
    Length,
    /// The instruction at this index is unknown.
    Unknown(usize),
    /// The instruction at this index jumps beyond the end.
    Jump(usize),
    /// The instruction at this index has an invalid operand: a division by zero, a shift by 32 or
    /// more, a scratch word out of range, or a load at a negative offset.
    Operand(usize),
    /// The last instruction does not return.
    NoReturn,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length => write!(f, "a program has 1 to {INSTRUCTIONS_MAX} instructions"),
            Self::Unknown(at) => write!(f, "instruction {at} is unknown"),
            Self::Jump(at) => write!(f, "instruction {at} jumps past the end"),
            Self::Operand(at) => write!(f, "instruction {at} has an operand out of range"),
            Self::NoReturn => f.write_str("the last instruction does not return"),
        }
    }
}

impl core::error::Error for Invalid {}

/// A program that has been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program(Box<[Instruction]>);

impl Program {
    /// Checks instructions.
    ///
    /// # Errors
    /// [`Invalid`]: the first error.
    pub fn new(instructions: Vec<Instruction>) -> Result<Self, Invalid> {
        let count = instructions.len();
        if count == 0 || count > INSTRUCTIONS_MAX {
            return Err(Invalid::Length);
        }
        for (at, instruction) in instructions.iter().enumerate() {
            instruction.check(at, count - at - 1)?;
        }
        let returns = instructions.last().is_some_and(|last| last.code & CLASS == RET);
        if returns { Ok(Self(instructions.into())) } else { Err(Invalid::NoReturn) }
    }

    /// Runs the program on the first bytes of a packet of `len` bytes. Bytes beyond `bytes` count
    /// as absent.
    pub fn run(&self, bytes: &[u8], len: u32) -> u32 {
        let mut machine = Machine { a: 0, x: 0, scratch: [0; SCRATCH_WORDS], bytes, len };
        let mut at = 0;
        // Jumps go forward only, so `at` always grows.
        while let Some(instruction) = self.0.get(at) {
            match machine.step(instruction) {
                Some(Step::Skip(count)) => at += 1 + count as usize,
                Some(Step::Return(result)) => return result,
                None => return 0,
            }
        }
        0
    }

    /// True if the program accepts the packet.
    pub fn accepts(&self, bytes: &[u8], len: u32) -> bool {
        self.run(bytes, len) != 0
    }

    /// The instructions in the form that a kernel takes.
    pub fn instructions(&self) -> &[Instruction] {
        &self.0
    }
}

/// Result of one instruction.
enum Step {
    /// Continue after skipping this many instructions.
    Skip(u32),
    Return(u32),
}

struct Machine<'a> {
    a: u32,
    x: u32,
    scratch: [u32; SCRATCH_WORDS],
    bytes: &'a [u8],
    len: u32,
}

impl Machine<'_> {
    /// Executes one checked instruction; `None` ends the program.
    fn step(&mut self, instruction: &Instruction) -> Option<Step> {
        let Instruction { code, jt, jf, k } = *instruction;
        let operand = if code & X == 0 { k } else { self.x };
        match code & CLASS {
            LD => self.a = self.value(code, k)?,
            // The length of an IPv4 header: 4 times the low four bits of the byte at k.
            LDX if code & MODE == MSH => self.x = (self.load(B, k)? & 0xf) * 4,
            LDX => self.x = self.value(code, k)?,
            ST => self.scratch[k as usize] = self.a,
            STX => self.scratch[k as usize] = self.x,
            ALU => self.a = compute(code & OPERATION, self.a, operand)?,
            JMP => {
                let holds = match code & OPERATION {
                    JA => return Some(Step::Skip(k)),
                    JEQ => self.a == operand,
                    JGT => self.a > operand,
                    JGE => self.a >= operand,
                    _ => self.a & operand != 0,
                };
                return Some(Step::Skip(u32::from(if holds { jt } else { jf })));
            }
            RET => return Some(Step::Return(if code == RET | A { self.a } else { k })),
            _ if code == MISC | TAX => self.x = self.a,
            _ => self.a = self.x,
        }
        Some(Step::Skip(0))
    }

    /// The value of a load.
    fn value(&self, code: u16, k: u32) -> Option<u32> {
        Some(match code & MODE {
            ABS => self.load(code & SIZE, k)?,
            IND => self.load(code & SIZE, self.x.checked_add(k)?)?,
            MEM => self.scratch[k as usize],
            LEN => self.len,
            _ => k,
        })
    }

    fn load(&self, size: u16, at: u32) -> Option<u32> {
        let bytes = self.bytes.get(at as usize..)?;
        Some(match size {
            W => u32::from_be_bytes(*bytes.first_chunk()?),
            H => u16::from_be_bytes(*bytes.first_chunk()?).into(),
            _ => u32::from(*bytes.first()?),
        })
    }
}

fn compute(operation: u16, a: u32, b: u32) -> Option<u32> {
    Some(match operation {
        ADD => a.wrapping_add(b),
        SUB => a.wrapping_sub(b),
        MUL => a.wrapping_mul(b),
        DIV => a.checked_div(b)?,
        MOD => a.checked_rem(b)?,
        OR => a | b,
        AND => a & b,
        XOR => a ^ b,
        LSH => a.checked_shl(b).unwrap_or(0),
        RSH => a.checked_shr(b).unwrap_or(0),
        _ => a.wrapping_neg(),
    })
}

impl Instruction {
    /// Checks the instruction at index `at`, which `after` others follow.
    fn check(&self, at: usize, after: usize) -> Result<(), Invalid> {
        let Self { code, jt, jf, k } = *self;
        if !is_known(code) {
            return Err(Invalid::Unknown(at));
        }
        let fits = |skipped: u32| (skipped as usize) < after;
        let jumps = match code & CLASS {
            JMP if code == JMP | JA => fits(k),
            JMP => fits(jt.into()) && fits(jf.into()),
            _ => true,
        };
        let is_allowed = match (code & CLASS, code & MODE) {
            (LD, ABS | IND) | (LDX, MSH) => k < NEGATIVE,
            (LD | LDX, MEM) | (ST | STX, _) => (k as usize) < SCRATCH_WORDS,
            (ALU, _) if code & X == 0 => match code & OPERATION {
                DIV | MOD => k != 0,
                LSH | RSH => k < u32::BITS,
                _ => true,
            },
            _ => true,
        };
        match (jumps, is_allowed) {
            (false, _) => Err(Invalid::Jump(at)),
            (_, false) => Err(Invalid::Operand(at)),
            _ => Ok(()),
        }
    }
}

/// True for the code of an instruction.
fn is_known(code: u16) -> bool {
    let (size, mode, operation) = (code & SIZE, code & MODE, code & OPERATION);
    let is_word = size == W && matches!(mode, IMM | MEM | LEN);
    code <= CLASS | SIZE | MODE
        && match code & CLASS {
            LD => is_word || matches!(size, W | H | B) && matches!(mode, ABS | IND),
            LDX => is_word || size == B && mode == MSH,
            ALU => operation <= XOR && code != ALU | NEG | X,
            JMP => code == JMP | JA || matches!(operation, JEQ | JGT | JGE | JSET),
            _ => {
                matches!(code, ST | STX)
                    || [RET | K, RET | A, MISC | TAX, MISC | TXA].contains(&code)
            }
        }
}

/// First negative offset: Linux has its own meanings for those.
const NEGATIVE: u32 = 1 << 31;

// Fields of an instruction's code.
const CLASS: u16 = 0x07;
const SIZE: u16 = 0x18;
const MODE: u16 = 0xe0;
const OPERATION: u16 = 0xf0;

const LD: u16 = 0;
const LDX: u16 = 1;
const ST: u16 = 2;
const STX: u16 = 3;
const ALU: u16 = 4;
const JMP: u16 = 5;
const RET: u16 = 6;
const MISC: u16 = 7;

const W: u16 = 0x00;
const H: u16 = 0x08;
const B: u16 = 0x10;

const IMM: u16 = 0x00;
const ABS: u16 = 0x20;
const IND: u16 = 0x40;
const MEM: u16 = 0x60;
const LEN: u16 = 0x80;
const MSH: u16 = 0xa0;

const ADD: u16 = 0x00;
const SUB: u16 = 0x10;
const MUL: u16 = 0x20;
const DIV: u16 = 0x30;
const OR: u16 = 0x40;
const AND: u16 = 0x50;
const LSH: u16 = 0x60;
const RSH: u16 = 0x70;
const NEG: u16 = 0x80;
const MOD: u16 = 0x90;
const XOR: u16 = 0xa0;

const JA: u16 = 0x00;
const JEQ: u16 = 0x10;
const JGT: u16 = 0x20;
const JGE: u16 = 0x30;
const JSET: u16 = 0x40;

const K: u16 = 0x00;
const X: u16 = 0x08;
/// Source operand of a return.
const A: u16 = 0x10;

const TAX: u16 = 0x00;
const TXA: u16 = 0x80;

#[cfg(test)]
mod tests;
