//! Target: the text form of published and joined ports.

use towpath_gateway::publish::{INTERFACE_NAME_BYTES_MAX, Protocol, Publish, parse, parse_joined};

/// Longer texts find nothing new, and many repetitions of "all" are slow.
const TEXT_BYTES_MAX: usize = 128;
/// The host's ephemeral ports: many, so that "all" stands for few.
const EPHEMERAL: std::ops::RangeInclusive<u16> = 1024..=65535;

/// Parses specifications, one per line.
pub fn run(data: &[u8]) {
    let Ok(text) = str::from_utf8(&data[..data.len().min(TEXT_BYTES_MAX)]) else { return };
    let specs: Vec<String> = text.split('\n').map(String::from).collect();
    let published = parse(Protocol::Tcp, &specs, &EPHEMERAL);
    if let Ok(joined) = parse_joined(&specs) {
        // A specification that is valid for joined ports means the same for published ones.
        let ports = |publish: &Publish| (publish.host_port, publish.program_port);
        let published: Vec<_> = published.iter().flatten().map(ports).collect();
        assert!(joined.iter().map(|port| (port.inside, port.host)).eq(published), "{joined:?}");
    }
    let Ok(published) = published else { return };
    let mut seen = std::collections::HashSet::new();
    for publish in &published {
        assert!(publish.host_port != 0 && publish.program_port != 0, "{publish:?}");
        if let Some(name) = &publish.interface {
            assert!((1..=INTERFACE_NAME_BYTES_MAX).contains(&name.len()), "{publish:?}");
        }
        let place = (publish.host, &publish.interface, publish.host_port);
        assert!(seen.insert(place), "twice: {publish:?}");
    }
    let again = parse(Protocol::Tcp, &specs, &EPHEMERAL);
    assert_eq!(again.as_ref(), Ok(&published));
}
