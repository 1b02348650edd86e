//! Target: DHCP for IPv4, its messages and their domain names.

use towpath_gateway::services::wire::dhcpv4::{
    MESSAGE_LEN_ANY_CLIENT, Message, MessageType, option,
};
use towpath_gateway::services::wire::domain;

/// Parses a UDP payload.
pub fn run(data: &[u8]) {
    let Ok(message) = Message::parse(data) else { return };
    let written = message.emit(usize::MAX);
    assert_eq!(Message::parse(&written).as_ref(), Ok(&message));
    assert!(message.emit(MESSAGE_LEN_ANY_CLIENT).len() <= MESSAGE_LEN_ANY_CLIENT);
    let _ = MessageType::of(&message.options);
    for (_, value) in message.options.iter() {
        if let Some(names) = domain::parse_list(value) {
            let compressed = domain::emit_compressed_list(&names);
            assert_eq!(domain::parse_list(&compressed).as_ref(), Some(&names));
            assert!(compressed.len() <= domain::emit_list(&names).len());
        }
    }
    if let Some(value) = message.options.get(option::FQDN) {
        let _ = domain::parse_partial(value);
    }
}
