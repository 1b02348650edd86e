//! Target: bytes from the kernel: netlink messages, socket addresses, control messages, echo
//! replies, frames of a device under test.

use towpath_io::fuzz;

/// Reads a byte that selects a parser, and the bytes that the parser takes.
pub fn run(data: &[u8]) {
    let Some((&choice, rest)) = data.split_first() else { return };
    match (choice & 7, rest) {
        (0, [sequence, reply @ ..]) => fuzz::netlink_reply(reply, u32::from(*sequence)),
        (1, address) => fuzz::socket_address(address),
        (2, [low, high, control @ ..]) => {
            fuzz::socket_control(control, usize::from(u16::from_le_bytes([*low, *high])));
        }
        (3, frame) => fuzz::self_test_frame(frame, choice & 0x80 == 0),
        (4, reply) => fuzz::echo_reply(reply),
        (5, [sequence, messages @ ..]) => fuzz::netlink_messages(messages, u32::from(*sequence)),
        _ => {}
    }
}
