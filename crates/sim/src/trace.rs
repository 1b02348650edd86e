//! One line of text for each frame, for debugging a seed: `TOWPATH_TRACE=1` prints them.

use std::fmt::Write;
use towpath_net::wire::tcp;

/// True if lines should be printed.
pub fn enabled() -> bool {
    std::env::var_os("TOWPATH_TRACE").is_some()
}

/// One line of text for a frame.
pub fn line(bytes: &[u8]) -> String {
    let mut text = format!("{} bytes", bytes.len());
    let (protocol, at) = match bytes.get(12..14) {
        Some([0x08, 0x00]) => (bytes[23], 34),
        Some([0x86, 0xdd]) => (bytes[20], 54),
        Some([0x08, 0x06]) => return text + " ARP",
        _ => return text,
    };
    if protocol != 6 {
        let _ = write!(text, " protocol {protocol}");
        return text;
    }
    let Ok((header, options)) = tcp::Header::parse(&bytes[at..]) else { return text };
    let len = bytes.len() - at - usize::from(header.header_len);
    let _ = write!(
        text,
        " {} > {} {} seq {} len {len} ack {} win {}",
        header.source_port,
        header.destination_port,
        header.flags,
        header.sequence,
        header.acknowledgment,
        header.window,
    );
    for (from, to) in options.sack_blocks() {
        let _ = write!(text, " sack {from}-{to}");
    }
    text
}
