//! Rejected programs, and effects of instructions.

use super::*;
use alloc::vec;
use proptest::prelude::*;

fn instruction(code: u16, k: u32) -> Instruction {
    Instruction { code, jt: 0, jf: 0, k }
}

fn run(code: &[(u16, u8, u8, u32)], bytes: &[u8]) -> u32 {
    let code = code.iter().map(|&(code, jt, jf, k)| Instruction { code, jt, jf, k });
    Program::new(code.collect()).expect("a program").run(bytes, 1000)
}

#[test]
fn what_could_do_harm_is_refused() {
    let end = instruction(RET | K, 1);
    let refused = |first: Instruction| Program::new(vec![first, end]).expect_err("an invalid one");
    assert_eq!(Program::new(vec![]), Err(Invalid::Length));
    assert_eq!(Program::new(vec![end; INSTRUCTIONS_MAX + 1]), Err(Invalid::Length));
    assert!(Program::new(vec![end; INSTRUCTIONS_MAX]).is_ok());
    assert_eq!(Program::new(vec![instruction(LD | IMM, 0)]), Err(Invalid::NoReturn));
    for k in [1, 2, u32::MAX] {
        assert_eq!(refused(instruction(JMP | JA, k)), Invalid::Jump(0), "{k}");
    }
    for (jt, jf) in [(1, 0), (0, 1), (255, 255)] {
        let branch = Instruction { code: JMP | JEQ, jt, jf, k: 0 };
        assert_eq!(refused(branch), Invalid::Jump(0));
    }
    for (code, k) in [
        (ALU | DIV, 0),
        (ALU | MOD, 0),
        (ALU | LSH, 32),
        (ALU | RSH, u32::MAX),
        (LD | MEM, 16),
        (LDX | MEM, u32::MAX),
        (ST, 16),
        (STX, 16),
        (LD | ABS | W, 0xffff_f000),
        (LD | IND | B, NEGATIVE),
        (LDX | MSH | B, NEGATIVE),
    ] {
        assert_eq!(refused(instruction(code, k)), Invalid::Operand(0), "{code:#x} {k}");
    }
    for code in [
        0x18,
        0xff,
        0x100,
        LDX | ABS,
        LDX | B | IMM,
        LD | MSH | B,
        LD | 0xc0,
        ALU | 0xb0,
        JMP | 0x50,
        RET | 0x08,
        RET | 0x18,
        MISC | 0x40,
        ST | 0x20,
        LD | H | IMM,
        0xffff,
    ] {
        assert_eq!(refused(instruction(code, 0)), Invalid::Unknown(0), "{code:#x}");
    }
}

