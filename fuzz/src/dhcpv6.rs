//! Target: DHCP for IPv6, its messages and their nested options.

use towpath_gateway::services::wire::dhcpv6::{IdentityAssociation, Message, Status, option};
use towpath_gateway::services::wire::domain;

/// Parses a UDP payload.
pub fn run(data: &[u8]) {
    let Ok(message) = Message::parse(data) else { return };
    assert_eq!(message.emit(usize::MAX), data);
    let _ = (Status::of(&message.options), message.options.wants(option::DNS_SERVERS));
    for value in message.options.all(option::IA_NA) {
        if let Ok(association) = IdentityAssociation::parse(value) {
            assert_eq!(IdentityAssociation::parse(&association.emit()), Ok(association));
        }
    }
    for value in message.options.all(option::DOMAIN_LIST) {
        if let Some(names) = domain::parse_list(value) {
            assert_eq!(domain::parse_list(&domain::emit_list(&names)), Some(names));
        }
    }
}
