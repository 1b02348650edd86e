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
pub struct Program {
    instructions: Box<[Instruction]>,
    operations: Box<[Operation]>,
}

/// Width of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Word,
    Half,
    Byte,
}

/// The second operand of arithmetic and comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operand {
    K(u32),
    X,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arithmetic {
    Add,
    Sub,
    Mul,
    Div,
    Or,
    And,
    ShiftLeft,
    ShiftRight,
    Mod,
    Xor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    Greater,
    GreaterOrEqual,
    /// Any of the bits is set.
    Set,
}

/// A decoded instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    /// A ← packet at k.
    LoadAbsolute(Size, u32),
    /// A ← packet at X + k.
    LoadIndirect(Size, u32),
    /// A ← length of the packet.
    LoadLength,
    LoadImmediate(u32),
    LoadScratch(usize),
    /// X ← 4 × the low four bits of the packet's byte at k: the length of an IPv4 header.
    IndexHeaderLength(u32),
    IndexLength,
    IndexImmediate(u32),
    IndexScratch(usize),
    Store(usize),
    StoreIndex(usize),
    Compute(Arithmetic, Operand),
    Negate,
    Jump(u32),
    Branch {
        comparison: Comparison,
        with: Operand,
        jt: u8,
        jf: u8,
    },
    Return(u32),
    ReturnAccumulator,
    /// X ← A.
    ToIndex,
    /// A ← X.
    FromIndex,
}

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
        let decoded = instructions.iter().enumerate();
        let decoded = decoded.map(|(at, instruction)| instruction.decode(at, count));
        let operations = decoded.collect::<Result<Box<[_]>, _>>()?;
        match operations.last() {
            Some(Operation::Return(_) | Operation::ReturnAccumulator) => {
                Ok(Self { instructions: instructions.into(), operations })
            }
            _ => Err(Invalid::NoReturn),
        }
    }

    /// Runs the program on the first bytes of a packet of `len` bytes. Bytes beyond `bytes` count
    /// as absent.
    pub fn run(&self, bytes: &[u8], len: u32) -> u32 {
        let mut machine = Machine { a: 0, x: 0, scratch: [0; SCRATCH_WORDS], bytes, len };
        let mut at = 0;
        // Jumps go forward only, so `at` always grows.
        while let Some(&operation) = self.operations.get(at) {
            match machine.step(operation) {
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
        &self.instructions
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
    /// Executes one instruction; `None` ends the program.
    fn step(&mut self, operation: Operation) -> Option<Step> {
        match operation {
            Operation::LoadAbsolute(size, k) => self.a = self.load(size, k)?,
            Operation::LoadIndirect(size, k) => {
                self.a = self.load(size, self.x.checked_add(k)?)?;
            }
            Operation::LoadLength => self.a = self.len,
            Operation::LoadImmediate(k) => self.a = k,
            Operation::LoadScratch(word) => self.a = self.scratch[word],
            Operation::IndexHeaderLength(k) => self.x = (self.load(Size::Byte, k)? & 0xf) * 4,
            Operation::IndexLength => self.x = self.len,
            Operation::IndexImmediate(k) => self.x = k,
            Operation::IndexScratch(word) => self.x = self.scratch[word],
            Operation::Store(word) => self.scratch[word] = self.a,
            Operation::StoreIndex(word) => self.scratch[word] = self.x,
            Operation::Compute(arithmetic, with) => {
                self.a = arithmetic.of(self.a, self.value(with))?;
            }
            Operation::Negate => self.a = self.a.wrapping_neg(),
            Operation::Jump(count) => return Some(Step::Skip(count)),
            Operation::Branch { comparison, with, jt, jf } => {
                let holds = comparison.holds(self.a, self.value(with));
                return Some(Step::Skip(u32::from(if holds { jt } else { jf })));
            }
            Operation::Return(k) => return Some(Step::Return(k)),
            Operation::ReturnAccumulator => return Some(Step::Return(self.a)),
            Operation::ToIndex => self.x = self.a,
            Operation::FromIndex => self.a = self.x,
        }
        Some(Step::Skip(0))
    }

    fn value(&self, operand: Operand) -> u32 {
        match operand {
            Operand::K(k) => k,
            Operand::X => self.x,
        }
    }

    fn load(&self, size: Size, at: u32) -> Option<u32> {
        let bytes = self.bytes.get(at as usize..)?;
        Some(match size {
            Size::Word => u32::from_be_bytes(*bytes.first_chunk()?),
            Size::Half => u16::from_be_bytes(*bytes.first_chunk()?).into(),
            Size::Byte => u32::from(*bytes.first()?),
        })
    }
}

impl Arithmetic {
    fn of(self, a: u32, b: u32) -> Option<u32> {
        Some(match self {
            Self::Add => a.wrapping_add(b),
            Self::Sub => a.wrapping_sub(b),
            Self::Mul => a.wrapping_mul(b),
            Self::Div => a.checked_div(b)?,
            Self::Mod => a.checked_rem(b)?,
            Self::Or => a | b,
            Self::And => a & b,
            Self::Xor => a ^ b,
            Self::ShiftLeft => a.checked_shl(b).unwrap_or(0),
            Self::ShiftRight => a.checked_shr(b).unwrap_or(0),
        })
    }
}

impl Comparison {
    fn holds(self, a: u32, b: u32) -> bool {
        match self {
            Self::Equal => a == b,
            Self::Greater => a > b,
            Self::GreaterOrEqual => a >= b,
            Self::Set => a & b != 0,
        }
    }
}

impl Instruction {
    /// Decodes the instruction at index `at` of `count`.
    fn decode(&self, at: usize, count: usize) -> Result<Operation, Invalid> {
        let Self { code, jt, jf, k } = *self;
        let class = code & CLASS;
        if code & !(CLASS | SIZE | MODE) != 0 {
            return Err(Invalid::Unknown(at));
        }
        let operation = match class {
            LD | LDX => self.decode_load(class == LDX),
            ST | STX if code & !CLASS == 0 => match scratch(k) {
                Some(word) if class == ST => Some(Operation::Store(word)),
                word => word.map(Operation::StoreIndex),
            }
            .ok_or(Invalid::Operand(at))
            .map(Some)?,
            ALU => self.decode_arithmetic(),
            JMP => self.decode_jump(),
            RET if code == RET | K => Some(Operation::Return(k)),
            RET if code == RET | A => Some(Operation::ReturnAccumulator),
            MISC if code == MISC | TAX => Some(Operation::ToIndex),
            MISC if code == MISC | TXA => Some(Operation::FromIndex),
            _ => None,
        };
        let operation = operation.ok_or(Invalid::Unknown(at))?;
        let after = count - at - 1;
        let fits = |skipped: u32| (skipped as usize) < after;
        match operation {
            Operation::Jump(skipped) if !fits(skipped) => Err(Invalid::Jump(at)),
            Operation::Branch { .. } if !fits(jt.into()) || !fits(jf.into()) => {
                Err(Invalid::Jump(at))
            }
            Operation::Compute(Arithmetic::Div | Arithmetic::Mod, Operand::K(0))
            | Operation::LoadScratch(SCRATCH_WORDS..)
            | Operation::IndexScratch(SCRATCH_WORDS..) => Err(Invalid::Operand(at)),
            Operation::Compute(
                Arithmetic::ShiftLeft | Arithmetic::ShiftRight,
                Operand::K(32..),
            )
            | Operation::LoadAbsolute(_, NEGATIVE..)
            | Operation::LoadIndirect(_, NEGATIVE..)
            | Operation::IndexHeaderLength(NEGATIVE..) => Err(Invalid::Operand(at)),
            operation => Ok(operation),
        }
    }

    fn decode_load(&self, is_index: bool) -> Option<Operation> {
        let size = match self.code & SIZE {
            W => Size::Word,
            H => Size::Half,
            B => Size::Byte,
            _ => return None,
        };
        let k = self.k;
        // A number out of range is rejected later.
        let word = usize::try_from(k).unwrap_or(usize::MAX);
        Some(match (self.code & MODE, size, is_index) {
            (ABS, size, false) => Operation::LoadAbsolute(size, k),
            (IND, size, false) => Operation::LoadIndirect(size, k),
            (LEN, Size::Word, false) => Operation::LoadLength,
            (LEN, Size::Word, true) => Operation::IndexLength,
            (IMM, Size::Word, false) => Operation::LoadImmediate(k),
            (IMM, Size::Word, true) => Operation::IndexImmediate(k),
            (MEM, Size::Word, false) => Operation::LoadScratch(word),
            (MEM, Size::Word, true) => Operation::IndexScratch(word),
            (MSH, Size::Byte, true) => Operation::IndexHeaderLength(k),
            _ => return None,
        })
    }

    fn decode_arithmetic(&self) -> Option<Operation> {
        if self.code == ALU | NEG {
            return Some(Operation::Negate);
        }
        let arithmetic = match self.code & OPERATION {
            ADD => Arithmetic::Add,
            SUB => Arithmetic::Sub,
            MUL => Arithmetic::Mul,
            DIV => Arithmetic::Div,
            OR => Arithmetic::Or,
            AND => Arithmetic::And,
            LSH => Arithmetic::ShiftLeft,
            RSH => Arithmetic::ShiftRight,
            MOD => Arithmetic::Mod,
            XOR => Arithmetic::Xor,
            _ => return None,
        };
        Some(Operation::Compute(arithmetic, self.operand()))
    }

    fn decode_jump(&self) -> Option<Operation> {
        if self.code == JMP | JA {
            return Some(Operation::Jump(self.k));
        }
        let comparison = match self.code & OPERATION {
            JEQ => Comparison::Equal,
            JGT => Comparison::Greater,
            JGE => Comparison::GreaterOrEqual,
            JSET => Comparison::Set,
            _ => return None,
        };
        Some(Operation::Branch { comparison, with: self.operand(), jt: self.jt, jf: self.jf })
    }

    fn operand(&self) -> Operand {
        if self.code & X == 0 { Operand::K(self.k) } else { Operand::X }
    }
}

fn scratch(k: u32) -> Option<usize> {
    usize::try_from(k).ok().filter(|&word| word < SCRATCH_WORDS)
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