/// Goal: each instruction does what the paper specifies, also at its limits.
#[test]
fn instructions_do_what_they_should() {
    let bytes = [0x45, 0x02, 0x03, 0x04, 0x05];
    let ret_a = (RET | A, 0, 0, 0);
    let load = |code, k| run(&[(code, 0, 0, k), ret_a], &bytes);
    assert_eq!(load(LD | W | ABS, 0), 0x4502_0304);
    assert_eq!(load(LD | W | ABS, 1), 0x0203_0405);
    assert_eq!(load(LD | W | ABS, 2), 0, "not completely within");
    assert_eq!((load(LD | H | ABS, 3), load(LD | H | ABS, 4)), (0x0405, 0));
    assert_eq!((load(LD | B | ABS, 4), load(LD | B | ABS, 5)), (0x05, 0));
    assert_eq!((load(LD | LEN, 0), load(LD | IMM, 7)), (1000, 7));
    let txa = (MISC | TXA, 0, 0, 0);
    let index = |code, k| run(&[(code, 0, 0, k), txa, ret_a], &bytes);
    assert_eq!((index(LDX | MSH | B, 0), index(LDX | MSH | B, 5)), (20, 0));
    assert_eq!((index(LDX | IMM, 9), index(LDX | LEN, 0)), (9, 1000));
    let indirect = |x, k| run(&[(LDX | IMM, 0, 0, x), (LD | B | IND, 0, 0, k), ret_a], &bytes);
    assert_eq!((indirect(1, 2), indirect(u32::MAX, 1), indirect(2, 3)), (4, 0, 0));

    let alu = |code, a, k| run(&[(LD | IMM, 0, 0, a), (ALU | code, 0, 0, k), ret_a], &bytes);
    let alu_x = |code, a, x| {
        let code = ALU | code | X;
        run(&[(LD | IMM, 0, 0, a), (LDX | IMM, 0, 0, x), (code, 0, 0, 0), ret_a], &bytes)
    };
    for (code, a, b, expected) in [
        (ADD, u32::MAX, 2, 1),
        (SUB, 1, 2, u32::MAX),
        (MUL, 1 << 31, 3, 1 << 31),
        (DIV, 7, 2, 3),
        (MOD, 7, 4, 3),
        (OR, 5, 2, 7),
        (AND, 7, 5, 5),
        (XOR, 7, 5, 2),
        (LSH, 1, 31, 1 << 31),
        (RSH, 1 << 31, 31, 1),
    ] {
        assert_eq!((alu(code, a, b), alu_x(code, a, b)), (expected, expected), "{code:#x}");
    }
    assert_eq!((alu_x(DIV, 7, 0), alu_x(MOD, 7, 0)), (0, 0));
    assert_eq!((alu_x(LSH, 7, 32), alu_x(RSH, 7, 99)), (0, 0));
    assert_eq!(alu(NEG, 1, 0), u32::MAX);

    let stored = [(LD | IMM, 0, 0, 5), (ST, 0, 0, 15), (LDX | MEM, 0, 0, 15), txa, ret_a];
    assert_eq!(run(&stored, &bytes), 5);
    let stored = [(LDX | IMM, 0, 0, 6), (STX, 0, 0, 0), (LD | MEM, 0, 0, 0), ret_a];
    assert_eq!(run(&stored, &bytes), 6);
    let tax = [(LD | IMM, 0, 0, 8), (MISC | TAX, 0, 0, 0), (LD | IMM, 0, 0, 1), txa, ret_a];
    assert_eq!(run(&tax, &bytes), 8);

    let branch = |code, a, k| {
        let (yes, no) = ((RET | K, 0, 0, 1), (RET | K, 0, 0, 2));
        run(&[(LD | IMM, 0, 0, a), (JMP | code, 0, 1, k), yes, no], &bytes)
    };
    assert_eq!((branch(JEQ, 3, 3), branch(JEQ, 3, 4)), (1, 2));
    assert_eq!((branch(JGT, 4, 3), branch(JGT, 3, 3)), (1, 2));
    assert_eq!((branch(JGE, 3, 3), branch(JGE, 2, 3)), (1, 2));
    assert_eq!((branch(JSET, 6, 4), branch(JSET, 6, 9)), (1, 2));
    let jump = [(JMP | JA, 0, 0, 1), (RET | K, 0, 0, 1), (RET | K, 0, 0, 2)];
    assert_eq!(run(&jump, &bytes), 2);
}

proptest! {
    /// Goal: every accepted program terminates and stays within the packet.
    #[test]
    fn any_program_that_is_taken_ends(
        code in proptest::collection::vec((any::<u16>(), 0..8_u8, 0..8_u8, 0..80_u32), 1..40),
        bytes in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut code: Vec<_> = code
            .into_iter()
            .map(|(code, jt, jf, k)| Instruction { code: code & 0xff, jt, jf, k })
            .filter(|first| first.check(0, INSTRUCTIONS_MAX).is_ok())
            .collect();
        code.extend([instruction(RET | A, 0); 90]);
        let program = Program::new(code).expect("checked one by one");
        program.run(&bytes, bytes.len() as u32);
    }
}
